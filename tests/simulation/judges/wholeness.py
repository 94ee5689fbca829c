"""Watches from outside until repair has nothing left to do: every copy is where it should be, or is blocked for a true
reason (rule A10)."""

import asyncio

from octavo.client.client import Client
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.paging import walk_stream
from octavo.protocol.errors import NoSuchLedgerError, OctavoError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.audit.holes import ask_members
from octavo.repair.base.planning import BlockedClass
from octavo.repair.operate.operators import RepairStatus, read_status
from simulation.judges.history import Violation
from simulation.judges.stream_history import StreamLogHistory
from simulation.world import ClientHost, World
from support.inside import connections_of

PAUSE_SECONDS = 0.5


async def wait_until_whole(world: World, when: str, seconds: float) -> None:
    """Return once every ledger is closed, and whole on bookies that exist or blocked rightly. Raises
    :class:`Violation`."""
    observer = _Observer()
    waiting = world.host(f"observer {when}").run(observer.run, "observer")
    _, late = await asyncio.wait([waiting], timeout=seconds)
    if late:
        raise Violation("A10", f"{when}, not everything is whole {seconds} s later: {observer.lacking}")


class _Observer:
    """A client that looks again and again."""

    def __init__(self) -> None:
        self.lacking = ""
        """What was found to be lacking last."""

    async def run(self, host: ClientHost) -> None:
        client = await host.connect("observer")
        try:
            while not await self._is_whole(host, client):  # noqa: ASYNC110 - of other machines' doing
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            await client.close()

    async def _is_whole(self, host: ClientHost, client: Client) -> bool:
        world = host.world
        there = frozenset(BookieId(next(reversed(machine.ids))) for machine in world.machines if machine.ids)
        try:
            status = await read_status(host.store)
            for ledger in list(world.history.ledgers.values()):
                if not ledger.deleted and not await self._ledger_is_whole(client, ledger.ledger_id, there, status):
                    return False
            for log in world.log_histories.streams():
                if not log.deleted and not await self._stream_is_whole(host, client, log, there, status):
                    return False
        except OctavoError as error:
            self.lacking = f"{type(error).__name__} {error.message}"
            return False
        return True

    async def _ledger_is_whole(
        self, client: Client, ledger_id: LedgerId, there: frozenset[BookieId], status: RepairStatus
    ) -> bool:
        metadata = await client.ledger_metadata(ledger_id)
        if not metadata.is_closed:
            self.lacking = f"ledger {ledger_id} is {metadata.state.value}"
            return False
        return await self._part_is_whole(client, metadata, there, status)

    async def _stream_is_whole(
        self, host: ClientHost, client: Client, log: StreamLogHistory, there: frozenset[BookieId], status: RepairStatus
    ) -> bool:
        """Whether the stream is at rest, and all members of all its fragments have what they should, also in pages."""
        try:
            root = (await host.store.read_stream(log.document.ledger_id)).value
            async for part in walk_stream(host.store, root):
                if not part.has_end:
                    self.lacking = f"stream {root.ledger_id} is {part.state.value}"
                    return False
                if not await self._part_is_whole(client, part, there, status):
                    return False
        except NoSuchLedgerError:
            return log.deleted
        host.world.trace.count("repair: stream found whole")
        return True

    async def _part_is_whole(
        self, client: Client, metadata: EitherMetadata, there: frozenset[BookieId], status: RepairStatus
    ) -> bool:
        gone = metadata.members - there
        if gone and not _rightly_blocked(metadata, gone, there, status):
            self.lacking = f"ledger {metadata.ledger_id} names {sorted(gone)}"
            return False
        holes = await ask_members(connections_of(client), metadata, there, timeout_seconds=2.0)
        if holes.short or holes.silent:
            self.lacking = f"ledger {metadata.ledger_id}: {holes}"
            return False
        return True


def _rightly_blocked(
    metadata: EitherMetadata, gone: frozenset[BookieId], there: frozenset[BookieId], status: RepairStatus
) -> bool:
    """Whether the ledger is shown as without a target, and every bookie that could be one is a member already, or has a
    condition of its own."""
    shown = any(one.ledger_id == metadata.ledger_id and one.kind is BlockedClass.NO_TARGET for one in status.blocked)
    spare = there - status.states.bookies.keys()
    named = [settled for settled in metadata.settled_ranges() if gone.intersection(settled.bookies)]
    return shown and all(spare <= set(settled.bookies) for settled in named)
