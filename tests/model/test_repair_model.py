"""Repair beside a recovery, in every order (rules C1 to C5): the production decisions keep every promise, and each of
them broken on purpose is found."""

from collections.abc import Callable, Sequence

import pytest
from model.bookie import BookieState
from model.client import Client
from model.explorer import explore
from model.machine_recovery import MachineRecovery
from model.repair_target import NamesBeforeItStores, RepairsTheLastFragment, RepairTarget, SkipsWhatOneDenies
from model.sealing import PAYLOADS, metadata, sealed
from model.setting import Placement, Setting
from model.world import World
from octavo.protocol.quorums import Quorums

TWO, THREE = Quorums(2, 2, 2), Quorums(3, 3, 2)
A, B, C, D, E = range(5)
ENTRIES = (sealed(0, -1), sealed(1, 0))


def setting(
    kind: type[RepairTarget], quorums: Quorums, fragments: Sequence[tuple[int, str]], holdings: Sequence[str],
    *, acknowledged: int, targets: Sequence[tuple[int, int]], recovers: bool,
) -> Setting:  # fmt: skip
    """``holdings``: the ids that each bookie holds; ``targets``: whom each one replaces, and its own bookie."""

    def clients(_: Placement) -> Sequence[Client]:
        repairing = [kind(old=old, me=me, index=at) for at, (old, me) in enumerate(targets)]
        recovery = MachineRecovery(
            quorums, bookies=len(holdings), horizon=acknowledged + 1, reads_ahead=1, index=len(targets)
        )
        return [*repairing, recovery] if recovers else repairing

    bookies = tuple(BookieState(held=tuple(ENTRIES[int(one)] for one in ids)) for ids in holdings)
    return Setting(
        f"repair, {kind.__name__}",
        quorums,
        len(holdings),
        lambda: [Placement(metadata(quorums, *fragments), bookies, (), acknowledged)],
        clients,
        PAYLOADS[: acknowledged + 1],
        interchangeable_clients=tuple((at,) for at in range(len(targets) + recovers)),
        symmetric=False,
        reduced=False,
    )


def earlier_fragment(kind: type[RepairTarget]) -> Setting:
    """Entry 0 on a and b, the ensemble changed to a and c before entry 1; d takes b's place during a recovery."""
    return setting(
        kind, TWO, [(0, "ab"), (1, "ac")], ["0", "0", "", ""], acknowledged=0, targets=[(B, D)], recovers=True
    )


def two_targets(kind: type[RepairTarget]) -> Setting:
    """d and e both want b's place; a lacks entry 0, which c holds."""
    return setting(
        kind, THREE, [(0, "abc"), (1, "acd")], ["", "0", "0", "", ""], acknowledged=0, targets=[(B, D), (B, E)],
        recovers=False,
    )  # fmt: skip


def last_fragment(kind: type[RepairTarget]) -> Setting:
    """b, which holds two acknowledged entries of the last fragment, is to be replaced by c, which copies the first: no
    target can know where an open fragment ends."""
    return setting(kind, TWO, [(0, "ab")], ["01", "01", ""], acknowledged=1, targets=[(B, C)], recovers=True)


@pytest.mark.parametrize("make", [earlier_fragment, two_targets, last_fragment])
def test_repair_keeps_every_promise(make: Callable[[type[RepairTarget]], Setting]) -> None:
    found = explore(World(make(RepairTarget)))
    assert found.violation is None, str(found.violation)
    assert found.exhausted


@pytest.mark.parametrize(
    ("make", "kind", "promise"),
    [
        (earlier_fragment, NamesBeforeItStores, "I1"),
        (two_targets, SkipsWhatOneDenies, "I1"),
        (last_fragment, RepairsTheLastFragment, "I1"),
    ],
)
def test_a_rule_of_repair_broken_on_purpose_is_found(
    make: Callable[[type[RepairTarget]], Setting], kind: type[RepairTarget], promise: str
) -> None:
    violation = explore(World(make(kind))).violation
    assert violation is not None
    assert violation.what.startswith(promise)
