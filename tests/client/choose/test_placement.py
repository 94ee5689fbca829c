"""Which bookies make an ensemble, by table: racks, free space, which are left out, and why none is available."""

import itertools
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from octavo.client.choose.arrangement import Spread
from octavo.client.choose.locations import Location
from octavo.client.choose.placement import WEIGHT_RATIO_MAX, place_ensemble, place_replacements
from octavo.metadata import BookieRegistration, BookieState
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

RACK_BOOKIES_MAX = int(os.environ.get("OCTAVO_RACK_BOOKIES", "3"))
"""Bookies of the largest rack, where all arrangements are tried; ``make soak`` tries larger ones."""


def bookie(
    name: str, rack: str = "/r", *, free_bytes: int | None = None, state: BookieState = BookieState.WRITABLE
) -> BookieRegistration:
    return BookieRegistration(
        bookie_id=BookieId(name), address="h:1", state=state, version="1", boot_id="b", rack=rack, free_bytes=free_bytes
    )


def in_racks(racks: str) -> list[BookieRegistration]:
    """``in_racks("a2 b1")``: bookies a0 and a1 in rack /a, b0 in /b. Slashes make deeper racks: ``x/a2``."""
    groups = [(word[:-1], int(word[-1])) for word in racks.split()]
    return [
        bookie(f"{rack.replace('/', '.')}{number}", f"/{rack}") for rack, count in groups for number in range(count)
    ]


def rack_sets(ensemble: Sequence[BookieId], bookies: Sequence[BookieRegistration], quorums: Quorums) -> list[set[str]]:
    """The racks of each write set."""
    racks = {known.bookie_id: known.rack for known in bookies}
    return [
        {racks[ensemble[position]] for position in quorums.write_set(residue)}
        for residue in range(quorums.ensemble_size)
    ]


SIX = in_racks("r6")
THREE_OF_THREE = Quorums(3, 3, 2)


# --- without racks --------------------------------------------------------------------------------------------------


def test_an_ensemble_is_distinct_writable_bookies_and_none_to_avoid() -> None:
    rng = random.Random(1)
    bookies = [*SIX, bookie("full", state=BookieState.READ_ONLY)]
    for _ in range(200):
        ensemble = place_ensemble(bookies, THREE_OF_THREE, rng=rng, avoid=[BookieId("r0"), BookieId("elsewhere")])
        assert len(set(ensemble)) == 3
        assert set(ensemble) <= {"r1", "r2", "r3", "r4", "r5"}


def test_every_bookie_is_as_likely_at_every_position() -> None:
    rng = random.Random(2)
    seen = [Counter[BookieId]() for _ in range(3)]
    for _ in range(6000):
        for position, bookie_id in enumerate(place_ensemble(SIX, THREE_OF_THREE, rng=rng)):
            seen[position][bookie_id] += 1
    assert all(850 < counter[one.bookie_id] < 1150 for counter in seen for one in SIX)


def test_the_order_in_which_bookies_are_listed_does_not_matter() -> None:
    quorums = Quorums(4, 3, 2)
    one = place_ensemble(SIX, quorums, rng=random.Random(3))
    assert one == place_ensemble(SIX[::-1], quorums, rng=random.Random(3))


def test_too_few_bookies_are_counted_in_the_error_and_those_left_out_are_named() -> None:
    bookies = [*in_racks("r3"), bookie("full", state=BookieState.READ_ONLY)]
    with pytest.raises(NotEnoughBookiesError) as caught:
        place_ensemble(bookies, THREE_OF_THREE, rng=random.Random(0), avoid=[BookieId("r1")])
    assert caught.value.message == (
        "3 writable bookies are needed, there are 2 (read-only: full; not to be used: r1); start more bookies or "
        "choose a smaller ensemble"
    )
    assert caught.value.retryable


