"""The choice of a gateway for a log: the same everywhere, fair, and it changes no more than it must (rule K9)."""

from collections import Counter

import pytest
from octavo.gateway.leading.choice import chosen

GOLDEN = [3, 2, 2, 3, 1, 1, 2, 1, 3, 2, 3, 1]

LOGS = [f"kafka/orders/{number}" for number in range(1000)]


def test_no_gateway_is_chosen_of_none() -> None:
    assert chosen(LOGS[0], []) is None
    assert chosen(LOGS[0], [7]) == 7


def test_the_choice_does_not_depend_on_the_order_and_no_release_changes_it() -> None:
    """Gateways of two releases run side by side."""
    assert [chosen(name, [3, 1, 2]) for name in LOGS[:12]] == [chosen(name, [1, 2, 3]) for name in LOGS[:12]]
    assert [chosen(name, [1, 2, 3]) for name in LOGS[:12]] == GOLDEN


@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_each_gateway_has_its_share(count: int) -> None:
    shares = Counter(chosen(name, range(1, count + 1)) for name in LOGS)
    assert len(shares) == count
    assert all(0.6 < share * count / len(LOGS) < 1.5 for share in shares.values()), shares


def test_only_logs_of_a_gateway_that_comes_or_goes_move() -> None:
    without, with_it = ([chosen(name, nodes) for name in LOGS] for nodes in ([1, 2, 4], [1, 2, 3, 4]))
    moved = {(old, new) for old, new in zip(without, with_it, strict=True) if old != new}
    assert moved == {(1, 3), (2, 3), (4, 3)}
