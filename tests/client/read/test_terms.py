"""What a LAC says to a reader of one term (rule V1)."""

import pytest
from octavo.client.read.terms import confirmed_in, tells_of_later_term
from octavo.protocol.places import last_place, place


@pytest.mark.parametrize(
    ("lac", "confirmed", "later"),
    [
        (place(1, 7), None, False),
        (last_place(1), None, False),
        (place(2, 0) - 1, place(2, 0) - 1, False),
        (place(2, 0), place(2, 0), False),
        (last_place(2), last_place(2), False),
        (place(3, 0) - 1, None, True),
        (place(3, 4), None, True),
    ],
)
def test_a_lac_counts_for_its_own_term(lac: int, confirmed: int | None, later: bool) -> None:
    assert confirmed_in(2, lac) == confirmed
    assert tells_of_later_term(2, lac) == later
