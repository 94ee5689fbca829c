"""Ledger states and journal bodies come back as they went, and many states cost little memory."""

import sys
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.bookie.index.runs import make_run
from octavo.bookie.storage.ledger_state import (
    LedgerState,
    PackedStates,
    decode_add,
    encode_add_head,
    is_tombstone,
    is_without_entries,
)
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import TERM_MAX
from support.clusters.ledgers import LedgerScript


@given(st.sets(st.sampled_from(["fenced", "deleted", "in_doubt", "dropped", "private", "public"])),
       st.one_of(st.none(), st.binary(min_size=1, max_size=64)),
       st.integers(0, TERM_MAX), st.integers(0, 2**63), st.integers(0, 2**63), st.binary(max_size=92))  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_state_round_trip(  # noqa: PLR0917 - hypothesis passes them by name
    flags: set[str], key: bytes | None, term: int, highest: int, lac: int, explicit: bytes
) -> None:
    state = LedgerState(9)
    for flag in flags:
        setattr(state, flag, True)
    state.ledger_key, state.fenced_term = key, term
    state.highest_plus_one, state.lac_plus_one, state.explicit_lac = highest, lac, explicit or None
    again = LedgerState.decode(9, state.encode())
    for name in LedgerState.__slots__:
        assert getattr(again, name) == getattr(state, name)
    assert is_tombstone(state.encode()) == ("deleted" in flags)
    assert is_without_entries(state.encode()) == bool(flags & {"deleted", "dropped"})


@given(st.dictionaries(st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1)), st.binary(max_size=200), max_size=40))
@settings(max_examples=60, deadline=None)
def test_packed_states_are_a_dict(model: dict[int, bytes]) -> None:
    packed = PackedStates()
    for ledger_id, state in model.items():
        packed.put(ledger_id, b"replaced")
        packed.put(ledger_id, state)
    assert {ledger_id: packed.get(ledger_id) for ledger_id in model} == model
    assert list(packed) == sorted(model)
    assert len(packed) == len(model)
    assert packed.get(2**63) is None


def test_a_packed_state_costs_under_150_bytes() -> None:
    state = LedgerState(1)
    state.ledger_key = b"k" * 32
    encoded = state.encode()
    tracemalloc.start()
    packed = PackedStates()
    for ledger_id in range(10_000):
        packed.put(ledger_id, encoded)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 10_000 < 150
    assert sys.getsizeof(encoded) > 60


@pytest.mark.parametrize("ids", [range(5), range(7, 8), [1, 2, 9], [0, 2, 4]])
@pytest.mark.parametrize("payload_bytes", [39, 40])
def test_add_body_round_trip(ids: list[int], payload_bytes: int) -> None:
    script = LedgerScript(3, payload_bytes=payload_bytes)
    if payload_bytes == 39:
        script.payload_of = lambda entry_id, version=0: b"x" * 39  # type: ignore[method-assign]
    entries = script.entries(ids, lac=4)
    run = make_run(ids, list(map(len, entries)), b"".join(entries), 0)
    head = encode_add_head(3, run)
    ledger_id, again, lac_plus_one = decode_add(head + b"".join(entries))
    assert ledger_id == 3
    assert list(again.ids) == list(ids)
    assert again.sizes == run.sizes
    assert again.offset == len(head)
    assert lac_plus_one == min(5, ids[-1])
    for broken in (head + b"".join(entries)[:-1], head + b"".join(entries)[:-60], head):
        with pytest.raises((ValueError, OctavoError)):
            decode_add(broken)


def test_an_add_body_with_an_entry_of_another_ledger_is_refused() -> None:
    script, other = LedgerScript(3), LedgerScript(4)
    entries = [script.entry(0), other.entry(1), script.entry(2)]
    head = encode_add_head(3, make_run([0, 1, 2], list(map(len, entries)), b"".join(entries), 0))
    with pytest.raises(ValueError, match="of ledger 4 is out of its place"):
        decode_add(head + b"".join(entries))


def test_an_add_body_of_equal_entries_has_the_lac_of_its_last_entry() -> None:
    script = LedgerScript(3)
    script.payload_of = lambda entry_id, version=0: b"x" * 39  # type: ignore[method-assign]
    entries = [script.entry(5, lac=1), script.entry(6, lac=1), script.entry(7, lac=4)]
    run = make_run(range(5, 8), list(map(len, entries)), b"".join(entries), 0)
    assert isinstance(run.sizes, int), "the form that is not walked"
    assert decode_add(encode_add_head(3, run) + b"".join(entries))[2] == 4 + 1
