"""Which copies move from full bookies to empty ones (rules A14 and A15)."""

import random
from dataclasses import replace
from itertools import count

import pytest
from octavo.client.choose.locations import Location
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.entries import SEALED_BYTES_MIN
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.quorums import Quorums
from octavo.repair.base.balance import (
    CLASS_MAX,
    TOLERANCE,
    Balance,
    Movable,
    Movables,
    Move,
    Slots,
    bytes_of_members,
    ensembles_of,
    keeps_apart,
)
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.stream_metadata import open_stream, stream_fragment

A, B, C, D, E = (BookieId(name) for name in "abcde")
PLAIN = {BookieId(name): Location("/unnamed", name) for name in "abcdefgh"}
HEADER = SEALED_BYTES_MIN


def movable(ledger_id: int, names: str, size: int, quorums: Quorums | None = None) -> Movable:
    bookies = tuple(map(BookieId, names))
    slots = Slots(quorums or Quorums(len(names), len(names), 1), bookies)
    return Movable(LedgerId(ledger_id), dict.fromkeys(bookies, size), (slots,))


def ledgers_of(*some: Movable) -> Movables:
    found = Movables()
    for one in some:
        found.add(one)
    return found


def balance_of(some: list[Movable], capacities: dict[str, int]) -> Balance:
    balance = Balance({BookieId(name): size for name, size in capacities.items()}, {})
    for one in some:
        for name, size in one.bytes.items():
            balance.held[name] = balance.held.get(name, 0) + size
    return balance


def run(balance: Balance, movables: Movables, locations: dict[BookieId, Location] | None = None) -> list[Move]:
    """All moves, each begun; every one brings the cluster nearer to its shares."""
    moves = []
    while (move := balance.next_move(movables, locations or PLAIN)) is not None:
        before = distance(balance)
        balance.begin(move)
        assert distance(balance) < before, "a move that makes nothing more even"
        moves.append(move)
    return moves


def distance(balance: Balance) -> float:
    return sum(balance.excess(name) ** 2 / size for name, size in balance.capacities.items())


# --- what a bookie holds ----------------------------------------------------------------------------


def test_a_bookie_holds_its_part_of_each_settled_range_of_a_ledger() -> None:
    ledger = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 1000)).closed(EntryId(14), 1500)
    assert bytes_of_members(ledger) == {
        "a": 1500 + 15 * HEADER, "b": 1500 + 15 * HEADER, "c": 1000 + 10 * HEADER, "d": 500 + 5 * HEADER,
    }  # fmt: skip
    assert [slots.bookies for slots in ensembles_of([ledger])] == [(A, B, C), (A, B, D)]


def test_of_a_striped_ledger_a_bookie_holds_two_thirds_and_of_an_open_one_only_what_is_settled() -> None:
    striped = replace(open_ledger(7, fragment(0, "abc")), write_quorum=2).closed(EntryId(8), 900)
    assert bytes_of_members(striped)[A] == (900 + 9 * HEADER) * 2 // 3
    assert bytes_of_members(open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 1000))) == dict.fromkeys(
        (A, B, C), 1000 + 10 * HEADER
    )


def test_of_a_stream_a_bookie_holds_the_fragments_that_its_writer_has_left() -> None:
    stream: EitherMetadata = open_stream(
        stream_fragment(1, 0, 0, "abc"), stream_fragment(1, 10, 10, "abd", 700), stream_fragment(1, 20, 20, "abd", 900)
    )
    held = bytes_of_members(stream)
    assert (held[C], held[D]) == (700 + 10 * HEADER, 200 + 10 * HEADER)


# --- racks and hosts ----------------------------------------------------------------------------

RACKS = {
    A: Location("/dc1/r1", "h1"), B: Location("/dc1/r2", "h2"), C: Location("/dc2/r1", "h3"),
    D: Location("/dc1/r2", "h2"), E: Location("/dc2/r9", "h5"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (B, D, True),  # the same host
        (A, D, False),  # beside b: two copies on one host
        (C, D, False),
        (C, E, True),  # another rack of the same data centre
        (A, E, True),  # two data centres, three racks and three hosts, as before
    ],
)
def test_copies_stay_as_far_apart_as_they_were(old: BookieId, new: BookieId, expected: bool) -> None:
    slots = Slots(Quorums(3, 3, 2), (A, B, C))
    assert keeps_apart(slots, old, new, RACKS) is expected


def test_the_last_copy_of_a_data_centre_stays_there() -> None:
    where = {A: Location("/dc1/r1", "h1"), B: Location("/dc2/r1", "h2"), C: Location("/dc1/r3", "h3")}
    assert not keeps_apart(Slots(Quorums(2, 2, 1), (A, B)), B, C, where)


