"""Which parts of a ledger are settled (rule C2), and when a bookie in doubt is sure of it (rules D3 and D4)."""

from dataclasses import replace

import pytest
from octavo.metadata import LedgerMetadata, LedgerState
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.places import place
from octavo.protocol.quorums import quorums_of
from octavo.repair.base.settled import named_in_settled, ranges_of_member, replaceable
from octavo.repair.doubt.certainty import SURE_OF_ALL, UNSURE_OF_ALL, first_unsure_id
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.stream_metadata import KEY, open_stream, stream_fragment

OPEN = open_ledger(7, fragment(0, "abc"), fragment(10, "abd", 100))
IN_RECOVERY = OPEN.in_recovery()
CLOSED = OPEN.closed(EntryId(14), 150)
CLOSED_EMPTY_TAIL = OPEN.closed(EntryId(9), 100)
NEVER_WRITTEN = open_ledger(8).closed(None, 0)


def test_a_bookie_is_sure_by_the_metadata_that_it_has_read_and_not_by_older_ones() -> None:
    """The limit of rule D3: what is restored from a dump may name the bookie where it has been replaced since."""
    dumped = open_ledger(7, fragment(0, "abc"))
    me = BookieId("c")
    assert first_unsure_id(dumped, me, holds_all=True) == 0
    assert first_unsure_id(OPEN, me, holds_all=True) is SURE_OF_ALL
    assert first_unsure_id(CLOSED, me, holds_all=True) is SURE_OF_ALL
    assert first_unsure_id(None, me, holds_all=False) is SURE_OF_ALL


def spans(metadata: LedgerMetadata) -> list[tuple[int, int, str, int]]:
    return [(one.first, one.last, "".join(one.bookies), one.length_after) for one in metadata.settled_ranges()]


def test_earlier_fragments_are_settled_in_every_state_and_the_last_one_only_when_closed() -> None:
    assert spans(OPEN) == spans(IN_RECOVERY) == [(0, 9, "abc", 100)]
    assert spans(CLOSED) == [(0, 9, "abc", 100), (10, 14, "abd", 150)]
    assert spans(open_ledger(7)) == []


def test_an_empty_last_fragment_of_a_closed_ledger_is_settled_and_empty() -> None:
    assert spans(CLOSED_EMPTY_TAIL) == [(0, 9, "abc", 100), (10, 9, "abd", 100)]
    assert [one.is_empty for one in CLOSED_EMPTY_TAIL.settled_ranges()] == [False, True]
    assert spans(NEVER_WRITTEN) == [(0, -1, "abc", 0)]


@pytest.mark.parametrize(
    ("old", "new", "first_ids"),
    [
        ("a", "e", [0, 10]), ("c", "e", [0]), ("c", "d", [0]), ("d", "c", [10]), ("a", "d", [0]), ("a", "b", []),
        ("x", "e", []),
    ],
)  # fmt: skip
def test_a_bookie_can_take_a_place_where_it_is_no_member_itself(old: str, new: str, first_ids: list[int]) -> None:
    assert [one.first for one in replaceable(CLOSED, BookieId(old), BookieId(new))] == first_ids


def test_what_a_member_should_hold_are_the_settled_ranges_that_name_it() -> None:
    assert [one.first for one in ranges_of_member(CLOSED, BookieId("a"))] == [0, 10]
    assert [one.first for one in ranges_of_member(OPEN, BookieId("a"))] == [0]
    assert not ranges_of_member(OPEN, BookieId("d"))
    assert BookieId("d") in OPEN.members
    assert not named_in_settled(OPEN, BookieId("d"))
    assert named_in_settled(CLOSED, BookieId("d"))


@pytest.mark.parametrize(
    ("metadata", "bookie", "holds_all", "unsure_from"),
    [
        (None, "a", False, SURE_OF_ALL),
        (CLOSED, "a", True, SURE_OF_ALL),
        (CLOSED, "a", False, UNSURE_OF_ALL),
        (CLOSED, "x", True, SURE_OF_ALL),
        (OPEN, "c", True, SURE_OF_ALL),
        (OPEN, "c", False, UNSURE_OF_ALL),
        (OPEN, "a", True, 10),
        (OPEN, "a", False, UNSURE_OF_ALL),
        (IN_RECOVERY, "a", True, 10),
        (IN_RECOVERY, "c", True, SURE_OF_ALL),
        (open_ledger(7), "a", True, 0),
        # It may have confirmed copies as a joiner, which the metadata do not name yet (rule G3).
        (replace(OPEN, full_copies=FullCopies.REQUIRED), "c", True, 10),
        (replace(OPEN, full_copies=FullCopies.RECORDED), "c", True, SURE_OF_ALL),
        (replace(CLOSED, full_copies=FullCopies.REQUIRED), "c", True, SURE_OF_ALL),
    ],
)
def test_when_a_bookie_is_sure_of_a_ledger_again(
    metadata: LedgerMetadata | None, bookie: str, holds_all: bool, unsure_from: int | None
) -> None:
    assert first_unsure_id(metadata, BookieId(bookie), holds_all=holds_all) == unsure_from


