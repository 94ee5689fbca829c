"""A term is made from what a ledger or a stream says of itself, and from nothing else (decision 024)."""

from dataclasses import replace

import pytest
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.ledger.term import Term, TermKey, TermState
from octavo.metadata.stream.model import StreamKey, StreamMetadata, StreamState
from octavo.protocol.entries import Digest
from octavo.protocol.ids import EntryId
from octavo.protocol.places import place
from octavo.protocol.quorums import quorums_of
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.stream_metadata import KEY, open_stream, stream_fragment

LEDGER = replace(open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100)), full_copies=FullCopies.RECORDED)

NEW_KEY = StreamKey(Digest.HMAC_SHA256, b"w" * 32, b"t" * 16)

STREAM = replace(
    open_stream(),
    fragments=(
        stream_fragment(1, 0, 0),
        replace(stream_fragment(3, 0, 8, length_before=80), key=1),
        replace(stream_fragment(3, 5, 13, "abd", length_before=130), key=1),
    ),
    keys=(KEY, NEW_KEY),
    term=3,
    private=True,
)


def test_the_term_of_a_ledger_is_all_of_it() -> None:
    assert LEDGER.current_term == Term(
        ledger_id=LEDGER.ledger_id,
        number=0,
        state=TermState.OPEN,
        quorums=quorums_of(3, 3, 2),
        fragments=LEDGER.fragments,
        last_entry_id=None,
        length=0,
        key=TermKey(LEDGER.digest, LEDGER.verifier, LEDGER.salt),
        private=False,
        full_copies=FullCopies.RECORDED,
    )


def test_the_current_term_of_a_stream_has_its_own_fragments_alone_with_their_quorums_and_key() -> None:
    term = STREAM.current_term
    assert (term.number, term.state, term.private, term.quorums) == (3, TermState.OPEN, True, quorums_of(3, 3, 2))
    assert [id(one) for one in term.fragments] == [id(one) for one in STREAM.fragments[1:]], "nothing is made up"
    assert term.key == (NEW_KEY.digest, NEW_KEY.verifier, NEW_KEY.salt)


@pytest.mark.parametrize(
    ("stored", "expected", "end"),
    [
        (LEDGER, TermState.OPEN, (None, 0)),
        (LEDGER.in_recovery(), TermState.IN_RECOVERY, (None, 0)),
        (LEDGER.closed(EntryId(14), 150), TermState.ENDED, (14, 150)),
        (open_ledger().closed(None, 0), TermState.ENDED, (None, 0)),
        (STREAM, TermState.OPEN, (None, 0)),
        (replace(STREAM, state=StreamState.IN_RECOVERY), TermState.IN_RECOVERY, (None, 0)),
        (
            replace(STREAM, state=StreamState.AT_REST, last_entry_id=place(3, 6), length=150),
            TermState.ENDED,
            (place(3, 6), 150),
        ),
        (
            replace(STREAM, state=StreamState.CLOSED, last_entry_id=place(3, 6), length=150),
            TermState.ENDED,
            (place(3, 6), 150),
        ),
    ],
)
def test_a_term_has_an_end_where_the_metadata_have_one(
    stored: LedgerMetadata | StreamMetadata, expected: TermState, end: tuple[int | None, int]
) -> None:
    term = stored.current_term
    assert (term.state, term.has_end) == (expected, stored.has_end)
    assert (term.last_entry_id, term.length) == end


@pytest.mark.parametrize(
    "stored",
    [
        LEDGER,
        LEDGER.closed(EntryId(14), 150),
        LEDGER.closed(EntryId(9), 100),
        open_ledger().closed(None, 0),
        STREAM,
        replace(STREAM, state=StreamState.AT_REST, last_entry_id=place(3, 6), length=150),
        replace(STREAM, state=StreamState.AT_REST, last_entry_id=place(3, 4), length=130),
    ],
)
def test_a_term_finds_fragments_and_their_ends_as_its_metadata_do(stored: LedgerMetadata | StreamMetadata) -> None:
    term = stored.current_term
    assert term.last_fragment is stored.last_fragment
    assert term.bookies == stored.last_fragment.bookies
    for one in term.fragments:
        assert term.last_id_of(one) == stored.last_id_of(one)
        for entry_id in (one.first_entry_id, EntryId(one.first_entry_id + 2)):
            assert term.fragment_of(entry_id) is stored.fragment_of(entry_id)
    assert term.fragment_of(term.fragments[0].first_entry_id - 1) is None
