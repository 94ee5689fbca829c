"""The applications of a universe: they write with a window, tail, read, recover and delete. Each is a coroutine of a
client process. It accepts every :class:`OctavoError` as a result, and the history checks whether that result is legal.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Literal

from octavo.client.client import Client
from octavo.client.read.reader import LedgerReader
from octavo.client.write.writer import LedgerWriter
from octavo.protocol.entries import Digest
from octavo.protocol.errors import InternalError, OctavoError, WouldBlock
from simulation.judges.history import LedgerHistory, Violation
from simulation.world import ClientHost, World

Work = Callable[[ClientHost, Client], Coroutine[Any, Any, None]]
"""One activity of an application."""

BOOKS: tuple[Literal["recorded", "required"], ...] = ("recorded", "required")
"""The full copies of ledgers: what they do about missing ones."""

CREATE_ATTEMPTS_MAX = 40

WATCH_SECONDS = 0.2
"""Interval at which a recovering application checks for failed writers."""


def note_answer(world: World, where: str, what: str, error: OctavoError) -> None:
    """Record a failed operation. Raises :class:`Violation` for an :class:`InternalError`."""
    if isinstance(error, InternalError):
        raise Violation("no defects", f"{what}: {error.message}") from error
    world.trace.count(f"answer: {type(error).__name__}")
    world.note(where, "%s: %s %s", what, type(error).__name__, error.message)


async def create_ledger(
    world: World, rng: random.Random, host: ClientHost, client: Client, *, deferred: bool
) -> tuple[LedgerWriter, LedgerHistory] | None:
    """Create a ledger of a random kind, and record it. None if that has failed again and again."""
    ensemble, write, ack = world.plan.quorums
    password = rng.choice((b"", b"secret"))
    digest = rng.choice((Digest.CRC32C, Digest.HMAC_SHA256))
    private = world.plan.guarded and bool(password)
    sync: Literal["immediate", "deferred"] = "deferred" if deferred else "immediate"
    full_copies = rng.choice(BOOKS) if world.plan.full_copies else None
    for _ in range(CREATE_ATTEMPTS_MAX):
        try:
            writer = await client.create_ledger(
                ensemble,
                write,
                ack,
                password=password,
                digest=digest,
                private=private,
                sync=sync,
                full_copies=full_copies,
            )
        except OctavoError as error:
            note_answer(world, host.name, "create", error)
            await asyncio.sleep(0.3)
            continue
        ledger = LedgerHistory(writer.id, world.plan.quorums, password, digest, partial(_confirmed_by, writer))
        ledger.silent = partial(_is_silent, host)
        ledger.writer, ledger.private, ledger.deferred = host.name, private, deferred
        world.history.opened(ledger)
        world.note(host.name, "writes ledger %d", writer.id)
        return writer, ledger
    return None


async def close_ledger(world: World, host: ClientHost, writer: LedgerWriter, ledger: LedgerHistory) -> None:
    """Close a ledger, and check where it ends."""
    try:
        await writer.close()
    except OctavoError as error:
        note_answer(world, host.name, f"close of {writer.id}", error)
        return
    if ledger.deferred:
        judged(world, partial(world.history.confirmed, ledger, ledger.begun - 1))
    confirmed = -1 if writer.last_add_confirmed is None else writer.last_add_confirmed
    if ledger.end != confirmed and not ledger.deleted:
        raise Violation("W9", f"ledger {writer.id}: closed at {confirmed}, the metadata say {ledger.end}")


def judged(world: World, verdict: Callable[[], None]) -> None:
    """End the universe if the history finds a rule broken."""
    try:
        verdict()
    except Violation as violation:
        world.violate(violation)


LEDGERS_PER_WRITER_MAX = 4
"""Ledgers that one writing application creates at most, one after another."""


class Writing:
    """Creates a ledger, adds, and closes it or leaves it open; then continues with another ledger."""

    def __init__(self, world: World, rng: random.Random, adds: int, ended: Callable[[], bool]) -> None:
        self.world = world
        self.rng = rng
        self.adds = adds
        self.ended = ended
        self._bursts = rng.choice(((1,), (1, 1, 5), (1, 5, 20, 60)))
        seconds = world.plan.safety_seconds * rng.choice((0.1, 0.5, 1.0, 1.0, 1.5))
        if world.plan.steady:
            seconds = max(seconds, world.plan.safety_seconds / 2)
        # Spread the adds over the safety phase, so that faults strike while adds are pending.
        self._pause = 2 * seconds * (sum(self._bursts) / len(self._bursts)) / max(adds, 1)
        self._leave_open = rng.random() < 0.25
        self._cancels = rng.random() < 0.2
        self._forces = rng.choice((0.0, 0.2, 1.0)) if world.plan.deferred else 0.0
        """How often a burst of a ledger with deferred sync is followed by a force."""

    async def run(self, host: ClientHost, client: Client) -> None:
        """Write until all adds are made or the safety phase has ended."""
        for _ in range(LEDGERS_PER_WRITER_MAX):
            if self.adds <= 0 or not await self._write_one(host, client) or self.ended():
                return

    async def _write_one(self, host: ClientHost, client: Client) -> bool:
        made = await create_ledger(self.world, self.rng, host, client, deferred=self.world.plan.deferred)
        if made is None:
            return False
        writer, ledger = made
        ledger.adding = True
        try:
            await self._add_all(host, writer, ledger)
        except OctavoError as error:
            note_answer(self.world, host.name, f"writer of {writer.id}", error)
        ledger.adding = False
        self.adds -= len(ledger.payloads)
        if self._leave_open and not self.ended():
            # Left open for readers that follow it and for recovery. Client.close closes it if no client has.
            return True
        await close_ledger(self.world, host, writer, ledger)
        return True

    async def _add_all(self, host: ClientHost, writer: LedgerWriter, ledger: LedgerHistory) -> None:
        rng, world = self.rng, self.world
        pending: dict[asyncio.Future[Any], None] = {}
        done, adds = 0, self.adds
        while done < adds:
            burst = min(rng.choice(self._bursts), adds - done)
            for _ in range(burst):
                index = len(ledger.payloads)
                size = rng.randrange(world.plan.entry_bytes_max + 1)
                payload = b"%d:%d:" % (writer.id, index) + rng.randbytes(size) if rng.random() > 0.02 else b""
                ledger.payloads.append(payload)
                task = asyncio.ensure_future(self._add(host, writer, ledger, index, payload))
                pending[task] = None
                task.add_done_callback(lambda finished: pending.pop(finished, None))
                if self._cancels and rng.random() < 0.1:
                    asyncio.get_running_loop().call_later(rng.uniform(0, 0.01), task.cancel)
            done += burst
            if self._forces and rng.random() < self._forces:
                force = asyncio.ensure_future(self._force(host, writer, ledger))
                pending[force] = None
                force.add_done_callback(lambda finished: pending.pop(finished, None))
            if rng.random() < 0.5 and pending and not world.plan.steady:
                await asyncio.wait(
                    list(pending), return_when=rng.choice((asyncio.ALL_COMPLETED, asyncio.FIRST_COMPLETED))
                )
            await asyncio.sleep(self._pause * rng.random())
            if ledger.not_happened is not None:
                break
        if pending:
            await asyncio.wait(list(pending))
        if self._forces and rng.random() < self._forces:
            await self._force(host, writer, ledger)
        await writer.flush()

    async def _force(self, host: ClientHost, writer: LedgerWriter, ledger: LedgerHistory) -> None:
        covered = ledger.begun - 1
        try:
            await writer.force()
        except OctavoError as error:
            note_answer(self.world, host.name, f"force of {writer.id}", error)
        else:
            self.world.trace.count("forces")
            judged(self.world, partial(self.world.history.confirmed, ledger, covered))

    async def _add(
        self, host: ClientHost, writer: LedgerWriter, ledger: LedgerHistory, index: int, payload: bytes
    ) -> None:
        world = self.world
        ledger.begun += 1
        try:
            entry_id = await writer.add(payload)
        except OctavoError as error:
            if index == ledger.acknowledged + 1:
                note_answer(world, host.name, f"add {index} to {writer.id}", error)
            elif isinstance(error, InternalError | WouldBlock):
                raise Violation("no defects", f"add {index}: {error.message}") from error
            judged(world, partial(world.history.add_failed, ledger, index, may_have_happened=error.may_have_happened))
        else:
            world.trace.count("adds acknowledged")
            judged(world, partial(world.history.acknowledged, ledger, index, entry_id))


def _confirmed_by(writer: LedgerWriter) -> int | None:
    return writer.last_add_confirmed


def _is_silent(host: ClientHost) -> bool:
    return host.process.paused or not host.process.alive


class Reading:
    """Opens ledgers one after another and follows or reads them; or recovers them."""

    def __init__(self, world: World, rng: random.Random, *, recovers: bool, ended: Callable[[], bool]) -> None:
        self.world = world
        self.rng = rng
        self.recovers = recovers
        self.ended = ended

    async def run(self, host: ClientHost, client: Client) -> None:
        """Run until the safety phase has ended."""
        rng = self.rng
        while not self.ended():
            await self._pause()
            ledgers = [ledger for ledger in self.world.history.ledgers.values() if not ledger.delete_asked]
            if ledgers and not self.ended():
                orphans = [ledger for ledger in ledgers if self.recovers and ledger.orphaned]
                ledger = rng.choice(orphans or ledgers)
                if not self.recovers:
                    await self.visit(host, client, ledger)
                elif ledger.end is None or rng.random() < 0.2:
                    # Often several at once, as when every client that watches a writer takes it for failed.
                    crowd = rng.choice((1, 1, 2, 3))
                    await asyncio.gather(*(self.visit(host, client, ledger) for _ in range(crowd)))

    async def _pause(self) -> None:
        """Wait a while; a recovering application often stops waiting when a writer appears to have failed."""
        rng = self.rng
        if not self.recovers:
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            return
        left = rng.uniform(0.0, self.world.plan.safety_seconds)
        while left > 0 and not self.ended():
            step = min(left, WATCH_SECONDS)
            await asyncio.sleep(step)
            left -= step
            orphaned = any(ledger.orphaned for ledger in self.world.history.ledgers.values())
            if orphaned and rng.random() < 0.7:
                return

    async def visit(self, host: ClientHost, client: Client, ledger: LedgerHistory) -> None:
        """Read or follow a ledger, or recover and read it; that may fail."""
        try:
            await self._open_and_read(host, client, ledger)
        except OctavoError as error:
            note_answer(self.world, host.name, f"reader of {ledger.ledger_id}", error)

    async def _open_and_read(self, host: ClientHost, client: Client, ledger: LedgerHistory) -> None:
        world, rng = self.world, self.rng
        if self.recovers:
            world.note(host.name, "recovers ledger %d", ledger.ledger_id)
            ledger.recovering += 1
            if ledger.recovering > 1 and ledger.end is None:
                world.trace.count("concurrent recoveries")
        opening = client.open_ledger(ledger.ledger_id, password=ledger.password, recover=self.recovers)
        try:
            reader = await opening
        finally:
            ledger.recovering -= self.recovers
        async with reader:
            if self.recovers and ledger.end is None and not ledger.deleted:
                raise Violation("F6", f"ledger {ledger.ledger_id}: opened with recovery, and it is not closed")
            if not reader.ledger_closed and rng.random() < 0.6:
                await self._follow(reader, ledger)
            else:
                await read_everything(world, reader, ledger)

    async def _follow(self, reader: LedgerReader, ledger: LedgerHistory) -> None:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + self.rng.uniform(0.1, 4.0)
        first = self.rng.choice((0, 0, max(0, ledger.acknowledged)))
        expected = first
        last_confirmed = -1
        try:
            async with asyncio.timeout_at(give_up_at):
                async for entry in reader.follow(first):
                    if entry.entry_id != expected:
                        raise Violation("I4", f"ledger {ledger.ledger_id}: entry {entry.entry_id} after {expected - 1}")
                    expected += 1
                    self.world.trace.count("entries followed")
                    self.world.history.read(ledger, entry.entry_id, entry.payload)
                    confirmed = -1 if reader.last_add_confirmed is None else reader.last_add_confirmed
                    if confirmed < last_confirmed:
                        raise Violation("I4", f"ledger {ledger.ledger_id}: a reader's LAC fell to {confirmed}")
                    last_confirmed = confirmed
                if ledger.end is not None and expected <= ledger.end and not ledger.deleted:
                    raise Violation(
                        "I1", f"ledger {ledger.ledger_id}: a follower ended at {expected - 1} of {ledger.end}"
                    )
        except TimeoutError as error:
            if isinstance(error, OctavoError):
                raise


async def read_everything(world: World, reader: LedgerReader, ledger: LedgerHistory) -> int:
    """Read every readable entry. Returns the number of entries."""
    expected = 0
    async for entry in reader:
        if entry.entry_id != expected:
            raise Violation("I4", f"ledger {ledger.ledger_id}: entry {entry.entry_id} after {expected - 1}")
        world.history.read(ledger, entry.entry_id, entry.payload)
        expected += 1
    world.trace.count("entries read", expected)
    return expected


class Deleting:
    """Deletes up to three ledgers at random times."""

    def __init__(self, world: World, rng: random.Random, ended: Callable[[], bool]) -> None:
        self.world = world
        self.rng = rng
        self.ended = ended

    async def run(self, host: ClientHost, client: Client) -> None:
        """Delete until done or until the safety phase has ended."""
        rng = self.rng
        for _ in range(rng.choice((1, 1, 3))):
            await asyncio.sleep(rng.uniform(0.3, self.world.plan.safety_seconds))
            ledgers = [ledger for ledger in self.world.history.ledgers.values() if not ledger.delete_asked]
            if not ledgers or self.ended():
                return
            await self._delete(host, client, rng.choice(ledgers))

    async def _delete(self, host: ClientHost, client: Client, ledger: LedgerHistory) -> None:
        ledger.delete_asked = True
        self.world.note(host.name, "deletes ledger %d", ledger.ledger_id)
        try:
            await client.delete_ledger(ledger.ledger_id)
        except OctavoError as error:
            note_answer(self.world, host.name, f"delete of {ledger.ledger_id}", error)
        else:
            self.world.trace.count("ledgers deleted")