def test_each_write_set_counts_by_itself_and_unknown_places_count_for_nothing() -> None:
    """Striped: d may take the place of a beside c, and not beside b, whose host it shares."""
    hosts = {A: Location("/r", "1"), B: Location("/r", "2"), C: Location("/r", "3"), D: Location("/r", "2")}
    assert not keeps_apart(Slots(Quorums(3, 2, 1), (A, B, C)), A, D, hosts)
    assert keeps_apart(Slots(Quorums(3, 2, 1), (A, B, C)), B, D, hosts)
    assert keeps_apart(Slots(Quorums(1, 1, 1), (A,)), A, D, hosts)
    assert not keeps_apart(Slots(Quorums(1, 1, 1), (A,)), A, E, hosts)
    assert not keeps_apart(Slots(Quorums(2, 2, 1), (A, E)), A, D, hosts)


def test_a_member_never_takes_a_second_slot() -> None:
    assert not keeps_apart(Slots(Quorums(3, 3, 2), (A, B, C)), A, B, PLAIN)
    assert keeps_apart(Slots(Quorums(3, 3, 2), (A, B, C)), D, B, PLAIN), "d has no slot to give up"


# --- what moves ----------------------------------------------------------------------------


def test_a_new_bookie_gets_its_share_and_nothing_moves_back() -> None:
    some = [movable(number, "abc", 10) for number in range(40)]
    balance, movables = balance_of(some, dict.fromkeys("abcd", 1000)), ledgers_of(*some)
    moves = run(balance, movables)
    assert balance.is_even
    assert {move.target for move in moves} == {D}
    assert {name: round(balance.fill(BookieId(name)), 2) for name in "abcd"} == dict.fromkeys(
        "abcd", pytest.approx(0.3, abs=0.016)
    )
    assert len({move.ledger_id for move in moves}) == len(moves), "a ledger that is named by all of them moves once"


def test_a_disk_twice_as_large_gets_twice_as_much() -> None:
    some = [movable(number, "ab", 5) for number in range(60)]
    balance = balance_of(some, {"a": 1000, "b": 1000, "c": 2000})
    run(balance, ledgers_of(*some))
    assert balance.is_even
    assert balance.held[C] == pytest.approx(2 * balance.held[A], rel=2 * TOLERANCE)


def test_the_fullest_gives_the_largest_that_fits_to_the_emptiest_first() -> None:
    some = [movable(1, "a", 900), movable(2, "a", 300), movable(3, "a", 100), movable(4, "b", 600)]
    balance = balance_of(some, dict.fromkeys("abcd", 2000))
    move = balance.next_move(ledgers_of(*some), PLAIN)
    assert move == Move(LedgerId(2), A, C, 300), "the mean is 475: 900 is more than an empty bookie may get"


def test_within_the_band_nothing_moves() -> None:
    some = [movable(1, "a", 95), movable(2, "a", 6), movable(3, "b", 99)]
    balance = balance_of(some, {"a": 1000, "b": 1000})
    assert balance.is_even
    assert balance.next_move(ledgers_of(*some), PLAIN) is None
    balance.held[A] += 12  # 113 against 99: 6.6 % above the mean
    assert balance.next_move(ledgers_of(*some), PLAIN) == Move(LedgerId(2), A, B, 6)


def test_a_ledger_that_is_too_large_stays_and_so_does_an_only_one() -> None:
    some = [movable(1, "a", 1000)]
    balance = balance_of(some, {"a": 2000, "b": 2000})
    assert balance.next_move(ledgers_of(*some), PLAIN) is None
    assert not balance.is_even


def test_no_bookie_that_is_a_member_anywhere_in_the_ledger_is_a_target() -> None:
    """It gives nothing back where it stays a member of another fragment, and has a slot there already."""
    some = [
        Movable(LedgerId(1), {A: 50, B: 50, D: 1}, (Slots(Quorums(2, 2, 1), (A, B)), Slots(Quorums(2, 2, 1), (B, D))))
    ]
    balance = balance_of(some, {"a": 1000, "b": 1000, "d": 1000})
    balance.held[A] = balance.held[B] = 600
    assert balance.next_move(ledgers_of(*some), PLAIN) is None
    assert balance.next_move(ledgers_of(movable(1, "ab", 50)), PLAIN) is not None


