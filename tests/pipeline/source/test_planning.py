"""Partitions hold every entry once, follow fragments and sizes; offsets read every entry of every ledger once."""

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from octavo.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.ledger.term import Term
from octavo.pipeline.base.planning import ENTRY_OVERHEAD_BYTES, EntryRange, Piece, pieces_of, plan_partitions
from octavo.pipeline.base.ranges import IdRanges
from octavo.pipeline.source.offsets import (
    LOST,
    Limits,
    Offsets,
    Sighting,
    Tail,
    advance,
    batch_ranges,
    initial_offsets,
    share,
)
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId

PIECES = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 2000)), max_size=8).map(
    lambda sizes: [Piece(EntryRange(i, 5, 4 + count), float(size)) for i, (count, size) in enumerate(sizes)]
)


@given(PIECES, st.integers(1, 50_000), st.integers(1, 20))
def test_partitions_hold_every_entry_once(pieces: list[Piece], target: int, partitions_min: int) -> None:
    plan = plan_partitions(pieces, target_bytes=target, partitions_min=partitions_min)
    got = Counter((r.ledger_id, i) for ranges in plan for r in ranges for i in range(r.first, r.last + 1))
    assert got == Counter((p.range.ledger_id, i) for p in pieces for i in range(p.range.first, p.range.last + 1))
    assert len(plan) >= min(partitions_min, len(got))
    assert all(ranges for ranges in plan)
    cost = {p.range.ledger_id: p.entry_bytes + ENTRY_OVERHEAD_BYTES for p in pieces}
    for ranges in plan:
        total = sum(r.count * cost[r.ledger_id] for r in ranges)
        assert total <= 1.01 * target + max(cost[r.ledger_id] for r in ranges)
    assert plan == plan_partitions(pieces, target_bytes=target, partitions_min=partitions_min)


def test_small_ledgers_share_partitions_and_large_ones_are_cut() -> None:
    small = [Piece(EntryRange(i, 0, 9), 36.0) for i in range(100)]
    assert len(plan_partitions(small, target_bytes=10_000)) == 10
    large = [Piece(EntryRange(0, 0, 999), 936.0)]
    assert [ranges[0].count for ranges in plan_partitions(large, target_bytes=250_000)] == [250] * 4


def ledger(*fragments: tuple[int, int], last: int | None, length: int) -> Term:
    return LedgerMetadata(
        ledger_id=LedgerId(7),
        state=LedgerState.OPEN if last is None else LedgerState.CLOSED,
        ensemble_size=1,
        write_quorum=1,
        ack_quorum=1,
        fragments=tuple(Fragment(EntryId(first), (BookieId("b"),), before) for first, before in fragments),
        last_entry_id=None if last is None else EntryId(last),
        length=0 if last is None else length,
        digest=Digest.CRC32C,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        verifier=b"",
        salt=b"",
    ).current_term


def test_pieces_follow_fragments_with_their_own_sizes() -> None:
    closed = ledger((0, 0), (10, 100), last=19, length=1100)
    assert pieces_of(closed, 0, 19, 1100) == [Piece(EntryRange(7, 0, 9), 10.0), Piece(EntryRange(7, 10, 19), 100.0)]
    assert pieces_of(closed, 8, 11, 1100) == [Piece(EntryRange(7, 8, 9), 10.0), Piece(EntryRange(7, 10, 11), 100.0)]
    assert pieces_of(closed, 20, 30, 1100) == []
    still_open = ledger((0, 0), (10, 100), last=None, length=0)
    assert pieces_of(still_open, 0, 14, 600) == [Piece(EntryRange(7, 0, 9), 10.0), Piece(EntryRange(7, 10, 14), 100.0)]
    assert pieces_of(still_open, 0, 9, 100) == [Piece(EntryRange(7, 0, 9), 10.0)]
    assert pieces_of(ledger((0, 0), last=None, length=0), 0, -1, 0) == []


