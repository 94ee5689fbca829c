"""Hosts as failure domains of their own (rule M6), by table and against exhaustive search."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from octavo.client.choose.arrangement import Spread
from octavo.client.choose.locations import Location, location_of
from octavo.client.choose.placement import keep_spread, place_ensemble, place_replacements
from octavo.metadata import BookieRegistration, BookieState
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId
from octavo.protocol.quorums import Quorums

THREE = Quorums(3, 3, 2)


def on_hosts(hosts: str) -> list[BookieRegistration]:
    """``on_hosts("r/x2 s/y1 3")``: bookies xr0 and xr1 on host x of rack /r, ys0 on host y of rack /s, and three, own0
    to own2, that register no host. Without a rack, the rack is /r, and not in the name."""
    found = []
    for word in hosts.split():
        rack, _, named = word.rpartition("/")
        host, count = named[:-1], int(named[-1])
        found += [
            BookieRegistration(
                bookie_id=BookieId(f"{host or 'own'}{rack}{number}"), address="h:1", state=BookieState.WRITABLE,
                version="1", boot_id="b", rack=f"/{rack or 'r'}", host_id=host or None,
            )
            for number in range(count)
        ]  # fmt: skip
    return found


def spread_of(ensemble: Sequence[BookieId], bookies: Sequence[BookieRegistration], quorums: Quorums) -> Spread:
    """The fewest racks, and the fewest hosts, that a write set spans."""
    where = {one.bookie_id: location_of(one) for one in bookies}
    sets = [[where[ensemble[at]] for at in quorums.write_set(residue)] for residue in range(quorums.ensemble_size)]
    return Spread(min(len({one.rack for one in of}) for of in sets), min(len({one.host for one in of}) for of in sets))


@pytest.mark.parametrize(
    ("hosts", "sizes", "spread"),
    [
        ("x6", (3, 3, 2), (1, 1)),  # a cluster on one machine
        ("x5 y1", (3, 3, 2), (1, 2)),
        ("x5 y5 z5", (3, 3, 2), (1, 3)),
        ("x5 y5 z5", (6, 3, 2), (1, 3)),
        ("x2 y2 z1", (5, 3, 2), (1, 2)),
        ("x4 2", (3, 3, 2), (1, 3)),  # bookies that register no host are hosts of their own
        ("x4 1", (2, 2, 1), (1, 2)),
        ("3", (3, 3, 2), (1, 3)),
        ("r/x2 r/y2 s/z2", (3, 3, 2), (2, 3)),
        ("r/x4 s/y4", (4, 3, 2), (2, 2)),
        ("r/x1 s/y1 t/z1", (3, 3, 2), (3, 3)),
        ("r/x3 s/x3 t/x3 r/y1", (3, 3, 2), (3, 2)),  # racks that share a host: never three copies on it
        ("r/x3 s/x3 t/x3 y1", (2, 2, 2), (2, 2)),
        ("r/x1 s/x1 t/x1 r/y2", (3, 3, 2), (3, 2)),
        ("r/x1 s/x1 r/y2", (2, 2, 1), (2, 2)),
        ("r/x1 s/x1", (2, 2, 1), (2, 1)),
    ],
)
def test_write_sets_span_as_many_racks_as_can_be_then_hosts_and_never_one_host_if_there_are_others(
    hosts: str, sizes: tuple[int, int, int], spread: tuple[int, int]
) -> None:
    bookies, quorums = on_hosts(hosts), Quorums(*sizes)
    for seed in range(40):
        ensemble = place_ensemble(bookies, quorums, rng=random.Random(seed))
        assert len(set(ensemble)) == quorums.ensemble_size
        assert spread_of(ensemble, bookies, quorums) == spread


def best_spread(bookies: Sequence[BookieRegistration], quorums: Quorums, least: Spread) -> Spread | None:
    """What is best by trying all: two hosts, then the most racks, then the most hosts."""
    counts = Counter(map(location_of, bookies))
    found: set[Spread] = set()
    for arranged in itertools.product(counts, repeat=quorums.ensemble_size):
        if all(number <= counts[one] for one, number in Counter(arranged).items()):
            sets = [[arranged[at] for at in quorums.write_set(of)] for of in range(quorums.ensemble_size)]
            racks = min(len({one.rack for one in of}) for of in sets)
            found.add(Spread(racks, min(len({one.host for one in of}) for of in sets)))
    allowed = [
        one
        for one in found
        if one.racks >= min(least.racks, quorums.write_quorum) and one.hosts >= min(least.hosts, quorums.write_quorum)
    ]
    return max(allowed, key=lambda one: (one.hosts >= 2, one.racks, one.hosts), default=None)


def test_the_best_arrangement_is_found_whenever_there_is_one() -> None:
    """Up to two racks, up to three hosts, also one that is in both racks; all E up to four, all Qw, some minimums."""
    layouts = [
        " ".join(f"{rack}/{host}{count}" for rack, host, count in zip(racks, "xyz", counts, strict=False))
        for number in range(1, 4)
        for racks in itertools.combinations_with_replacement("rs", number)
        for counts in itertools.product((1, 3), repeat=number)
    ] + ["r/x2 s/x1 r/y1", "r/x1 s/x2 s/y2", "r/x2 s/x2 r/y1 s/z1", "r/x1 r/x1 s/x1 1"]
    checked = refused = 0
    for layout in layouts:
        bookies = [*{one.bookie_id: one for one in on_hosts(layout)}.values()]
        for size in range(1, min(4, len(bookies)) + 1):
            for write_quorum, least in itertools.product(range(1, size + 1), (Spread(), Spread(1, 2), Spread(2, 3))):
                quorums = Quorums(size, write_quorum, 1)
                expected = best_spread(bookies, quorums, least)
                checked += 1
                try:
                    ensemble = place_ensemble(bookies, quorums, rng=random.Random(checked), least=least)
                except NotEnoughBookiesError:
                    refused += 1
                    assert expected is None, (layout, quorums, least)
                else:
                    assert spread_of(ensemble, bookies, quorums) == expected, (layout, quorums, least)
    assert checked > 500
    assert 0 < refused < checked / 2


def test_every_bookie_is_as_likely_where_hosts_have_the_same_number() -> None:
    rng, bookies = random.Random(5), on_hosts("x2 y2 z2")
    seen = [Counter[BookieId]() for _ in range(3)]
    for _ in range(6000):
        for position, bookie_id in enumerate(place_ensemble(bookies, THREE, rng=rng)):
            seen[position][bookie_id] += 1
    assert all(850 < counter[one.bookie_id] < 1150 for counter in seen for one in bookies)


def test_large_clusters_are_arranged_in_time() -> None:
    bookies = on_hosts(" ".join(f"{rack}/{rack}{host}4" for rack in "abcdefg" for host in "uvw"))
    quorums = Quorums(63, 7, 3)
    ensemble = place_ensemble(bookies, quorums, rng=random.Random(1), least=Spread(7, 7))
    assert spread_of(ensemble, bookies, quorums) == (7, 7)
    tight = on_hosts("a9 b1 c1 d1 e1 f1 g1 h1 i1 j1")
    assert (
        spread_of(place_ensemble(tight, Quorums(18, 2, 1), rng=random.Random(1)), tight, Quorums(18, 2, 1)).hosts == 2
    )


# --- the minimum ----------------------------------------------------------------------------------------------------


def test_hosts_that_cannot_be_had_are_explained() -> None:
    with pytest.raises(NotEnoughBookiesError) as caught:
        place_ensemble(on_hosts("x4 y1"), THREE, rng=random.Random(0), least=Spread(hosts=3))
    assert caught.value.message == (
        "the 3 copies of an entry must span 3 hosts, and the writable bookies are 4 on x, 1 on y; start bookies on "
        "other hosts or ask for fewer hosts"
    )
    assert caught.value.retryable


def test_what_keeps_the_copies_together_is_named_whether_racks_or_hosts() -> None:
    bookies = on_hosts("r/x2 s/x1 1")
    with pytest.raises(NotEnoughBookiesError, match=r"must span 3 hosts in 2 racks, and .* 3 on x, 1 on a host of its"):
        place_ensemble(bookies, THREE, rng=random.Random(0), least=Spread(2, 3))
    with pytest.raises(
        NotEnoughBookiesError, match=r"must span 3 racks, and .* 3 in /r, 1 in /s; start bookies in other"
    ):
        place_ensemble(bookies, THREE, rng=random.Random(0), least=Spread(3, 3))


def test_of_many_hosts_only_some_are_named() -> None:
    bookies = on_hosts(" ".join(f"{host}1" for host in "abcdefghijkl"))
    with pytest.raises(NotEnoughBookiesError, match=r"must span 2 racks"):
        place_ensemble(bookies, THREE, rng=random.Random(0), least=Spread(2, 3))
    few = [*on_hosts("a2 b2 c2 d2 e2 f2 g2 h2 i2 j2")]
    with pytest.raises(NotEnoughBookiesError, match=r"span 11 hosts, .* and others on 2 hosts; start"):
        place_ensemble(few, Quorums(11, 11, 6), rng=random.Random(0), least=Spread(hosts=11))


def test_no_more_hosts_are_asked_for_than_there_are_copies() -> None:
    for sizes in ((2, 1, 1), (2, 2, 1)):
        assert len(place_ensemble(on_hosts("x1 y1"), Quorums(*sizes), rng=random.Random(0), least=Spread(1, 3))) == 2


def test_one_host_is_refused_where_two_are_asked_for_and_taken_where_not() -> None:
    with pytest.raises(NotEnoughBookiesError, match="must span 2 hosts, and the writable bookies are 3 on x"):
        place_ensemble(on_hosts("x3"), THREE, rng=random.Random(0), least=Spread(hosts=2))
    assert len(place_ensemble(on_hosts("x3"), THREE, rng=random.Random(0))) == 3


# --- replacements ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "sizes", "ensemble", "positions", "least", "expected"),
    [
        ("x2 y2 z2", (3, 3, 2), "x0 y0 z0", {1}, Spread(), [{1: "y1"}]),
        ("x2 y2 z1", (3, 3, 2), "x0 y0 z0", {2}, Spread(), [{2: "x1"}, {2: "y1"}]),  # better than two copies
        ("x2 y2 z1 1", (3, 3, 2), "x0 y0 z0", {2}, Spread(), [{2: "own0"}]),
        ("x3 y1", (3, 3, 2), "x0 x1 y0", {2}, Spread(), [{2: "x2"}]),  # no other host is there
        ("x3 y2", (3, 3, 2), "x0 x1 y0", {2}, Spread(), [{2: "y1"}]),
        ("x2 y2 z2", (3, 3, 2), "x0 y0 z0", {0, 2}, Spread(hosts=3), [{0: "x1", 2: "z1"}, {0: "z1", 2: "x1"}]),
        ("x2 y2 z2", (4, 2, 2), "x0 y0 x1 z0", {1}, Spread(hosts=2), [{1: "y1"}, {1: "z1"}]),
        ("r/x1 s/x1 t/x1 r/y1", (3, 3, 2), "xr0 xs0 gone", {2}, Spread(), [{2: "yr0"}]),  # rather than a third rack
        ("r/x2 s/y2 s/z1", (3, 3, 2), "xr0 ys0 zs0", {0}, Spread(), [{0: "xr1"}]),
        ("r/x2 s/y2 s/z1", (3, 3, 2), "xr0 ys0 zs0", {2}, Spread(), [{2: "ys1"}, {2: "xr1"}]),
    ],
)
def test_replacements_keep_the_copies_on_different_hosts(  # noqa: PLR0917 - a table's columns
    hosts: str,
    sizes: tuple[int, int, int],
    ensemble: str,
    positions: set[int],
    least: Spread,
    expected: list[dict[int, str]],
) -> None:
    members = tuple(map(BookieId, ensemble.split()))
    seen = [
        place_replacements(on_hosts(hosts), Quorums(*sizes), members, positions, rng=random.Random(seed), least=least)
        for seed in range(40)
    ]
    assert sorted(map(str, expected)) == sorted(set(map(str, seen)))


def test_replacement_on_the_hosts_of_the_other_members_is_refused_where_a_minimum_says_so() -> None:
    with pytest.raises(NotEnoughBookiesError) as caught:
        place_replacements(
            on_hosts("x2 y1"), Quorums(2, 2, 1), (BookieId("x0"), BookieId("y0")), {1},
            rng=random.Random(0), least=Spread(hosts=2),
        )  # fmt: skip
    assert caught.value.message == (
        "no bookie is available to replace y0: the 2 copies of an entry must span 2 hosts, and the other writable "
        "bookies are 1 on x; start bookies on other hosts"
    )


def test_member_that_is_gone_keeps_the_host_it_was_last_seen_on() -> None:
    bookies, ensemble = on_hosts("x1 y1 z1"), (BookieId("x0"), BookieId("gone"))
    for seed in range(20):
        placed = place_replacements(
            bookies, Quorums(2, 2, 1), ensemble, {0}, rng=random.Random(seed),
            locations={BookieId("gone"): Location("/r", "y")},
        )  # fmt: skip
        assert placed == {0: "z0"}
    with pytest.raises(NotEnoughBookiesError, match="must span 2 hosts"):
        place_replacements(bookies, Quorums(2, 2, 1), ensemble, {0}, rng=random.Random(0), least=Spread(hosts=2))


def test_members_that_the_new_bookie_shares_no_write_set_with_do_not_keep_it_away() -> None:
    """Four slots of one rack are as they are; c0 is with none of its neighbours in a rack, so it is taken."""
    bookies = on_hosts("a/u1 a/v1 a/w1 a/x1 b/y1 c/z1 1")
    ensemble = tuple(map(BookieId, ("ua0", "va0", "wa0", "xa0", "yb0", "own0")))
    placed = place_replacements(bookies, Quorums(6, 2, 1), ensemble, {5}, rng=random.Random(0), least=Spread(racks=2))
    assert placed == {5: "zc0"}


# --- a part of the replacements -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("replacements", "least", "kept"),
    [
        ({0: "y1", 1: "x1"}, Spread(hosts=3), {0: "y1", 1: "x1"}),  # together they change the hosts of two slots
        ({0: "y1"}, Spread(hosts=3), {}),  # alone it is with y0 on one host
        ({1: "x1"}, Spread(hosts=3), {}),
        ({1: "x1"}, Spread(hosts=2), {1: "x1"}),
        ({1: "x1"}, Spread(), {1: "x1"}),
        ({0: "x1", 1: "x2"}, Spread(hosts=3), {0: "x1"}),  # the first keeps its host
        ({1: "y1", 2: "x1"}, Spread(hosts=3), {1: "y1"}),
        ({1: "elsewhere"}, Spread(hosts=3), {}),  # where it is was never seen
        ({1: "s0"}, Spread(racks=2), {1: "s0"}),
        ({1: "y1"}, Spread(racks=2), {}),
    ],
)
def test_of_replacements_placed_together_those_are_kept_that_hold_without_the_others(
    replacements: dict[int, str], least: Spread, kept: dict[int, str]
) -> None:
    where = {one.bookie_id: location_of(one) for one in on_hosts("x3 y3 z3")} | {BookieId("s0"): Location("/s", "q")}
    ensemble = (BookieId("x0"), BookieId("y0"), BookieId("z0"))
    changes = {at: BookieId(name) for at, name in replacements.items()}
    assert keep_spread(THREE, ensemble, changes, where, least) == kept


def test_replacements_are_judged_by_the_write_sets_that_they_enter() -> None:
    """Slots 0 and 1 share a host, and no entry of theirs is in slot 3."""
    where = {one.bookie_id: location_of(one) for one in on_hosts("x3 y3 z3")}
    ensemble = tuple(map(BookieId, ("x0", "x1", "y0", "z0")))
    assert keep_spread(Quorums(4, 2, 1), ensemble, {3: BookieId("z1")}, where, Spread(hosts=2)) == {3: "z1"}
    assert keep_spread(Quorums(4, 2, 1), ensemble, {3: BookieId("y1")}, where, Spread(hosts=2)) == {}
