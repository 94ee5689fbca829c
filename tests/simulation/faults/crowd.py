"""A cluster in which repair has more to say than fits: bookies with the longest names that there may be, and so many
ledgers that cannot be repaired that no document holds them all.

Every bookie has a place in every ledger, so that the loss of one leaves them all without a target. The limits of
documents are a fraction of the real ones (``crowd_plan.py``), and so are the numbers of ledgers that reach them.
Auditors change meanwhile, because bookies are killed. When a new machine has joined everything must become whole (rules
A10 and A12).
"""

import asyncio

from octavo.metadata.ledger.model import LedgerState
from octavo.protocol.errors import OctavoError
from octavo.repair.operate.operators import read_status
from simulation.faults.nemesis import Nemesis
from simulation.judges.history import Violation
from simulation.judges.wholeness import wait_until_whole
from simulation.universe import LIVENESS_SECONDS_MAX, START_SECONDS_MAX, Universe
from simulation.workload.workload import Writing
from simulation.world import ClientHost, Machine

_SHORT_SECONDS_MAX = 30.0
"""Virtual time within which an auditor must have told of every ledger that it cannot repair."""


class Crowd(Universe):
    """The course of events of such a universe."""

    async def run(self) -> None:
        world = self.world
        for machine in world.machines:
            machine.start()
        await self._wait_for_bookies(START_SECONDS_MAX)
        await world.host("client-0").run(self._write_all, "writing")
        self._ended = True
        lost = world.machines.pop()
        world.note(lost.name, "is destroyed")
        lost.retired = True
        lost.cut_power()
        nemesis = Nemesis(world)
        striking = asyncio.ensure_future(nemesis.run())
        await asyncio.sleep(self.rng.uniform(4.0, 8.0))
        striking.cancel()
        nemesis.heal()
        await self._wait_for_bookies(LIVENESS_SECONDS_MAX)
        telling = world.host("operator").run(self._wait_until_told, "operator")
        _, late = await asyncio.wait([telling], timeout=_SHORT_SECONDS_MAX)
        if late:
            raise Violation("A12", f"no auditor tells of what cannot be repaired for {_SHORT_SECONDS_MAX} s")
        world.machines.append(newcomer := Machine(world, "bookie-new"))
        newcomer.start()
        await self._wait_for_bookies(START_SECONDS_MAX)
        await wait_until_whole(world, "after a machine has joined", LIVENESS_SECONDS_MAX)
        await self._judge()
        await self._stop()

    async def _write_all(self, host: ClientHost) -> None:
        """Make the ledgers, and close each."""
        client = await host.connect()
        for number in range(self.world.plan.ledgers):
            writing = Writing(self.world, self.world.rng_for(f"writer {number}"), 2, self.ended)
            await writing.run(host, client)
        await client.close()

    async def _wait_until_told(self, host: ClientHost) -> None:
        """Wait until the summary counts all ledgers as blocked, and names as many as there is room for."""
        client = await host.connect()
        closed = [one for one in self.world.history.ledgers.values() if one.current.state is LedgerState.CLOSED]
        while True:
            try:
                status = await read_status(host.store)
            except OctavoError:
                status = None
            summary = None if status is None else status.summary
            if summary is not None and sum(summary.blocked_counts.values()) >= len(closed):
                self.world.trace.count("repair: ledgers blocked at once", len(closed))
                self.world.trace.count("repair: blocked ledgers that had no room", len(closed) - len(summary.blocked))
                break
            await asyncio.sleep(0.2)
        await client.close()