def test_of_many_left_out_only_some_are_named() -> None:
    bookies = [bookie(f"full{number}", state=BookieState.READ_ONLY) for number in range(12)]
    with pytest.raises(NotEnoughBookiesError, match=r"full0, .* and 4 more\)"):
        place_ensemble(bookies, THREE_OF_THREE, rng=random.Random(0))


# --- free space -----------------------------------------------------------------------------------------------------


def first_places(bookies: Sequence[BookieRegistration], rounds: int = 6000) -> dict[str, float]:
    """How often each bookie is chosen when one is needed, beside the bookie called ``usual``."""
    rng = random.Random(4)
    alone = Quorums(1, 1, 1)
    counts = Counter(place_ensemble(bookies, alone, rng=rng)[0] for _ in range(rounds))
    return {one.bookie_id: counts[one.bookie_id] / counts[BookieId("usual")] for one in bookies}


@pytest.mark.parametrize(
    ("free_bytes", "likelihood"),
    [(200, 2.0), (50, 0.5), (100, 1.0), (None, 1.0), (10**9, WEIGHT_RATIO_MAX), (0, 1 / WEIGHT_RATIO_MAX)],
)
def test_bookies_are_chosen_as_their_free_space_weighs_within_bounds(free_bytes: int | None, likelihood: float) -> None:
    others = [bookie("usual", free_bytes=100), bookie("usual2", free_bytes=100), bookie("usual3", free_bytes=100)]
    places = first_places([*others, bookie("odd", free_bytes=free_bytes)])
    assert places["odd"] == pytest.approx(likelihood, rel=0.12)
    assert places["usual2"] == pytest.approx(1.0, rel=0.12)


def test_where_all_disks_are_full_or_unknown_all_weigh_the_same() -> None:
    for free_bytes in (0, None):
        places = first_places([bookie("usual", free_bytes=free_bytes), bookie("other", free_bytes=free_bytes)])
        assert places["other"] == pytest.approx(1.0, rel=0.12)


# --- racks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("racks", "sizes", "spread"),
    [
        ("a6", (3, 3, 2), 1),
        ("a1 b1 c1", (3, 3, 2), 3),
        ("a5 b5 c5", (3, 3, 2), 3),
        ("a9 b1", (3, 3, 2), 2),
        ("a3 b3", (6, 3, 2), 2),
        ("a2 b2 c2", (6, 3, 2), 3),
        ("a2 b2 c2", (5, 3, 2), 2),  # five in a ring cannot have three racks in every three neighbours
        ("a3 b1 c1", (5, 2, 2), 1),  # of five in a ring, three of one rack have neighbours among them
        ("a3 b1 c1 d1", (5, 2, 2), 2),
        ("a2 b2 c1", (5, 2, 1), 2),
        ("x/a3 x/b3 y/a3", (3, 3, 2), 3),
    ],
)
def test_every_write_set_spans_as_many_racks_as_can_be(racks: str, sizes: tuple[int, int, int], spread: int) -> None:
    bookies, quorums = in_racks(racks), Quorums(*sizes)
    for seed in range(40):
        ensemble = place_ensemble(bookies, quorums, rng=random.Random(seed))
        assert len(set(ensemble)) == quorums.ensemble_size
        assert min(map(len, rack_sets(ensemble, bookies, quorums))) == spread


def can_span(counts: Mapping[str, int], quorums: Quorums, spread: int) -> bool:
    """Whether some arrangement exists, by trying all."""

    def place(racks: list[str]) -> bool:
        if len(racks) == quorums.ensemble_size:
            return all(
                len({racks[position] for position in quorums.write_set(residue)}) >= spread
                for residue in range(quorums.ensemble_size)
            )
        return any(racks.count(rack) < count and place([*racks, rack]) for rack, count in counts.items())

    return place([])


