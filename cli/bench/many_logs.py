"""Many logs, led by one client and followed by another of the same process."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from octavo.cli.bench.ledgers import Shape, run_each
from octavo.cli.bench.log import Layout
from octavo.cli.event_loop import finish
from octavo.cli.session import CommandError, describe, print_error
from octavo.protocol.errors import NoSuchLogError, OctavoError

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.client.log.log import Log
    from octavo.client.log.writer.writer import LogWriter

FOLLOWERS_SECONDS_MAX = 120.0
"""How long the followers may take to receive what has been acknowledged."""


class Received:
    """Counts the entries that all followers together have received, and ends with the first error of one."""

    def __init__(self) -> None:
        self.entries = 0
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: OctavoError | None = None

    def note(self) -> None:
        """A follower has received an entry."""
        self.entries += 1
        if self.entries >= self._wanted:
            self._wake()

    def fail(self, error: OctavoError) -> None:
        """A follower has failed."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_for(self, entries: int, *, seconds_max: float = FOLLOWERS_SECONDS_MAX) -> None:
        """Return once this number has been received. Raises :class:`CommandError` when a follower has failed, or when
        it takes too long."""
        if self.entries < entries and self._error is None:
            self._wanted, self._waiter = entries, asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._waiter, seconds_max)
            except TimeoutError:
                raise CommandError(
                    f"the followers have received {self.entries} of {entries} entries within {seconds_max:g} s"
                ) from None
        if self._error is not None:
            raise CommandError(f"a follower failed: {describe(self._error)}") from self._error


class ManyLogs:
    """The logs of a benchmark: created, led and followed all at once. :func:`many_logs` makes and deletes them."""

    def __init__(self, leader: "Client", follower: "Client", number: int, shape: Shape, layout: Layout) -> None:
        self._leader, self._follower = leader, follower
        self._shape, self._layout = shape, layout
        place = f"octavo-bench/{os.urandom(6).hex()}"
        self._names = [f"{place}/{index}" for index in range(number)]
        self._handles: list[Log] = []
        self._followed: list[Log] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.writers: list[LogWriter] = []
        self.received = Received()

    async def create(self) -> None:
        """Create all logs. Raises what creating raises."""

        async def create(name: str) -> None:
            shape = self._shape
            self._handles.append(
                await self._leader.create_log(
                    *(name, shape.ensemble_size, shape.write_quorum, shape.ack_quorum), layout=self._layout.value
                )
            )

        await run_each(create, self._names)

    async def lead(self) -> None:
        """Lead all logs. Raises what leading raises."""

        async def lead(log: "Log") -> None:
            self.writers.append(await log.lead())

        await run_each(lead, self._handles)

    async def add_to_each(self, payload: bytes) -> None:
        """Add one entry to each log, all at the same time. Raises what adding raises."""
        await run_each(lambda writer: writer.add(payload), self.writers, max(1, len(self.writers)))

    async def follow(self) -> None:
        """Open each log with the other client, and follow it from its beginning. Raises what opening raises."""

        async def open_and_follow(name: str) -> None:
            log = await self._follower.open_log(name)
            self._followed.append(log)
            self._tasks.append(asyncio.create_task(self._receive(log)))

        await run_each(open_and_follow, self._names)

    async def _receive(self, log: "Log") -> None:
        note = self.received.note
        try:
            async for _ in log.follow():
                note()
        except OctavoError as error:
            self.received.fail(error)

    async def stop_following(self) -> None:
        """End all followers and close their handles."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await run_each(lambda log: log.close(), self._followed)
        self._tasks, self._followed = [], []

    async def stop_leading(self) -> None:
        """Close all writers, and then the handles that lead. Raises what closing raises."""
        await run_each(lambda writer: writer.close(), self.writers)
        await run_each(lambda log: log.close(), self._handles)
        self.writers, self._handles = [], []

    async def delete(self) -> None:
        """Delete all logs, after ending what still follows or leads them. Says which could not be deleted."""

        async def delete(name: str) -> None:
            try:
                await self._leader.delete_log(name)
            except NoSuchLogError:
                pass
            except OctavoError as error:
                print_error(f"log {name} could not be deleted: {describe(error)}")

        await self.stop_following()
        try:
            await self.stop_leading()
        except OctavoError as error:
            print_error(f"a writer could not be closed: {describe(error)}")
        await run_each(delete, self._names)


@asynccontextmanager
async def many_logs(clients: Sequence["Client"], number: int, shape: Shape, layout: Layout) -> AsyncIterator[ManyLogs]:
    """``number`` logs of the two clients, the leader and the follower; deleted when the block is left."""
    leader, follower = clients
    logs = ManyLogs(leader, follower, number, shape, layout)
    try:
        yield logs
    finally:
        await finish(logs.delete())
