"""A glance at a stream has the facts that its decoded metadata have."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from octavo.client.log.stream.status import known_stop_of_stream
from octavo.metadata.encoding import decode_object, encode_object
from octavo.metadata.ledger.formats import ARCHIVED_STREAM_FORMAT, STREAM_FORMAT
from octavo.metadata.ledger.model import encode_ledger
from octavo.metadata.stream.encoding import decode_stream, encode_stream
from octavo.metadata.stream.glance import StreamGlance, glance_at_stream
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.protocol.errors import LedgerKindError, MetadataError
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.places import place
from support.metadata.ledger_metadata import CREATED_AT, open_ledger
from support.metadata.paged_streams import many_fragments, paged_stream
from support.metadata.stream_metadata import open_stream
from support.metadata_examples import PAGED_STREAM, STREAM

LED = replace(open_stream(*many_fragments(12)), ledger_id=LedgerId(7))
LAST = LED.last_fragment
ENDING = LED.in_recovery(CREATED_AT, "host-2")
EMPTY_END = ENDING.at_rest(EntryId(LAST.first_entry_id - 1), LAST.length_before)
ENDED = ENDING.at_rest(EntryId(LAST.first_entry_id + 1), LAST.length_before + 20)
STREAMS = {
    "never led": STREAM,
    "led": LED,
    "being ended": ENDING,
    "ended without entries": EMPTY_END,
    "ended": ENDED,
    "truncated": ENDED.truncated(LED.fragments[4].first_position + 1),
    "closed": replace(ENDED, state=StreamState.CLOSED),
    "renewed": replace(
        LED,
        fragments=tuple(
            replace(fragment, leader_term=LED.term - 1) if fragment.term == LED.term else fragment
            for fragment in LED.fragments
        ),
    ),
    "with a page": PAGED_STREAM,
    "with pages": paged_stream(20, 5, 5)[0],
}


def told_in_full(stream: StreamMetadata) -> StreamGlance:
    return StreamGlance(
        start=stream.start,
        known_stop=known_stop_of_stream(stream),
        stop_is_known=stream.end_position is not None,
        first_term=stream.last_fragment.first_term,
        settled_bytes=stream.settled_bytes,
        has_writer=stream.state in {StreamState.OPEN, StreamState.IN_RECOVERY},
        closed=stream.state is StreamState.CLOSED,
    )


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_glance_tells_what_the_metadata_tell(stream: StreamMetadata) -> None:
    value = encode_stream(stream)
    assert glance_at_stream(stream.ledger_id, value) == told_in_full(decode_stream(stream.ledger_id, value))


def test_states_are_those_of_the_model() -> None:
    for state in StreamState:
        fields = stored(ENDED)
        value = encode_object({**fields, "state": state.value}, format_number=STREAM_FORMAT)
        glance = glance_at_stream(ENDED.ledger_id, value)
        assert glance.has_writer == (state in {StreamState.OPEN, StreamState.IN_RECOVERY})
        assert glance.closed == (state is StreamState.CLOSED)


def stored(stream: StreamMetadata) -> dict[str, Any]:
    return decode_object(encode_stream(stream), what="stream", format_max=STREAM_FORMAT, format_min=STREAM_FORMAT)


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "of another ledger": lambda fields: fields.update(ledger_id=8),
    "no such state": lambda fields: fields.update(state="GONE"),
    "no fragments": lambda fields: fields.update(fragments=[]),
    "fragment is no object": lambda fields: fields.update(fragments=[17]),
    "position is no number": lambda fields: fields["fragments"][-1].update(first_position="3"),
    "end is no number": lambda fields: fields.update(last_entry_id="3"),
    "no part of a stream": lambda fields: fields.pop("stream"),
    "page is no list": lambda fields: fields["stream"].update(page_references=[17]),
    "page is short": lambda fields: fields["stream"].update(page_references=[["1-ab", 1]]),
    "length of a page is a text": lambda fields: fields["stream"].update(page_references=[["1-ab", 1, 1, 0, 9, "x"]]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_fields_that_cannot_be_what_octavo_wrote_are_refused(damage: Callable[[dict[str, Any]], object]) -> None:
    fields = stored(ENDED)
    damage(fields)
    with pytest.raises(MetadataError, match="ledger 7: the stored metadata are damaged"):
        glance_at_stream(ENDED.ledger_id, encode_object(fields, format_number=STREAM_FORMAT))


def test_a_wrong_checksum_a_newer_format_and_a_ledger_are_refused() -> None:
    value = encode_stream(ENDED)
    with pytest.raises(MetadataError, match="checksum"):
        glance_at_stream(ENDED.ledger_id, value.replace(b'"length":', b'"length":1'))
    with pytest.raises(MetadataError, match="upgrade"):
        glance_at_stream(ENDED.ledger_id, encode_object(stored(ENDED), format_number=ARCHIVED_STREAM_FORMAT + 1))
    with pytest.raises(LedgerKindError, match="ledger 7 is no stream"):
        glance_at_stream(ENDED.ledger_id, encode_ledger(open_ledger(LedgerId(7))))


def test_an_end_lies_behind_the_last_entry() -> None:
    glance = glance_at_stream(ENDED.ledger_id, encode_stream(ENDED))
    assert ENDED.last_entry_id == place(LED.term, LAST.first_entry_id - place(LED.term, 0) + 1)
    assert (glance.known_stop, glance.stop_is_known) == (LAST.first_position + 2, True)
    led = glance_at_stream(LED.ledger_id, encode_stream(LED))
    assert (led.known_stop, led.stop_is_known) == (LAST.first_position, False)