def test_an_arrangement_is_found_whenever_there_is_one() -> None:
    """All rack sizes of up to four racks, all E up to six, all Qw, every minimum."""
    checked = found = 0
    for sizes in itertools.chain.from_iterable(
        itertools.combinations_with_replacement(range(1, RACK_BOOKIES_MAX + 1), racks) for racks in range(1, 5)
    ):
        bookies = in_racks(" ".join(f"{'abcd'[at]}{count}" for at, count in enumerate(sizes)))
        counts = Counter(one.rack for one in bookies)
        for size in range(1, min(6, len(bookies)) + 1):
            for write_quorum, spread in itertools.product(range(1, size + 1), range(2, 5)):
                if spread > write_quorum:
                    continue
                quorums = Quorums(size, write_quorum, 1)
                expected = can_span(counts, quorums, spread)
                checked += 1
                found += expected
                try:
                    ensemble = place_ensemble(bookies, quorums, rng=random.Random(checked), least=Spread(racks=spread))
                except NotEnoughBookiesError:
                    assert not expected, (sizes, quorums, spread)
                else:
                    assert min(map(len, rack_sets(ensemble, bookies, quorums))) >= spread
    assert checked > found > 300


def test_large_ensembles_are_arranged_in_time() -> None:
    bookies = in_racks("a9 b9 c9 d9 e9 f9 g9")
    quorums = Quorums(63, 7, 3)
    ensemble = place_ensemble(bookies, quorums, rng=random.Random(1), least=Spread(racks=7))
    assert all(len(racks) == 7 for racks in rack_sets(ensemble, bookies, quorums))
    tight = in_racks("a9 b1 c1 d1 e1 f1 g1 h1 i1 j1")
    assert len(place_ensemble(tight, Quorums(18, 2, 1), rng=random.Random(1), least=Spread(racks=2))) == 18


def test_racks_of_different_data_centres_are_farther_apart() -> None:
    bookies = in_racks("x/a3 x/b3 x/c3 y/a3")
    for seed in range(40):
        ensemble = place_ensemble(bookies, THREE_OF_THREE, rng=random.Random(seed))
        assert {bookie_id.split(".")[0] for bookie_id in ensemble} == {"x", "y"}


def test_a_rack_inside_of_a_rack_is_another_one() -> None:
    bookies = [bookie("outer0", "/a"), bookie("outer1", "/a"), bookie("inner", "/a/b")]
    for seed in range(20):
        assert "inner" in place_ensemble(bookies, Quorums(2, 2, 2), rng=random.Random(seed), least=Spread(racks=2))


def test_racks_that_cannot_be_had_are_explained() -> None:
    bookies = [*in_racks("a4 b1"), bookie("full", "/c", state=BookieState.READ_ONLY)]
    with pytest.raises(NotEnoughBookiesError) as caught:
        place_ensemble(bookies, THREE_OF_THREE, rng=random.Random(0), least=Spread(racks=3))
    assert caught.value.message == (
        "the 3 copies of an entry must span 3 racks, and the writable bookies are 4 in /a, 1 in /b (read-only: full); "
        "start bookies in other racks or ask for fewer racks"
    )
    assert len(place_ensemble(bookies, Quorums(3, 2, 2), rng=random.Random(0), least=Spread(racks=1))) == 3


def test_no_more_racks_are_asked_for_than_there_are_copies() -> None:
    assert len(place_ensemble(in_racks("a1 b1"), Quorums(2, 1, 1), rng=random.Random(0), least=Spread(racks=3))) == 2
    assert len(place_ensemble(in_racks("a1 b1"), Quorums(2, 2, 1), rng=random.Random(0), least=Spread(racks=3))) == 2


# --- replacements ---------------------------------------------------------------------------------------------------


def ids(*names: str) -> tuple[BookieId, ...]:
    return tuple(map(BookieId, names))


