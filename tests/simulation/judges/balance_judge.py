"""Checks every change of the metadata by which a bookie takes the place of one that is well: a move for the sake of
balance (rule A14).

Repair replaces bookies that are lost, drained or retired. So a place is taken for the sake of balance if the bookie
that had it was never one of these. Such a ledger is CLOSED, its source has not given up its copies before, and its
write sets span as many hosts afterwards.
"""

from typing import TYPE_CHECKING

from octavo.metadata.cluster.repair_states import DOCUMENT, decode_states
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.ids import BookieId, LedgerId
from simulation.judges.history import Violation

if TYPE_CHECKING:
    from simulation.world import World

MOVED = "repair: ledger moved for the sake of balance"


class BalanceJudge:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._left: set[BookieId] = set()
        """Bookies whose copies were to be made again, at any time."""

    def document_changed(self, key: str, value: bytes | None) -> None:
        """A document of the metadata has changed."""
        if key.endswith(DOCUMENT):
            self._left |= decode_states(value).leaving

    def check(self, before: LedgerMetadata, after: LedgerMetadata) -> None:
        """Check a new version of a ledger's metadata. Raises :class:`Violation`."""
        known = {fragment.first_entry_id: fragment for fragment in before.fragments}
        for fragment in after.fragments:
            earlier = known.get(fragment.first_entry_id)
            if earlier is None or (earlier is before.last_fragment and not before.is_closed):
                continue
            for position, (old, new) in enumerate(zip(earlier.bookies, fragment.bookies, strict=True)):
                if old != new and old not in self._left:
                    self._world.trace.count(MOVED)
                    self._check_move(before, earlier.bookies, fragment.bookies, position)
        for name in before.members:
            self._check_held(before, name)

    def _check_move(
        self, ledger: LedgerMetadata, before: tuple[BookieId, ...], after: tuple[BookieId, ...], position: int
    ) -> None:
        if not ledger.is_closed:
            raise Violation(
                "A14", f"ledger {ledger.ledger_id} is {ledger.state.value} and is moved off {before[position]}"
            )
        host_of = {name: machine.host or machine.name for machine in self._world.machines for name in machine.ids}
        for residue in range(ledger.ensemble_size):
            places = [(residue + step) % ledger.ensemble_size for step in range(ledger.write_quorum)]
            if position in places:
                was, now = ({host_of[names[at]] for at in places} for names in (before, after))
                if len(now) < len(was):
                    raise Violation("A14", f"ledger {ledger.ledger_id}: moved from {sorted(was)} to {sorted(now)}")

    def check_held(self) -> None:
        """Check that no bookie has given up a ledger that names it. Raises :class:`Violation`."""
        for ledger in self._world.latest_ledgers():
            for name in ledger.members:
                self._check_held(ledger, name)

    def _check_held(self, ledger: LedgerMetadata, name: BookieId) -> None:
        machine = next((one for one in self._world.machines if name in one.ids), None)
        if machine is None or not machine.serving or machine in self._world.unlucky or machine.bookie is None:
            return
        if next(reversed(machine.ids)) == name and _has_dropped(machine.bookie, ledger.ledger_id):
            raise Violation("C8", f"ledger {ledger.ledger_id}: {name} has dropped it, and the metadata name it")


def _has_dropped(bookie: object, ledger_id: LedgerId) -> bool:
    """Whether the bookie has given up what it held of the ledger."""
    return bool(bookie.service.storage.ledgers.get(ledger_id).dropped)  # type: ignore[attr-defined]
