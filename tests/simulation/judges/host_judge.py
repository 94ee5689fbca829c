"""Checks on which hosts the write sets of ledgers and streams are, whenever their metadata change (rule M6).

What a client must keep to is checked of every version: with ``hosts_per_write_quorum_min`` no write set spans fewer
hosts. That no write set is on one host while another one has a bookie is checked when it is certain that clients could
know: every bookie has served for a while, and no fault has struck meanwhile.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.metadata.ledger.stored import StoredLedger
from octavo.protocol.ids import BookieId, LedgerId
from simulation.judges.history import Violation

if TYPE_CHECKING:
    from simulation.world import World

QUIET_SECONDS = 0.4
"""Longer than a client avoids a bookie that has failed, and than it hears late of one that is back."""


class HostJudge:
    """See the module."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._disturbed_at = 0.0
        self._bookies: dict[LedgerId, tuple[BookieId, ...]] = {}
        """The bookies of each last fragment, as seen last."""
        self.faults_last: Callable[[], bool] = lambda: False
        """Whether a fault of the nemesis has not ended yet."""
        self.checked = 0
        """Changes for which it was certain what clients could know."""

    def disturbed(self) -> None:
        """A fault strikes or ends, or a bookie begins to serve."""
        self._disturbed_at = self._world.loop.now

    def check(self, metadata: StoredLedger) -> None:
        """Check a new version of the metadata of a ledger or a stream. Raises :class:`Violation`."""
        world, fragment = self._world, metadata.last_fragment
        before = self._bookies.get(metadata.ledger_id)
        self._bookies[metadata.ledger_id] = fragment.bookies
        if not world.plan.hardships.hosts or before == fragment.bookies:
            return
        quorums = metadata.quorums_at(fragment.first_entry_id)
        least = world.plan.options.get("hosts_per_write_quorum_min", 1)
        # Striped over an odd number of slots, two hosts do not suffice for every write set.
        if least == 1 and not quorums.striped and self._clients_could_know():
            self.checked += 1
            least = 2
        host_of = {name: machine.host for machine in world.machines for name in machine.ids}
        for residue in range(quorums.ensemble_size):
            members = [fragment.bookies[position] for position in quorums.write_set(residue)]
            hosts = {host_of[name] or "" for name in members}
            if len(hosts) < min(least, quorums.write_quorum):
                raise Violation("M6", f"ledger {metadata.ledger_id}: {members} are on {sorted(hosts)} only")

    def _clients_could_know(self) -> bool:
        world, hardships = self._world, self._world.plan.hardships
        if hardships.absences or hardships.turns or hardships.returns:  # faults of their own, without an end to see
            return False
        if self.faults_last() or not all(machine.serving for machine in world.machines):
            return False
        return world.loop.now - self._disturbed_at > QUIET_SECONDS