# --- offsets ---------------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.integers(0, 9), st.tuples(st.integers(1, 100), st.integers(0, 50).map(float)), max_size=6),
    st.none() | st.integers(1, 150),
    st.none() | st.integers(1, 3000),
)
def test_limits_are_kept_and_used(
    waiting: Mapping[int, tuple[int, float]], entries: int | None, payload_bytes: int | None
) -> None:
    taken = share(waiting, Limits(entries, payload_bytes))
    assert all(0 < count <= waiting[i][0] for i, count in taken.items())
    assert bool(taken) == bool(waiting)
    everything = sum(count for count, _ in waiting.values())
    if entries is not None:
        assert sum(taken.values()) <= entries
    if entries is not None and payload_bytes is None:
        assert sum(taken.values()) == min(entries, everything)
    if payload_bytes is not None and sum(taken.values()) > 1:
        assert sum(count * max(1.0, waiting[i][1]) for i, count in taken.items()) <= payload_bytes
    if entries is None and payload_bytes is None:
        assert taken == {i: count for i, (count, _) in waiting.items()}


STEPS = st.lists(
    st.tuples(st.sampled_from(["create", "add", "close", "delete", "create unselected", "skip", "read", "read all"]),
              st.integers(0, 9), st.integers(1, 30)),
    max_size=60,
)  # fmt: skip


@given(STEPS, st.booleans())
def test_every_entry_is_read_once_whatever_ledgers_do(  # noqa: PLR0915 - one story, told in order
    steps: list[tuple[str, int, int]], from_latest: bool
) -> None:
    """A cluster of a few ledgers that are created out of order, grow, close and are deleted while batches are read."""
    lengths: dict[int, int] = {}
    closed: set[int] = set()
    unselected: set[int] = set()
    late: list[int] = []
    next_id = 0
    read: Counter[tuple[int, int]] = Counter()
    expected: set[tuple[int, int]] = set()
    lost: set[int] = set()
    scope = IdRanges.everything()

    def tails() -> dict[int, Tail]:
        return {i: Tail(n, i in closed, 10.0) for i, n in lengths.items() if i not in unselected}

    def look(start: Offsets) -> Sighting:
        seen = {i: tail for i, tail in tails().items() if start.next_entry(i) is not None}
        gone = [i for i in start.ledgers if start.next_entry(i) is not None and i not in lengths]
        rejected = [i for i in unselected if i in lengths and i in closed and start.next_entry(i) is not None]
        return Sighting(max(lengths, default=-1) + 1, seen, rejected, gone)

    offsets = Offsets()
    for kind, number, count in steps + [("read all", 0, 1)] * 2:
        known = sorted(lengths)
        chosen = known[number % len(known)] if known else None
        if kind == "skip":
            late.append(next_id)  # allocated, and created later or never
            next_id += 1
        elif kind.startswith("create"):
            ledger_id = late.pop() if late and number % 2 else next_id
            next_id = max(next_id, ledger_id + 1)
            lengths[ledger_id] = 0
            if "unselected" in kind:
                unselected.add(ledger_id)
        elif kind == "add" and chosen is not None and chosen not in closed:
            expected |= {(chosen, i) for i in range(lengths[chosen], lengths[chosen] + count)}
            lengths[chosen] += count
        elif kind == "close" and chosen is not None:
            closed.add(chosen)
        elif kind == "delete" and chosen is not None:
            at = offsets.next_entry(chosen)
            del lengths[chosen]
            lost.add(chosen)
            expected -= {(chosen, i) for i in range(at or 0, 10_000) if at is not None}
        elif kind.startswith("read"):
            end = advance(offsets, look(offsets), scope, Limits() if kind == "read all" else Limits(count))
            if from_latest and offsets == Offsets():
                start_at = {i: tail.next_entry for i, tail in tails().items()}
                end = initial_offsets(tails(), start_at, max(lengths, default=-1) + 1, scope)
                expected -= {(i, e) for i, n in start_at.items() for e in range(n)}
                from_latest = False
                offsets = end
                continue
            for wanted in batch_ranges(offsets, end):
                if wanted.ledger_id in lengths:
                    read.update((wanted.ledger_id, i) for i in range(wanted.first, wanted.last + 1))
            assert Offsets.from_json(end.to_json()) == end
            offsets = end
            offsets.check_invariants()
    wanted_rows = {row for row in expected if row[0] not in unselected}
    assert {row for row in read if row[0] not in lost} == {row for row in wanted_rows if row[0] not in lost}
    assert all(count == 1 for count in read.values())
    assert not closed & set(offsets.ledgers), "what is drained leaves the offsets"
    assert not look(offsets).lost, "what is lost is told once"


