"""The ledger model: what can be a ledger, how it changes, and how it is stored."""

import json
import pickle
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.metadata import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.encoding import decode_object, encode_object
from octavo.metadata.ledger.checks import CUSTOM_METADATA_BYTES_MAX
from octavo.metadata.ledger.model import SyncMode, decode_ledger, encode_ledger
from octavo.protocol.entries import Digest
from octavo.protocol.errors import InvalidArgumentError, LedgerClosedError, MetadataError
from octavo.protocol.ids import ID_MAX, TERM_MAX, BookieId, EntryId, LedgerId
from support.metadata.ledger_metadata import CREATED_AT, bookie_ids, fragment, open_ledger

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata" / "ledger.json"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"ack_quorum": 0}, "at least 1"),
        ({"write_quorum": 1}, "smaller than the ack quorum"),
        ({"ensemble_size": 2}, "smaller than the write quorum"),
        ({"ensemble_size": 65}, "exceeds? the limit"),
        ({"ensemble_size": 4}, "4 distinct bookies"),
        ({"fragments": ()}, "must start at entry 0"),
        ({"fragments": (fragment(1, "abc"),)}, "must start at entry 0"),
        ({"fragments": (fragment(0, "abc", 5),)}, "must start at entry 0"),
        ({"fragments": (fragment(0, "aba"),)}, "3 distinct bookies"),
        ({"fragments": (fragment(0, "abc"), fragment(0, "abd"))}, "must come after"),
        ({"fragments": (fragment(0, "abc"), fragment(5, "abd", 9), fragment(4, "abe", 9))}, "must come after"),
        ({"fragments": (fragment(0, "abc"), fragment(5, "abd", 9), fragment(8, "abe", 8))}, "must come after"),
        ({"fragments": (Fragment(EntryId(0), bookie_ids("a", "b", "c/d")),)}, "not a bookie id"),
        ({"last_entry_id": 3}, "only a closed ledger"),
        ({"length": 3}, "only a closed ledger"),
        ({"state": LedgerState.CLOSED, "last_entry_id": -1}, "cannot be the last"),
        ({"state": LedgerState.CLOSED, "length": 1}, "contradicts"),
        ({"state": LedgerState.CLOSED, "last_entry_id": 0, "length": -1}, "contradicts"),
        ({"ledger_id": -1}, "between 0 and"),
        ({"ledger_id": ID_MAX + 1}, "between 0 and"),
        ({"term": -1}, "term"),
        ({"created_at": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001 - the point
        ({"fenced_at": datetime(2024, 1, 1)}, "time zone"),  # noqa: DTZ001 - the point
        ({"fenced_by": "h"}, "needs fenced_at"),
        ({"fenced_at": CREATED_AT, "fenced_by": "h" * 129}, "name of a client"),
        ({"writer_token": "t" * 65}, "token"),
        ({"custom_metadata": {"k": bytes(CUSTOM_METADATA_BYTES_MAX)}}, "custom metadata"),
        ({"format_version": 2}, "format"),
    ],
)
def test_what_can_be_no_ledger_is_refused_naming_the_ledger(change: dict[str, object], complaint: str) -> None:
    """Rule I6."""
    if "ledger_id" not in change:
        with pytest.raises(InvalidArgumentError, match="ledger 7: "):
            replace(open_ledger(7), **change)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=complaint):
        replace(open_ledger(7), **change)  # type: ignore[arg-type]


def test_custom_metadata_are_a_private_read_only_copy() -> None:
    given_by_caller = {"app": b"orders"}
    ledger = replace(open_ledger(), custom_metadata=given_by_caller)
    given_by_caller["app"] = b"changed"
    assert ledger.custom_metadata == {"app": b"orders"}
    with pytest.raises(TypeError):
        ledger.custom_metadata["app"] = b"changed"  # type: ignore[index]


def test_close_sets_the_end() -> None:
    closed = open_ledger().closed(EntryId(41), 4200)
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 41, 4200)
    assert closed.is_closed


def test_empty_ledger_closes_without_last_entry() -> None:
    closed = open_ledger().closed(None, 0)
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, None, 0)


def test_closed_ledger_changes_no_more() -> None:
    closed = open_ledger().closed(EntryId(1), 2)
    with pytest.raises(LedgerClosedError, match="ledger 7"):
        closed.closed(EntryId(1), 2)
    with pytest.raises(LedgerClosedError):
        closed.in_recovery()
    with pytest.raises(LedgerClosedError):
        closed.with_ensemble_change(EntryId(1), bookie_ids("a", "b", "d"), 1)


