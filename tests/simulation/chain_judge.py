"""The judge of logs: after healing, a new client leads every log, reads all of it, and looks for ledgers left over."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from functools import partial

from octavo.client.client import Client
from octavo.client.log.document import LogState
from octavo.client.log.log import Log
from octavo.client.log.writer import LogWriter
from octavo.protocol.errors import NoSuchLogError, OctavoError
from simulation.chain_history import ChainHistory, Leader
from simulation.chain_workload import PASSWORD
from simulation.history import Violation
from simulation.world import ClientHost, World

ATTEMPTS_MAX = 20
"""Attempts at one step, a second apart, before the universe fails (rule I8). A bookie whose disk was full takes part
again only after its next look at the disk: so many seconds' attempts are added."""

TIDY_ROUNDS = 25
"""Rounds of housekeeping after which no ledger may be left over: a dropped ledger that is never found is looked for
ten times."""


class _LogGoneError(Exception):
    """The log was deleted while it was judged: a delete that a client requested earlier has taken effect."""


class ChainJudge:
    """Checks every log at the end of a universe. Raises :class:`Violation`."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def run(self, host: ClientHost) -> None:
        """Check every log, deleted ones, too."""
        client = await host.connect()
        for chain in list(self.world.chains.chains.values()):
            await self._judge(host, client, chain)
        left_over = self.world.chains.left_over()
        await client.close()
        if left_over:
            raise Violation("L1", f"ledgers {left_over} were made for logs, and no list names them")

    async def _delete(self, client: Client, chain: ChainHistory) -> None:
        """Finish the deletion that another client began."""
        with contextlib.suppress(NoSuchLogError):
            await client.delete_log(chain.name)

    async def _judge(self, host: ClientHost, client: Client, chain: ChainHistory) -> None:
        try:
            if not self._gone(chain):
                await self._examine(host, client, chain)
        except _LogGoneError:
            pass
        if chain.document.state is LogState.DELETED:
            await self._again(host, chain, lambda: self._delete(client, chain))

    def _gone(self, chain: ChainHistory) -> bool:
        return chain.deleted or chain.document.state is LogState.DELETED

    async def _examine(self, host: ClientHost, client: Client, chain: ChainHistory) -> None:
        log = await self._again(host, chain, lambda: client.open_log(chain.name, password=PASSWORD))
        writer = await self._again(host, chain, lambda: log.lead(name="judge"))
        leader = chain.leads(host.name, writer.term)
        await self._again(host, chain, lambda: self._add(writer, leader))
        for one in chain.leaders:
            for number, add in enumerate(one.adds if one is not leader else ()):
                if add.error is not None:
                    happened = await self._again(host, chain, partial(log.outcome, add.error))
                    if happened is None:
                        raise Violation("P6", f"{one} add {number}: its outcome is not known when its term is over")
                    one.outcome(number, happened)
        await writer.close()
        await self._again(host, chain, lambda: self._read_all(log, chain))
        self.world.trace.count("log: judged")
        # What a leader was making when it ended, its successor finds: also this judge, that may have been rolling.
        successor = await self._again(host, chain, lambda: log.lead(name="judge"))
        await successor.close()
        for _ in range(TIDY_ROUNDS):
            await self._again(host, chain, log.retain)
            if not chain.document.dropped:
                break
            await asyncio.sleep(0.2)
        if chain.document.making or chain.document.dropped:
            raise Violation("L1", f"log {chain.name}: {chain.document.making} {chain.document.dropped} are left over")

    async def _add(self, writer: LogWriter, leader: Leader) -> None:
        index = leader.add(b"")
        try:
            position = await writer.add(leader.adds[index].payload)
        except OctavoError as error:
            leader.failed(index, error)
            raise
        leader.acknowledged(index, position)

    async def _read_all(self, log: Log, chain: ChainHistory) -> None:
        end = await log.refresh()
        first = expected = log.first_position
        async for entry in log.entries():
            if entry.position != expected:
                raise Violation("P1", f"log {chain.name}: position {entry.position} after {expected - 1}")
            chain.read(entry)
            expected += 1
        if expected != end:
            raise Violation("P1", f"log {chain.name}: read up to {expected}, its end is {end}")
        chain.check_all(first, end)

    async def _again[T](self, host: ClientHost, chain: ChainHistory, step: Callable[[], Awaitable[T]]) -> T:
        attempts_max = ATTEMPTS_MAX + math.ceil(self.world.plan.bookie["disk_check_seconds"])
        for attempt in range(1, attempts_max + 1):
            try:
                return await step()
            except OctavoError as error:
                what = f"{type(error).__name__} {error.message}"
                self.world.note(host.name, "log %s: %s", chain.name, what)
                if isinstance(error, NoSuchLogError) and self._gone(chain):
                    raise _LogGoneError from error
                if attempt == attempts_max:
                    raise Violation("I8", f"log {chain.name}: {what}") from error
            await asyncio.sleep(1.0)
        raise AssertionError("the last attempt returns or raises")