def test_copying_never_ends_the_doubt_about_the_last_fragment_of_a_ledger_that_is_not_closed() -> None:
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):
        metadata = replace(OPEN, state=state)
        for name in metadata.last_fragment.bookies:
            unsure = first_unsure_id(metadata, name, holds_all=True)
            assert unsure is not None
            assert unsure <= metadata.last_fragment.first_entry_id


# --- streams ---------------------------------------------------------------------------------------------------------

STREAM = open_stream(
    stream_fragment(1, 0, 0, "abc"),
    stream_fragment(1, 5, 5, "abd", 100),
    replace(stream_fragment(3, 0, 9, "cde", 200), write_quorum=2),
)
RESTING = STREAM.at_rest(place(3, 7), 900)


def stream_ranges(stream: StreamMetadata) -> list[tuple[int, int, str, int]]:
    return [(one.first, one.last, "".join(one.bookies), one.length_after) for one in stream.settled_ranges()]


def test_ranges_of_a_stream_end_where_the_positions_of_their_fragment_end() -> None:
    """Rule C2: not below the next fragment's first id, which belongs to another term."""
    earlier = [(place(1, 0), place(1, 4), "abc", 100), (place(1, 5), place(1, 8), "abd", 200)]
    for unfinished in (STREAM, STREAM.in_recovery()):
        assert stream_ranges(unfinished) == earlier
        assert not unfinished.has_end
        assert not named_in_settled(unfinished, BookieId("e"))
        assert replaceable(unfinished, BookieId("c"), BookieId("x"))[0].first == place(1, 0)
        assert len(replaceable(unfinished, BookieId("c"), BookieId("x"))) == 1
    for ended in (RESTING, RESTING.closed()):
        assert stream_ranges(ended) == [*earlier, (place(3, 0), place(3, 7), "cde", 900)]
        assert ended.has_end
        assert named_in_settled(ended, BookieId("e"))
    empty = STREAM.at_rest(EntryId(place(3, 0) - 1), 200)
    assert stream_ranges(empty)[2:] == [(place(3, 0), place(3, 0) - 1, "cde", 200)]
    assert empty.settled_ranges()[2].is_empty


def test_the_first_range_of_a_stream_begins_where_it_was_truncated() -> None:
    assert stream_ranges(RESTING.truncated(3)) == [(place(1, 3), place(1, 4), "abc", 100), *stream_ranges(RESTING)[1:]]
    assert stream_ranges(STREAM.truncated(7)) == [(place(1, 7), place(1, 8), "abd", 200)]
    assert stream_ranges(RESTING.truncated(99)) == [(place(3, 0), place(3, 7), "cde", 900)]


def test_each_range_of_a_stream_has_its_own_quorums_and_digest() -> None:
    other = next(digest for digest in Digest if digest is not KEY.digest)
    keys = (KEY, replace(KEY, digest=other))
    stream = replace(RESTING, keys=keys, fragments=(*RESTING.fragments[:2], replace(RESTING.fragments[2], key=1)))
    for truncated in (stream, stream.truncated(6)):
        found = [
            (truncated.quorums_at(one.first), truncated.key_at(one.first).digest) for one in truncated.settled_ranges()
        ]
        assert found[-2:] == [(quorums_of(3, 3, 2), KEY.digest), (quorums_of(3, 2, 2), other)]


@pytest.mark.parametrize(
    ("stream", "holds_all", "floor", "unsure_from"),
    [
        (STREAM, True, None, place(3, 0)),
        (STREAM, True, 3, place(3, 0)),
        (STREAM, True, 4, place(3, 0)),
        (STREAM, True, 2, SURE_OF_ALL),
        (STREAM, False, 2, UNSURE_OF_ALL),
        (STREAM.in_recovery(), True, 3, place(3, 0)),
        (STREAM.in_recovery(), True, 2, SURE_OF_ALL),
        (RESTING, True, None, SURE_OF_ALL),
        (RESTING, True, 3, SURE_OF_ALL),
        (RESTING, False, 3, UNSURE_OF_ALL),
        (RESTING.closed(), True, 3, SURE_OF_ALL),
    ],
)
@pytest.mark.parametrize("bookie", ["a", "c", "e", "x"])
def test_when_a_bookie_is_sure_of_a_stream_again(
    stream: StreamMetadata, holds_all: bool, floor: int | None, unsure_from: int | None, bookie: str
) -> None:
    """Rules D3 and T12: whether the bookie is in the last fragment makes no difference."""
    assert first_unsure_id(stream, BookieId(bookie), holds_all=holds_all, term_floor=floor) == unsure_from