def test_a_batch_that_is_planned_again_is_the_same_and_nothing_new_is_no_batch() -> None:
    scope = IdRanges.everything()
    start = advance(Offsets(), Sighting(3, {0: Tail(5, True, 1.0), 2: Tail(4, False, 1.0)}, [], []), scope, Limits(6))
    assert start == Offsets(3, {0: 3, 2: 3}, {}, IdRanges.of([(1, 1)]))
    seen = Sighting(3, {0: Tail(5, True, 1.0), 2: Tail(4, False, 1.0)}, [], [])
    end = advance(start, seen, scope, Limits())
    assert end == Offsets(3, {2: 4}, {0: 5}, IdRanges.of([(1, 1)]))
    assert batch_ranges(start, end) == [EntryRange(0, 3, 4), EntryRange(2, 3, 3)]
    assert advance(end, Sighting(3, {2: Tail(4, False, 1.0)}, [], []), scope, Limits()) is end
    closing = advance(end, Sighting(3, {2: Tail(4, True, 1.0)}, [], []), scope, Limits())
    assert (closing.ledgers, closing.finished, batch_ranges(end, closing)) == ({}, {}, [])


def test_a_ledger_that_was_lost_is_told_once_and_done() -> None:
    scope = IdRanges.everything()
    start = Offsets(3, {0: 2, 2: 4}, {}, IdRanges.of([(1, 1)]))
    end = advance(start, Sighting(3, {0: Tail(3, False, 1.0)}, [], [2]), scope, Limits())
    assert end == Offsets(3, {0: 3, 2: LOST}, {}, IdRanges.of([(1, 1)]))
    assert batch_ranges(start, end) == [EntryRange(0, 2, 2), EntryRange(2, 4, 4)]
    assert [end.next_entry(ledger_id) for ledger_id in (0, 1, 2, 3)] == [3, 0, None, 0]
    later = advance(end, Sighting(3, {0: Tail(5, False, 1.0)}, [], []), scope, Limits())
    assert later == Offsets(3, {0: 5}, {}, IdRanges.of([(1, 1)]))
    assert batch_ranges(end, later) == [EntryRange(0, 3, 4)]
    assert later.next_entry(2) is None


def test_a_ledger_that_is_selected_later_than_ledgers_with_higher_ids_is_read_from_its_beginning() -> None:
    """It was created late, or closed late with the custom metadata that select it."""
    scope = IdRanges.everything()
    start = advance(Offsets(), Sighting(3, {2: Tail(4, True, 1.0)}, [0], []), scope, Limits())
    assert start == Offsets(3, {}, {2: 4}, IdRanges.of([(1, 1)]))
    assert [start.next_entry(ledger_id) for ledger_id in (0, 1, 2, 3)] == [None, 0, None, 0]
    end = advance(start, Sighting(3, {1: Tail(2, True, 1.0)}, [], []), scope, Limits())
    assert end == Offsets(3, {}, {1: 2}, IdRanges())
    assert batch_ranges(start, end) == [EntryRange(1, 0, 1)]
    assert end.next_entry(1) is None
