"""The applications of a universe with logs: they lead, duel, roll, stand still, follow, move cursors, truncate, take
the lead away by hand and delete. Each accepts every :class:`OctavoError` as a result; the history checks what is legal.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from octavo.client.client import Client
from octavo.client.log.documents.chain import Retention
from octavo.client.log.documents.key_window import KeyWindow
from octavo.client.log.documents.names import lock_name
from octavo.client.log.documents.terms import stream_term
from octavo.client.log.log import Log
from octavo.client.log.seam.entries import Gap, LogEntry, OnTruncated
from octavo.client.log.writer.writer import LogWriter
from octavo.metadata.stream.changes import BeginTakeover
from octavo.metadata.updates.update import update_stream
from octavo.protocol.entries import Digest
from octavo.protocol.errors import (
    InternalError,
    InvalidArgumentError,
    LogExistsError,
    NoSuchLogError,
    OctavoError,
    PositionMismatchError,
    TruncatedError,
)
from octavo.protocol.quorums import Quorums
from simulation.judges.chain_history import ChainHistory
from simulation.judges.history import Violation
from simulation.judges.key_history import KEYS, WINDOW_ENTRIES
from simulation.judges.log_history import Fate, Leader, LogHistory
from simulation.judges.stream_history import StreamLogHistory
from simulation.plan import Plan
from simulation.workload.log_books import full_copies_of
from simulation.workload.log_impatience import Impatience, ask_how_many
from simulation.workload.log_keys import add_with_key, ask_for_key
from simulation.workload.workload import note_answer
from simulation.world import ClientHost, World

PASSWORD = b"secret"

OUTCOME_ATTEMPTS = 3
"""Times that an application asks what became of an add in doubt, while that is not known."""


async def create_log(world: World, client: Client, name: str, rng: random.Random | None = None) -> Log:
    """Create a log as the plan has it."""
    plan, (ensemble, write, ack) = world.plan, world.plan.quorums
    return await client.create_log(
        name, ensemble, write, ack, password=PASSWORD, private=plan.guarded,
        digest=Digest.CRC32C if rng is None else rng.choice((Digest.CRC32C, Digest.HMAC_SHA256)),
        retention=Retention(plan.log_retain_seconds or None, plan.log_retain_bytes or None, plan.log_retain_cursors),
        layout="stream" if plan.log_streams else "chain", full_copies=full_copies_of(plan, name),
        keys=KeyWindow(WINDOW_ENTRIES, None) if plan.hardships.keyed else None,
    )  # fmt: skip


class LogApplication:
    """What the applications of one log have in common."""

    def __init__(self, world: World, rng: random.Random, name: str, ended: Callable[[], bool]) -> None:
        self.world = world
        self.rng = rng
        self.name = name
        self.ended = ended
        self._kept: tuple[Client, Log] | None = None
        """The handle that is used again, and its client."""
        self._keys = world.rng_for(f"keys of {name} {type(self).__name__}") if world.plan.hardships.keyed else None
        self._keeping = (
            world.rng_for(f"handles of {name} {type(self).__name__}") if world.plan.hardships.keepsakes else None
        )

    async def run(self, host: ClientHost, client: Client) -> None:
        """Run until the safety phase has ended."""
        while not self.ended():
            await asyncio.sleep(self.rng.uniform(0.0, self._pause_seconds))
            if self.ended():
                return
            known = {log_id: history.truncated for log_id, history in self.world.log_histories.all.items()}
            kept, self._kept = self._kept, None
            try:
                log = kept[1] if kept is not None and kept[0] is client else await self._open(client)
            except OctavoError as error:
                self._note(host, "open", error)
                continue
            history = self.world.log_histories.of(log.log_id)
            try:
                if not history.deleted and kept is None:
                    history.opened(log.first_position, known.get(log.log_id, 0))
                await self._use(host, log, history)
            except OctavoError as error:
                self._note(host, "use", error)
            else:
                if self._keeping is not None and self._keeping.random() < 0.8:
                    self._kept = client, log
            finally:
                if self._kept is None:
                    with contextlib.suppress(OctavoError):
                        await log.close()

    _pause_seconds = 0.3

    async def _open(self, client: Client) -> Log:
        return await client.open_log(self.name, password=PASSWORD)

    async def _use(self, host: ClientHost, log: Log, history: LogHistory) -> None:
        raise NotImplementedError

    def _note(self, host: ClientHost, what: str, error: OctavoError) -> None:
        note_answer(self.world, host.name, f"{type(self).__name__}: {what}", error)

    def _read(self, history: LogHistory, entry: LogEntry) -> None:
        self.world.trace.count("log: entries read")
        history.read(entry)


class Leading(LogApplication):
    """Creates the log if there is none, leads it for a while, adds, and leads it again."""

    _pause_seconds = 0.1

    def __init__(self, world: World, rng: random.Random, name: str, adds: int, ended: Callable[[], bool]) -> None:
        super().__init__(world, rng, name, ended)
        self.adds = adds
        self._bursts = rng.choice(((1,), (1, 1, 5), (1, 5, 20)))
        seconds = world.plan.safety_seconds * rng.choice((0.3, 1.0))
        self._pause = 2 * seconds * (sum(self._bursts) / len(self._bursts)) / max(adds, 1)
        self._cancels = rng.random() < 0.3
        self._duels = rng.choice((0.0, 0.3, 1.0))
        """How often it does not wait for the lock."""
        self._changing = world.rng_for(f"quorums of {name}")
        self._impatient = (
            world.rng_for(f"impatience of {name} {rng.random()}") if world.plan.hardships.impatience else None
        )

    async def run(self, host: ClientHost, client: Client) -> None:
        while self.adds > 0 and not self.ended():
            await super().run(host, client)

    async def _open(self, client: Client) -> Log:
        try:
            return await super()._open(client)
        except NoSuchLogError:
            with contextlib.suppress(LogExistsError):
                return await create_log(self.world, client, self.name, self.rng)
            return await super()._open(client)

    async def _use(self, host: ClientHost, log: Log, history: LogHistory) -> None:
        rng, world = self.rng, self.world
        try:
            async with asyncio.timeout(rng.uniform(0.5, 4.0)):
                duels = rng.random() < self._duels
                writer = await (log.take_over() if duels else log.lead(name=host.name))
        except TimeoutError as error:
            if isinstance(error, OctavoError):
                raise
            world.trace.count("log: gave up leading")
            return
        leader = history.leads(host.name, writer.term, lambda: writer.end)
        leader.has_lock, leader.began_at = not duels, world.loop.now
        if not duels:
            world.absences.leads(host.process, lock_name(log.log_id), leader, history.leaders)
        world.trace.count("log: leaders")
        world.note(host.name, "leads log %s in term %d", self.name, writer.term)
        try:
            await self._add_all(host, log, writer, leader)
        except OctavoError as error:
            self._note(host, f"writer of term {writer.term}", error)
        finally:
            if rng.random() < 0.8:
                with contextlib.suppress(OctavoError):
                    await writer.close()
            # Otherwise it stays a leader that does nothing, until another takes over or the client is closed.
        await self._ask_outcomes(host, log, leader)

    async def _add_all(self, host: ClientHost, log: Log, writer: LogWriter, leader: Leader) -> None:
        rng, plan = self.rng, self.world.plan
        pending: dict[asyncio.Future[Any], None] = {}
        left = min(self.adds, rng.choice((3, 10, 40)))
        impatience = Impatience(self.world, self._impatient, writer, leader) if self._impatient is not None else None
        while left > 0 and not writer.lost.is_set():
            if impatience is not None and rng.random() < 0.6:
                left -= impatience.begin()
            burst = min(rng.choice(self._bursts), left)
            for _ in range(burst):
                filling = rng.randbytes(rng.randrange(plan.entry_bytes_max + 1))
                task = asyncio.ensure_future(self._add(writer, leader, filling))
                pending[task] = None
                task.add_done_callback(lambda finished: pending.pop(finished, None))
                if self._cancels and rng.random() < 0.2:
                    asyncio.get_running_loop().call_later(rng.uniform(0, 0.02), task.cancel)
            left -= burst
            self.adds -= burst
            if rng.random() < 0.1:
                await self._disturb(log, writer, leader)
            if rng.random() < 0.3 and pending and not plan.steady:
                await asyncio.wait(list(pending), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self._pause * rng.random())
        if rng.random() < 0.2:
            await asyncio.sleep(rng.uniform(0.0, 1.0))
        if impatience is not None:
            pending |= impatience.pending
        if pending and rng.random() < 0.8:
            await asyncio.wait(list(pending))

    async def _disturb(self, log: Log, writer: LogWriter, leader: Leader) -> None:
        if self.rng.random() >= 0.5:
            await truncate(self.world, log, leader.log, self.rng)
        elif isinstance(leader.log, StreamLogHistory) and self._changing.random() < 0.5:
            await self._change_quorums(writer, leader.log)
        else:
            await writer.roll()

    async def _change_quorums(self, writer: LogWriter, history: StreamLogHistory) -> None:
        """Store what comes with other quorums, and check that they stand if the leader was told so."""
        size, write, ack = wanted = self._changing.choice(other_quorums(self.world.plan))
        await writer.change(ensemble_size=size, write_quorum=write, ack_quorum=ack)
        self.world.trace.count("log: quorums changed")
        if history.deleted or writer.lost.is_set():
            return
        last = history.roots.current.last_fragment
        if last.first_term == stream_term(writer.term) and last.quorums != Quorums(*wanted):
            raise Violation("T13", f"log {self.name}: {writer} has changed to {wanted}; {last.quorums} stand")

    async def _add(self, writer: LogWriter, leader: Leader, filling: bytes) -> None:
        world, rng = self.world, self.rng
        if self._keys is not None and self._keys.random() < 0.7:
            await add_with_key(world, writer, leader, filling, self._keys.choice(KEYS))
            return
        index = leader.add(filling)  # in the step in which the writer is given it: they have the same order
        add = leader.adds[index]
        expected = writer.end + rng.choice((0, 0, 1)) if rng.random() < 0.05 else None
        try:
            position = await writer.add(add.payload, expected_position=expected)
        except PositionMismatchError:
            self._judge(leader.not_added, index)
        except OctavoError as error:
            if isinstance(error, InternalError):
                world.violate(Violation("no defects", f"{leader} add {index}: {error.message}"))
            world.trace.count(f"log: add failed: {type(error).__name__}")
            self._judge(leader.failed, index, error)
        except asyncio.CancelledError:
            if add.fate is Fate.PENDING:
                add.fate = Fate.CANCELLED
            raise
        else:
            world.trace.count("log: adds acknowledged")
            if expected is not None and position != expected:
                world.violate(Violation("P12", f"{leader} add {index}: expected {expected}, got {position}"))
            self._judge(leader.acknowledged, index, position)

    def _judge(self, verdict: Callable[..., None], *arguments: Any) -> None:
        try:
            verdict(*arguments)
        except Violation as violation:
            self.world.violate(violation)

    async def _ask_outcomes(self, host: ClientHost, log: Log, leader: Leader) -> None:
        for index, add in enumerate(leader.adds):
            for _ in range(OUTCOME_ATTEMPTS if add.error is not None else 0):
                if add.error is None:
                    break
                try:
                    leader.outcome(index, await log.outcome(add.error))
                except OctavoError as error:
                    self._note(host, f"outcome of add {index}", error)
                    if self.ended():
                        return
                await asyncio.sleep(0.05)
        await ask_how_many(
            self.world, log, leader, attempts=OUTCOME_ATTEMPTS, note=lambda what, error: self._note(host, what, error)
        )


def other_quorums(plan: Plan) -> list[tuple[int, int, int]]:
    """What leaders change the quorums of a log to and fro. The ack quorum stays: the plan allows for as many lost disks
    as it bears."""
    size, write, ack = plan.quorums
    fewest = max(ack, plan.copies_min)
    return [(size, write, ack), (write, write, ack), (size, size, ack), (fewest, fewest, ack)]


class Following(LogApplication):
    """Follows the log from a position or a cursor, or reads a range of it."""

    async def _use(self, host: ClientHost, log: Log, history: LogHistory) -> None:
        rng = self.rng
        if self._keys is not None and self._keys.random() < 0.5:
            await ask_for_key(self.world, log, history, self._keys.choice(KEYS))
        kind = rng.random()
        if kind < 0.15:
            await self._read_range(log, history)
        elif kind < 0.4:
            first = rng.choice((log.first_position, log.end, 0))
            await self._follow(log.follow(first, on_truncated="skip"), first, history)
        else:
            await self._consume(log, history)

    async def _read_range(self, log: Log, history: LogHistory) -> None:
        end = await log.refresh()
        if end == log.first_position:
            return
        first = self.rng.randrange(log.first_position, end)
        last = self.rng.randrange(first, end)
        try:
            entries = await log.read(first, last)
        except TruncatedError as error:
            history.truncated_until(error.first_position)
            return
        if [entry.position for entry in entries] != list(range(first, last + 1)):
            raise Violation("P1", f"log {self.name}: a read of {first} to {last} gave other positions")
        for entry in entries:
            self._read(history, entry)

    async def _follow(
        self, items: Any, first: int, history: LogHistory, on_entry: Callable[[LogEntry], Any] | None = None
    ) -> None:
        expected = first
        try:
            async with asyncio.timeout(self.rng.uniform(0.1, 3.0)), aclosing(items):
                async for item in items:
                    if isinstance(item, Gap):
                        if item.first != expected or item.last < item.first:
                            raise Violation("P7", f"log {self.name}: {item} after position {expected - 1}")
                        history.truncated_until(item.last + 1)
                        expected = item.last + 1
                        continue
                    if item.position != expected:
                        raise Violation("P1", f"log {self.name}: position {item.position} after {expected - 1}")
                    expected += 1
                    self.world.trace.count("log: entries followed")
                    self._read(history, item)
                    if on_entry is not None:
                        await on_entry(item)
                    if self.ended():
                        return
        except TruncatedError as error:
            if error.first_position <= expected:
                raise Violation("P7", f"log {self.name}: truncated to {error.first_position}, at {expected}") from error
            history.truncated_until(error.first_position)
        except TimeoutError as error:
            if isinstance(error, OctavoError):
                raise

    async def _consume(self, log: Log, history: LogHistory) -> None:
        rng = self.rng
        name = rng.choice(("shared", "shared", "shared", "own"))
        stored = history.cursors.get(name, 0)
        cursor = await log.cursor(name)
        if cursor.position < stored and not history.deleted:
            raise Violation("P11", f"log {self.name}: cursor {name} stands at {cursor.position}, {stored} was stored")

        async def advance(entry: LogEntry) -> None:
            if rng.random() < 0.2:
                await asyncio.sleep(rng.uniform(0.0, 0.2))  # a slow consumer, which falls behind the other
            if rng.random() < 0.5:
                await cursor.advance(entry.position + 1)
                if rng.random() < 0.2:
                    await cursor.flush()
                    if history.cursors.get(name, 0) < entry.position + 1 and not history.deleted:
                        raise Violation("P11", f"log {self.name}: cursor {name} was flushed and is not stored")
                    self.world.trace.count("log: cursors flushed")

        on_truncated: OnTruncated = rng.choice(("raise", "skip"))
        await self._follow(cursor.follow(on_truncated=on_truncated), cursor.position, history, advance)


async def truncate(world: World, log: Log, history: LogHistory, rng: random.Random) -> None:
    """Truncate the log somewhere, and check that the handle knows."""
    before = rng.randrange(log.first_position, log.end + 1)
    history.asked_before = max(history.asked_before, before)
    try:
        await log.truncate(before)
    except InvalidArgumentError as error:
        raise Violation("P7", f"log {history.name}: {error.message}") from error
    history.truncated = max(history.truncated, before)
    history.opened(log.first_position, before)
    world.trace.count("log: truncated")


class Tidying(LogApplication):
    """An operator: truncates, applies retention, takes the lead away by hand, and at times deletes the log."""

    _pause_seconds = 0.6

    async def run(self, host: ClientHost, client: Client) -> None:
        self._client = client
        await super().run(host, client)

    async def _use(self, host: ClientHost, log: Log, history: LogHistory) -> None:
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            await truncate(self.world, log, history, rng)
        elif kind < 0.6:
            await log.retain()
        elif kind < 0.9 or not self.world.plan.deletes:
            if isinstance(history, StreamLogHistory):
                await self._disturb_term(host, log, history)
            elif isinstance(history, ChainHistory):
                await self._recover_segment(host, history)
        else:
            await self._delete(host, history)

    async def _recover_segment(self, host: ClientHost, history: ChainHistory) -> None:
        """Recover the newest segment, as a client of ledgers does; its leader has to heal."""
        newest = history.document.newest
        if newest is not None:
            self.world.note(host.name, "recovers ledger %d by hand", newest.ledger_id)
            self.world.trace.count("log: segment recovered by hand")
            async with self._client.open_ledger(newest.ledger_id, password=PASSWORD):
                pass

    async def _disturb_term(self, host: ClientHost, log: Log, history: StreamLogHistory) -> None:
        """Take the log over without adding anything; or begin a takeover and go no further, so that the leader has to
        heal."""
        world = self.world
        if self.rng.random() < 0.5:
            world.note(host.name, "begins a takeover of log %s by hand, and goes no further", self.name)
            world.trace.count("log: takeover begun by hand")
            root = history.roots.current
            change = BeginTakeover(root.term, world.wall_clock(), host.name)
            await update_stream(host.store, root.ledger_id, change, writer_token=f"{self.rng.getrandbits(64):x}")
            return
        writer = await log.take_over()
        history.leads(host.name, writer.term, lambda: writer.end)
        world.note(host.name, "takes log %s over by hand in term %d", self.name, writer.term)
        world.trace.count("log: taken over by hand")
        if self.rng.random() < 0.5:
            await writer.close()

    async def _delete(self, host: ClientHost, history: LogHistory) -> None:
        self.world.note(host.name, "deletes log %s", self.name)
        await self._client.delete_log(self.name)
        self.world.trace.count("log: deleted")
        if not history.deleted:
            raise Violation("P13", f"log {self.name}: said to be deleted, and is not")
