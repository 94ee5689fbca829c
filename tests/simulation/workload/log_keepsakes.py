"""Handles of logs that live long: over takeovers, rolls and truncations, and over times in which nothing is done with
them. A standby has one that it opened while the log was at rest; programs have several cursor objects of one name.

When everything is over, a client that has only such a handle must lead as one with a new handle does (rule T14), and
gets nothing that was truncated (rule P7).
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.client.client import Client
from octavo.client.log.log import Log
from octavo.protocol.errors import NoSuchLogError, OctavoError
from simulation.judges.history import Violation
from simulation.judges.log_history import LogHistory
from simulation.world import ClientHost

if TYPE_CHECKING:
    from simulation.world import World

ATTEMPTS_MAX = 20
"""Attempts at leading, a second apart."""


class Standby:
    """A process that opens a log once, at some time, and keeps the handle to the end."""

    def __init__(
        self, world: "World", rng: random.Random, name: str, password: bytes, ended: Callable[[], bool]
    ) -> None:
        self._world = world
        self._rng = rng
        self._name = name
        self._password = password
        self._ended = ended
        self._host: ClientHost | None = None
        self._client: Client | None = None
        self._log: Log | None = None

    async def run(self, host: ClientHost) -> None:
        """Open the log; perhaps read a little, and move cursors; then do nothing with it."""
        self._host, self._client = host, await host.connect()
        plan = self._world.plan
        await asyncio.sleep(self._rng.uniform(0.0, 0.7) * plan.safety_seconds)
        while self._log is None and not self._ended():
            try:
                self._log = await self._client.open_log(self._name, password=self._password)
                self._world.note(host.name, "keeps a handle of log %s", self._name)
                self._world.trace.count("log: handle kept")
            except OctavoError:
                await asyncio.sleep(0.05)
        try:
            while self._log is not None and self._rng.random() < 0.7 and not self._ended():
                await self._move_cursors(self._log)
        except OctavoError as error:
            self._world.note(host.name, "cursors: %s", f"{type(error).__name__} {error.message}")

    async def _move_cursors(self, log: Log) -> None:
        """Several objects of one cursor: none takes back what another has moved."""
        rng, history = self._rng, self._world.log_histories.of(log.log_id)
        cursors = [await log.cursor("kept") for _ in range(2)]
        end = await log.refresh()
        for _ in range(4):
            cursor = rng.choice(cursors)
            if cursor.position < end:
                await cursor.advance(rng.randint(cursor.position, end))
            if rng.random() < 0.4:
                await asyncio.sleep(rng.choice((0.0, 0.01, 0.2)))  # a store in the background begins meanwhile
            highest = max(one.position for one in cursors)
            if rng.random() < 0.4:
                await cursor.flush()
                self._check_cursor(history, history.cursors.get("kept", 0), cursor.position, "was flushed")
            elif rng.random() < 0.5:
                again = await log.cursor("kept")
                self._check_cursor(history, again.position, highest, "was opened again")
        self._world.trace.count("log: cursors moved by several objects")

    def _check_cursor(self, history: LogHistory, is_at: int, was_at: int, what: str) -> None:
        if is_at < was_at and not history.deleted:
            raise Violation("P11", f"log {self._name}: cursor kept stood at {was_at}, {what}, and stands at {is_at}")

    # --- the end ----------------------------------------------------------------------------------------------------

    @property
    def host(self) -> ClientHost | None:
        """Its process, if it lives and has a handle."""
        return self._host if self._log is not None and self._host is not None and self._host.process.alive else None

    async def check(self, host: ClientHost) -> None:
        """Lead with the handle, in the standby's own process, after everything else. Raises :class:`Violation`."""
        assert self._log is not None, "it has a handle"
        assert self._client is not None, "it is connected"
        history = self._world.log_histories.of(self._log.log_id)
        await self._check_truncated(self._log, history)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await self._lead(host, self._log, history)
                break
            except OctavoError as error:
                what = f"{type(error).__name__} {error.message}"
                self._world.note(host.name, "log %s, with the handle that it kept: %s", self._name, what)
                if isinstance(error, NoSuchLogError) and (history.deleted or history.marked_deleted):
                    break
                if attempt == ATTEMPTS_MAX:
                    raise Violation("I8", f"log {self._name}, with a handle that was kept: {what}") from error
            await asyncio.sleep(1.0)
        await self._client.close()

    async def _check_truncated(self, log: Log, history: LogHistory) -> None:
        """What was truncated is not given, although the handle may still know it (rule P7)."""
        position = min(history.truncated, log.end) - 1
        if position < log.first_position:
            return  # as the handle knows already, or it does not know so far
        # By the process's own clock, which runs at four fifths of the right rate at least.
        await asyncio.sleep(1.5 * self._world.plan.client_options.log_truncation_seconds)
        try:
            await log.read(position, position)
        except OctavoError:
            self._world.trace.count("log: truncated entry refused by a handle that was kept")
        else:
            raise Violation("P7", f"log {self._name}: {position} is read, truncated before {history.truncated}")

    async def _lead(self, host: ClientHost, log: Log, history: LogHistory) -> None:
        writer = await log.lead(name=host.name)
        leader = history.leads(host.name, writer.term, lambda: writer.end)
        index = leader.add(b"")
        try:
            leader.acknowledged(index, await writer.add(leader.adds[index].payload))
        except OctavoError as error:
            leader.failed(index, error)
            raise
        finally:
            with contextlib.suppress(OctavoError):
                await writer.close()  # a handle leads once at a time
        self._world.trace.count("log: led with a handle that was kept")