def test_bookies_and_ledgers_that_are_left_out_take_no_part() -> None:
    some = [movable(1, "a", 100), movable(2, "b", 100), movable(3, "a", 100), movable(4, "b", 100)]
    balance, movables = balance_of(some, dict.fromkeys("abcd", 1000)), ledgers_of(*some)
    move = balance.next_move(movables, PLAIN, no_sources=[A], no_targets=[C], leave=[LedgerId(2)])
    assert move == Move(LedgerId(4), B, D, 100)
    assert balance.next_move(movables, PLAIN, no_targets=[C, D]) is None
    assert balance.next_move(movables, PLAIN, no_sources=[A, B]) is None


def test_a_move_that_would_bring_copies_onto_one_host_is_not_planned() -> None:
    hosts = {A: Location("/r", "1"), B: Location("/r", "2"), C: Location("/r", "2"), D: Location("/r", "4")}
    some = [movable(number, "ab", 10) for number in range(10)]
    balance = balance_of(some, dict.fromkeys("abc", 1000))
    moves = run(balance, ledgers_of(*some), hosts)
    assert moves
    assert {move.source for move in moves} == {B}, "c is on the host of b: it may take its place, not that of a"


def test_a_move_that_was_not_made_counts_for_nothing_and_is_not_tried_again() -> None:
    some = [movable(1, "a", 100), movable(2, "a", 100), movable(3, "a", 50), movable(4, "a", 50)]
    balance, movables = balance_of(some, {"a": 1000, "b": 1000}), ledgers_of(*some)
    first = balance.next_move(movables, PLAIN)
    assert first is not None
    balance.begin(first)
    assert balance.held == {A: 200, B: 100}
    balance.take_back(first.ledger_id)
    assert balance.held == {A: 300, B: 0}
    second = balance.next_move(movables, PLAIN)
    assert second is not None
    assert second.ledger_id != first.ledger_id


def test_ledgers_of_every_size_are_kept_in_bounded_memory() -> None:
    movables = ledgers_of(*(movable(number, "ab", size) for number, size in zip(count(), [3] * 300 + [70] * 300)))
    assert [one.bytes[A] for one in movables.of(A)] == [3] * CLASS_MAX + [70] * CLASS_MAX
    assert movables.left_out == 2 * (600 - 2 * CLASS_MAX)
    assert movables.of(C) == []


@pytest.mark.parametrize("seed", range(60))
def test_it_converges_and_never_moves_a_ledger_twice_whatever_the_cluster(seed: int) -> None:
    """Random clusters: also run again with figures that are a little off, nothing moves back."""
    rng = random.Random(seed)
    names = "abcdefgh"[: rng.randint(2, 8)]
    capacities = {name: rng.choice((1000, 2000, 5000)) * 100 for name in names}
    full = names[: rng.randint(1, len(names))]
    some = [
        movable(number, "".join(rng.sample(full, rng.randint(1, min(3, len(full))))), rng.randint(1, 60))
        for number in range(rng.randint(1, 400))
    ]
    hosts = {BookieId(name): Location(f"/r{rng.randint(0, 2)}", f"h{rng.randint(0, 5)}") for name in names}
    balance, movables = balance_of(some, capacities), ledgers_of(*some)
    before = {one.ledger_id: one for one in some}
    moves = run(balance, movables, hosts)
    assert len({move.ledger_id for move in moves}) == len(moves)
    for move in moves:
        slots = before[move.ledger_id].ensembles[0]
        after = [move.target if name == move.source else name for name in slots.bookies]
        assert len(set(after)) == len(after)
        assert len({hosts[name].host for name in after}) >= len({hosts[name].host for name in slots.bookies})
    # Once more, as after a new look: with figures that differ by less than the tolerance.
    moved = {move.ledger_id: move for move in moves}
    now = [
        one if one.ledger_id not in moved else movable(
            one.ledger_id,
            "".join(moved[one.ledger_id].target if name == moved[one.ledger_id].source else name
                    for name in one.ensembles[0].bookies),
            moved[one.ledger_id].bytes,
        )
        for one in some
    ]  # fmt: skip
    again = balance_of(now, {name: int(size * rng.uniform(0.99, 1.01)) for name, size in capacities.items()})
    back = {(move.target, move.source) for move in moves}
    assert not [move for move in run(again, ledgers_of(*now), hosts) if (move.source, move.target) in back]


def test_an_empty_cluster_is_even() -> None:
    balance = Balance({A: 100, B: 100}, {})
    assert (balance.mean, balance.deviation, balance.is_even) == (0.0, 0.0, True)
    assert balance.next_move(Movables(), PLAIN) is None
    assert Balance({}, {}).deviation == 0.0
