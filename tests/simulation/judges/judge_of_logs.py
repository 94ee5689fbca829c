"""The judge of logs: after healing, a new client leads every log, reads all of it, and looks for ledgers left over."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from functools import partial

from octavo.client.client import Client
from octavo.client.log.log import Log
from octavo.client.log.writer.writer import LogWriter
from octavo.metadata.updates.paging import sweep_all
from octavo.protocol.errors import LogExistsError, NoSuchLogError, OctavoError
from simulation.judges.history import Violation
from simulation.judges.log_history import Leader, LogHistory
from simulation.judges.stream_copies import StreamCopies, StreamGoneError
from simulation.judges.stream_history import StreamLogHistory
from simulation.workload.log_impatience import Impatience
from simulation.workload.log_workload import PASSWORD, create_log
from simulation.world import ClientHost, World

ATTEMPTS_MAX = 20
"""Attempts at one step, a second apart, before the universe fails (rule I8). A bookie whose disk was full takes part
again only after its next look at the disk: the attempts of these seconds are added."""

TIDY_ROUNDS = 25
"""Rounds of housekeeping after which no ledger may be left over: a dropped ledger that is never found is looked for
ten times."""


class _LogGoneError(Exception):
    """The log was deleted while it was judged: a delete that a client requested earlier has taken effect."""


class JudgeOfLogs:
    """Checks every log at the end of a universe. Raises :class:`Violation`."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def run(self, host: ClientHost) -> None:
        """Check every log, deleted ones, too."""
        client = await host.connect()
        # What a client asked for before it died may come late, and begin to make another one meanwhile.
        while being_made := [one for one in self.world.log_histories.all.values() if one.is_being_made]:
            await self._make_again(host, client, being_made[0])
        for history in list(self.world.log_histories.all.values()):
            await self._judge(host, client, history)
        await sweep_all(host.store)
        left_over = self.world.log_histories.left_over()
        await client.close()
        if left_over:
            raise Violation("L1", f"{left_over} were made for logs, and belong to none")

    async def _make_again(self, host: ClientHost, client: Client, history: LogHistory) -> None:
        """A client has died while it made the log: another one makes it, and nothing is left of the first."""

        async def create() -> None:
            with contextlib.suppress(LogExistsError):
                await (await create_log(self.world, client, history.name)).close()

        await self._again(host, history, create)
        if not history.deleted and history.is_being_made:
            raise Violation("P13", f"log {history.name}: it was made again, and the first one is still being made")
        self.world.trace.count("log: made again")

    async def _delete(self, client: Client, history: LogHistory) -> None:
        """Finish the deletion that another client began."""
        with contextlib.suppress(NoSuchLogError):
            await client.delete_log(history.name)

    async def _judge(self, host: ClientHost, client: Client, history: LogHistory) -> None:
        try:
            if not self._gone(history):
                await self._examine(host, client, history)
        except _LogGoneError:
            pass
        if history.marked_deleted:
            await self._again(host, history, lambda: self._delete(client, history))

    def _gone(self, history: LogHistory) -> bool:
        return history.deleted or history.marked_deleted

    async def _examine(self, host: ClientHost, client: Client, history: LogHistory) -> None:
        log = await self._again(host, history, lambda: client.open_log(history.name, password=PASSWORD))
        writer = await self._again(host, history, lambda: log.lead(name="judge"))
        leader = history.leads(host.name, writer.term, lambda: writer.end)
        await self._again(host, history, lambda: self._add(writer, leader))
        for one in history.leaders:
            for number, add in enumerate(one.adds if one is not leader else ()):
                if add.error is not None:
                    happened = await self._again(host, history, partial(log.outcome, add.error))
                    if happened is None and not history.forgets(one.term):
                        raise Violation("P6", f"{one} add {number}: its outcome is not known when its term is over")
                    one.outcome(number, happened)
            for indexes, error in list(one.many_in_doubt):
                added = await self._again(host, history, partial(log.added, error))
                if not one.many_added(indexes, error, added) and not history.forgets(one.term):
                    raise Violation("P6", f"{one} adds {indexes}: nothing is known of them when its term is over")
        if self.world.plan.hardships.impatience and not self.world.plan.judge_hindered:
            writer = await self._check_patience(host, log, history, writer, leader)
        await writer.close()
        await self._again(host, history, lambda: self._read_all(log, history))
        if isinstance(history, StreamLogHistory):
            await self._check_copies(client, history)
        self.world.trace.count("log: judged")
        # What a leader was making when it ended, its successor finds: also this judge, that may have been rolling.
        successor = await self._again(host, history, lambda: log.lead(name="judge"))
        await successor.close()
        for _ in range(TIDY_ROUNDS):
            await self._again(host, history, log.retain)
            await self._again(host, history, lambda: sweep_all(host.store))  # as auditors do
            if not history.left_over():
                break
            await asyncio.sleep(0.2)
        if left_over := history.left_over():
            raise Violation("L1", f"log {history.name}: {left_over} are left over")

    async def _check_patience(
        self, host: ClientHost, log: Log, history: LogHistory, writer: LogWriter, leader: Leader
    ) -> LogWriter:
        """Flush and close a writer while adds wait for room. Returns another one."""
        rng = self.world.rng_for(f"patience with {history.name}")
        try:
            await Impatience(self.world, rng, writer, leader).check_patience()
        except OctavoError as error:
            self.world.note(host.name, "patience: %s", f"{type(error).__name__} {error.message}")
        await self._again(host, history, writer.close)
        other = await self._again(host, history, lambda: log.lead(name="judge"))
        history.leads(host.name, other.term, lambda: other.end)
        return other

    async def _check_copies(self, client: Client, history: StreamLogHistory) -> None:
        copies = StreamCopies(self.world, client, history)
        try:
            await copies.compare()
            await copies.check_trimmed()
        except StreamGoneError as error:
            raise _LogGoneError from error

    async def _add(self, writer: LogWriter, leader: Leader) -> None:
        index = leader.add(b"")
        try:
            position = await writer.add(leader.adds[index].payload)
        except OctavoError as error:
            leader.failed(index, error)
            raise
        leader.acknowledged(index, position)

    async def _read_all(self, log: Log, history: LogHistory) -> None:
        end = await log.refresh()
        first = expected = log.first_position
        async for entry in log.entries():
            if entry.position != expected:
                raise Violation("P1", f"log {history.name}: position {entry.position} after {expected - 1}")
            history.read(entry)
            expected += 1
        if expected != end:
            raise Violation("P1", f"log {history.name}: read up to {expected}, its end is {end}")
        history.check_all(first, end)

    async def _again[T](self, host: ClientHost, history: LogHistory, step: Callable[[], Awaitable[T]]) -> T:
        attempts_max = ATTEMPTS_MAX + math.ceil(self.world.plan.bookie["disk_check_seconds"])
        for attempt in range(1, attempts_max + 1):
            try:
                return await step()
            except OctavoError as error:
                what = f"{type(error).__name__} {error.message}"
                self.world.note(host.name, "log %s: %s", history.name, what)
                if isinstance(error, NoSuchLogError) and self._gone(history):
                    raise _LogGoneError from error
                if attempt == attempts_max:
                    raise Violation("I8", f"log {history.name}: {what}") from error
            await asyncio.sleep(1.0)
        raise AssertionError("the last attempt returns or raises")
