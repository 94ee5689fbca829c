"""Takeovers that start over: the metadata from which they began are no longer those of the stream (rule T14)."""

from dataclasses import replace

import pytest
from octavo.client.recover.takeover import Phase, Takeover
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.ids import EntryId
from octavo.protocol.places import place
from support.metadata.ledger_metadata import bookie_ids
from support.metadata.stream_metadata import open_stream

LAST = EntryId(place(1, 4))


def rested() -> StreamMetadata:
    """Term 1 has ended with five entries."""
    return replace(open_stream(), last_entry_id=None).in_recovery(None, "").at_rest(LAST, 99)


def begun(takeover: Takeover, stream: StreamMetadata) -> None:
    """The takeover has begun with these metadata, which stand."""
    if takeover.begin(stream) is not None:
        takeover.on_begun(stream.in_recovery(None, ""))


@pytest.mark.parametrize("stream", [open_stream(), rested()], ids=["open", "at-rest"])
def test_a_takeover_that_starts_over_keeps_nothing(stream: StreamMetadata) -> None:
    takeover = Takeover("mine", wants_time=True)
    begun(takeover, stream)
    takeover.start_over()
    takeover.check_invariants()
    assert takeover.state() == Takeover("mine", wants_time=True).state()
    repaired = replace(stream, fragments=(replace(stream.last_fragment, bookies=bookie_ids(*"abd")),))
    begun(takeover, repaired)
    assert takeover.base.bookies == bookie_ids(*"abd")


def test_a_takeover_that_is_over_does_not_start_over() -> None:
    takeover = Takeover("mine")
    begun(takeover, rested())
    opening = takeover.open_term(bookie_ids(*"abc"), 9)
    takeover.on_opened(opening.decide(rested()).metadata)  # type: ignore[union-attr]
    assert takeover.phase is Phase.OPEN
    with pytest.raises(AssertionError):
        takeover.start_over()