def test_recovery_of_a_ledger_in_recovery_writes_nothing_new() -> None:
    recovering = open_ledger().in_recovery()
    assert recovering.state is LedgerState.IN_RECOVERY
    assert recovering.in_recovery() is recovering
    first = open_ledger().in_recovery(CREATED_AT, "first")
    assert first.in_recovery(CREATED_AT + timedelta(1), "second") is first
    closed = first.closed(EntryId(0), 1)
    assert (closed.fenced_at, closed.fenced_by) == (CREATED_AT, "first")
    assert recovering.closed(EntryId(0), 1).is_closed


def test_ensemble_change_appends_a_fragment() -> None:
    changed = open_ledger().with_ensemble_change(EntryId(10), bookie_ids("a", "b", "d"), 100)
    assert changed.fragments == (fragment(0, "abc"), fragment(10, "abd", 100))
    assert changed.last_fragment == fragment(10, "abd", 100)


def test_ensemble_change_at_the_same_entry_replaces_the_last_fragment() -> None:
    changed = (
        open_ledger()
        .with_ensemble_change(EntryId(10), bookie_ids("a", "b", "d"), 100)
        .with_ensemble_change(EntryId(10), bookie_ids("a", "e", "d"), 100)
    )
    assert changed.fragments == (fragment(0, "abc"), fragment(10, "aed", 100))


def test_ensemble_change_before_the_last_fragment_is_refused() -> None:
    ledger = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100))
    with pytest.raises(InvalidArgumentError):
        ledger.with_ensemble_change(EntryId(9), bookie_ids("a", "b", "e"), 90)


@pytest.mark.parametrize(
    ("last_entry_id", "length", "fits"),
    [
        (9, 100, True),
        (9, 101, False),
        (9, 99, False),
        (8, 100, False),
        (10, 100, True),
        (10, 99, False),
        (None, 0, False),
    ],
)
def test_end_must_fit_the_last_fragment(last_entry_id: int | None, length: int, fits: bool) -> None:
    """The last fragment starts at entry 10 with 100 bytes before it: it may be empty, nothing before it may be cut."""
    ledger = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100))
    end = None if last_entry_id is None else EntryId(last_entry_id)
    if fits:
        assert ledger.closed(end, length).last_entry_id == last_entry_id
    else:
        with pytest.raises(InvalidArgumentError):
            ledger.closed(end, length)


def test_entry_belongs_to_the_fragment_it_lies_in() -> None:
    ledger = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100), fragment(11, "abe", 110))
    firsts = [ledger.fragment_of(EntryId(entry_id)).first_entry_id for entry_id in (0, 9, 10, 11, 12, ID_MAX)]
    assert firsts == [0, 0, 10, 11, 11, 11]
    with pytest.raises(InvalidArgumentError):
        ledger.fragment_of(EntryId(-1))


def test_fragment_ends_before_the_next_one_or_at_the_end() -> None:
    ledger = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100))
    first, last = ledger.fragments
    assert ledger.last_id_of(first) == 9
    assert ledger.last_id_of(last) is None
    assert ledger.closed(EntryId(9), 100).last_id_of(last) == 9
    assert ledger.closed(EntryId(12), 130).last_id_of(last) == 12
    empty = open_ledger().closed(None, 0)
    assert empty.last_id_of(empty.last_fragment) == -1


def golden_ledger() -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=LedgerId(4711),
        state=LedgerState.CLOSED,
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        fragments=(fragment(0, "abc"), fragment(100, "abd", 10_000)),
        last_entry_id=EntryId(149),
        length=15_000,
        digest=Digest.HMAC_SHA256,
        custom_metadata={"app": b"orders", "bytes": bytes(range(256))},
        created_at=CREATED_AT,
        verifier=bytes(range(32)),
        salt=bytes(range(16)),
        term=0,
        writer_token="0f" * 16,
    )


def test_golden_ledger_is_written_and_read_as_ever() -> None:
    golden = GOLDEN.read_bytes().rstrip(b"\n")
    assert encode_ledger(golden_ledger()) == golden
    assert decode_ledger(LedgerId(4711), golden) == golden_ledger()


def test_every_flipped_bit_of_a_stored_ledger_is_noticed() -> None:
    stored = encode_ledger(golden_ledger())
    for bit in range(len(stored) * 8):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << (bit % 8)
        outcome = decoded_or_error(bytes(damaged))
        if isinstance(outcome, MetadataError):
            assert "ledger 4711" in outcome.message
        else:
            assert outcome == golden_ledger()  # such as an escape spelt with another case: the same value


def decoded_or_error(stored: bytes) -> LedgerMetadata | MetadataError:
    try:
        return decode_ledger(LedgerId(4711), stored)
    except MetadataError as error:
        return error


def test_truncated_and_foreign_values_are_refused() -> None:
    stored = encode_ledger(golden_ledger())
    for size in range(0, len(stored), 7):
        with pytest.raises(MetadataError, match="ledger 4711"):
            decode_ledger(LedgerId(4711), stored[:size])
    with pytest.raises(MetadataError, match="those of ledger 4711"):
        decode_ledger(LedgerId(4712), stored)
    for foreign in (b"[]", b"null", b"\xff\xfe", b'{"format":1}', b"[" * 100_000):
        with pytest.raises(MetadataError, match="damaged"):
            decode_ledger(LedgerId(4711), foreign)