@pytest.mark.parametrize(
    ("racks", "sizes", "ensemble", "positions", "racks_min", "expected"),
    [
        ("a2 b2 c2", (3, 3, 2), "a0 b0 c0", {1}, 1, [{1: "b1"}]),
        ("a2 b2 c1", (3, 3, 2), "a0 b0 c0", {2}, 1, [{2: "a1"}, {2: "b1"}]),
        ("a2 b1 c1", (3, 3, 2), "a0 b0 c0", {0, 1, 2}, 1, [{0: "a1"}]),  # one spare for three: the first gets it
        ("a2 b2 c2", (3, 3, 2), "a0 b0 c0", {0, 2}, 3, [{0: "a1", 2: "c1"}, {0: "c1", 2: "a1"}]),
        ("a3 b2", (4, 2, 2), "a0 b0 a1 b1", {3}, 1, [{3: "a2"}]),
        ("a2 b2 c2", (4, 2, 2), "a0 b0 a1 c0", {1}, 2, [{1: "b1"}, {1: "c1"}]),
        ("a2 b2 c2", (4, 2, 2), "a0 b0 c0 b1", {3}, 1, [{3: "a1"}, {3: "c1"}]),  # as they come: one rack is spanned
    ],
)
def test_replacements_keep_the_write_sets_spread(  # noqa: PLR0917 - a table's columns
    racks: str,
    sizes: tuple[int, int, int],
    ensemble: str,
    positions: set[int],
    racks_min: int,
    expected: list[dict[int, str]],
) -> None:
    members = ids(*ensemble.split())
    seen = [
        place_replacements(
            in_racks(racks), Quorums(*sizes), members, positions, rng=random.Random(seed), least=Spread(racks=racks_min)
        )
        for seed in range(40)
    ]
    assert sorted(map(str, expected)) == sorted(set(map(str, seen)))


def test_replacement_that_would_narrow_the_write_set_below_the_minimum_is_refused_with_the_reason() -> None:
    with pytest.raises(NotEnoughBookiesError) as caught:
        place_replacements(
            in_racks("a4 b1"), THREE_OF_THREE, ids("a0", "a1", "b0"), {2}, rng=random.Random(0), least=Spread(racks=2)
        )
    assert caught.value.message == (
        "no bookie is available to replace b0: the 3 copies of an entry must span 2 racks, and the other writable "
        "bookies "
        "are 2 in /a; start bookies in other racks"
    )


def test_without_a_spare_the_reason_names_the_bookies_that_cannot_be_taken() -> None:
    bookies = [*in_racks("a4"), bookie("full", state=BookieState.READ_ONLY)]
    with pytest.raises(NotEnoughBookiesError) as caught:
        place_replacements(
            bookies, THREE_OF_THREE, ids("a0", "a1", "a2"), {0, 1}, rng=random.Random(0), avoid=ids("a3")
        )
    assert caught.value.message == (
        "no bookie is available to replace a0, a1: no other writable bookie is there (read-only: full; not to be used: "
        "a3); "
        "start more bookies"
    )


def test_members_that_are_gone_keep_the_rack_they_were_last_seen_in() -> None:
    """``gone`` is not registered: its rack comes from the caller, or counts for none."""
    quorums, ensemble = Quorums(3, 3, 2), ids("a0", "gone", "b0")
    bookies = in_racks("a1 b1 c1 d1")
    for seed in range(20):
        placed = place_replacements(
            bookies,
            quorums,
            ensemble,
            {0},
            rng=random.Random(seed),
            locations={BookieId("gone"): Location("/c", "~gone")},
        )
        assert placed == {0: "d0"}
    with pytest.raises(NotEnoughBookiesError, match="must span 3 racks"):
        place_replacements(bookies, quorums, ensemble, {0}, rng=random.Random(0), least=Spread(racks=3))


def test_of_several_failures_those_are_replaced_that_the_racks_allow() -> None:
    """No bookie of another rack is left for b0; a0 need not wait for that."""
    placed = place_replacements(
        in_racks("a2 b1"), Quorums(2, 2, 1), ids("a0", "b0"), {0, 1}, rng=random.Random(0), least=Spread(racks=2)
    )
    assert placed == {0: "a1"}
