"""Which parts of a ledger are settled (rule C2), and when a bookie in doubt is sure of it (rules D3 and D4)."""

from dataclasses import replace

import pytest
from octavo.metadata import LedgerMetadata, LedgerState
from octavo.protocol.ids import BookieId, EntryId
from octavo.repair.settled import (
    named_in_settled,
    ranges_of_member,
    replaceable,
    settled_ranges,
)
from octavo.repair.sureness import SURE_OF_ALL, UNSURE_OF_ALL, first_unsure_id
from support.ledger_metadata import fragment, open_ledger

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
    return [(one.first, one.last, "".join(one.bookies), one.length_after) for one in settled_ranges(metadata)]


def test_earlier_fragments_are_settled_in_every_state_and_the_last_one_only_when_closed() -> None:
    assert spans(OPEN) == spans(IN_RECOVERY) == [(0, 9, "abc", 100)]
    assert spans(CLOSED) == [(0, 9, "abc", 100), (10, 14, "abd", 150)]
    assert spans(open_ledger(7)) == []


def test_an_empty_last_fragment_of_a_closed_ledger_is_settled_and_empty() -> None:
    assert spans(CLOSED_EMPTY_TAIL) == [(0, 9, "abc", 100), (10, 9, "abd", 100)]
    assert [one.is_empty for one in settled_ranges(CLOSED_EMPTY_TAIL)] == [False, True]
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