def test_newer_format_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(MetadataError, match=r"ledger 5: metadata format 2 is newer .* upgrade"):
        decode_ledger(LedgerId(5), encode_object({"whatever": 1}, format_number=2))


def test_intact_value_that_can_be_no_ledger_is_refused() -> None:
    """A valid checksum over nonsense: a defect elsewhere, or an edit by hand."""
    for fields in ({}, {"ledger_id": "5"}, {"ledger_id": 5, "state": "asleep"}):
        with pytest.raises(MetadataError, match="ledger 5"):
            decode_ledger(LedgerId(5), encode_object(fields, format_number=1))


def test_metadata_travel_between_processes() -> None:
    assert pickle.loads(pickle.dumps(golden_ledger())) == golden_ledger()


def test_equal_metadata_have_equal_hashes() -> None:
    assert len({golden_ledger(), golden_ledger(), open_ledger()}) == 2


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ack_quorum, write_quorum, ensemble_size = sorted(draw(st.lists(st.integers(1, 6), min_size=3, max_size=3)))
    names = [BookieId(f"bookie-{number}") for number in range(8)]
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**40), max_size=4)))]
    lengths = [0, *sorted(draw(st.lists(st.integers(0, 2**40), min_size=len(firsts) - 1, max_size=len(firsts) - 1)))]
    fragments = tuple(
        Fragment(EntryId(first), tuple(draw(st.permutations(names))[:ensemble_size]), length)
        for first, length in zip(firsts, lengths, strict=True)
    )
    offset = timezone(timedelta(minutes=draw(st.integers(-720, 720))))
    ledger = LedgerMetadata(
        ledger_id=LedgerId(draw(st.integers(0, ID_MAX))),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=ack_quorum,
        fragments=fragments,
        digest=draw(st.sampled_from(Digest)),
        custom_metadata=draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=16), max_size=3)),
        created_at=draw(st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(offset))),  # noqa: DTZ001
        verifier=draw(st.binary(max_size=32)),
        salt=draw(st.binary(max_size=16)),
        term=draw(st.integers(0, TERM_MAX)),
        writer_token=draw(st.text(max_size=8)),
    )
    state = draw(st.sampled_from(LedgerState))
    if state is LedgerState.OPEN:
        return ledger
    if state is LedgerState.IN_RECOVERY:
        fenced_at = draw(st.none() | st.just(ledger.created_at))
        return ledger.in_recovery(fenced_at, draw(st.text(max_size=8)) if fenced_at else "")
    extra = draw(st.integers(0, 1000))
    end = firsts[-1] - 1 + extra
    return ledger.closed(EntryId(end) if end >= 0 else None, lengths[-1] + 3 * extra)


@settings(max_examples=60, deadline=None)
@given(ledgers())
def test_what_is_stored_is_what_is_read(ledger: LedgerMetadata) -> None:
    stored = encode_ledger(ledger)
    assert decode_ledger(ledger.ledger_id, stored) == ledger
    assert encode_ledger(decode_ledger(ledger.ledger_id, stored)) == stored
    fields = json.loads(stored)
    del fields["crc32c"]
    assert encode_object(fields, format_number=fields.pop("format")) == stored, "the canonical form, with its checksum"
    assert stored.isascii()
    assert b"\n" not in stored


@settings(max_examples=60, deadline=None)
@given(ledgers(), st.integers(0, 2**41))
def test_lookup_agrees_with_a_search_through_all_fragments(ledger: LedgerMetadata, entry_id: int) -> None:
    *_, expected = (candidate for candidate in ledger.fragments if candidate.first_entry_id <= entry_id)
    assert ledger.fragment_of(EntryId(entry_id)) is expected


def test_sync_is_stored_where_it_is_deferred_and_nothing_changes_elsewhere() -> None:
    immediate = open_ledger(7)
    deferred = replace(immediate, sync=SyncMode.DEFERRED)
    assert b"sync" not in encode_ledger(immediate)
    assert decode_ledger(immediate.ledger_id, encode_ledger(immediate)).sync is SyncMode.IMMEDIATE
    assert b'"state":"open","sync":"deferred","term":0' in encode_ledger(deferred)
    assert decode_ledger(deferred.ledger_id, encode_ledger(deferred)) == deferred
    damaged = encode_object(
        {**decode_object(encode_ledger(deferred), what="", format_max=1), "sync": "never"}, format_number=1
    )
    with pytest.raises(MetadataError, match="never"):
        decode_ledger(deferred.ledger_id, damaged)
