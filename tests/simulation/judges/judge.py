"""The judge: after healing, a new client recovers and reads every ledger, and compares all replicas."""

import asyncio
import math
from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from octavo.client.client import Client
from octavo.protocol.entries import derive_secrets, header_of
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Read, ReadAnswer, ReadFlag
from simulation.judges.history import LedgerHistory, Violation
from simulation.workload.workload import read_everything
from simulation.world import ClientHost, World
from support.inside import connections_of

ATTEMPTS_MAX = 20
"""Attempts to read a ledger or to ask a bookie before the universe fails (rule I8)."""

COPY_BYTES_MAX = 100_000
COPIES_MAX = 1000


class Share(NamedTuple):
    """The entries of a fragment that one bookie should hold."""

    bookie_id: BookieId
    modulus: int
    residues: tuple[int, ...]
    entry_ids: list[int]


def shares(ledger: LedgerHistory, end: int) -> list[Share]:
    """The share of every bookie in the entries of a ledger up to ``end``, computed independently from the definition of
    a write set."""
    metadata, (ensemble, write, _) = ledger.current, ledger.quorums
    stops = [fragment.first_entry_id for fragment in metadata.fragments[1:]] + [end + 1]
    found = []
    for fragment, stop in zip(metadata.fragments, stops, strict=True):
        for position, bookie_id in enumerate(fragment.bookies):
            residues = tuple(sorted((position - step) % ensemble for step in range(write)))
            entry_ids = [i for i in range(fragment.first_entry_id, stop) if i % ensemble in residues]
            if entry_ids:
                found.append(Share(bookie_id, ensemble, residues, entry_ids))
    return found


class _LedgerGoneError(Exception):
    """The ledger was deleted while it was judged."""


class Judge:
    """Checks every ledger at the end of a universe. Raises :class:`Violation`."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def run(self, host: ClientHost) -> None:
        """Check every ledger that has not been deleted."""
        client = await host.connect()
        for ledger in self.world.history.ledgers.values():
            if not ledger.deleted:
                await self.examine(host, client, ledger)
        await client.close()
        self.world.history.check_all()

    async def examine(self, host: ClientHost, client: Client, ledger: LedgerHistory) -> None:
        """Recover and read a ledger, and compare its replicas."""
        count = await self._read(host, client, ledger)
        end = ledger.end
        if ledger.deleted:
            return
        if end is None or count != end + 1:
            raise Violation("I2", f"ledger {ledger.ledger_id}: {count} entries read, it ends at {end}")
        self.world.trace.count("ledgers judged")
        try:
            await self._compare_copies(client, ledger, end)
        except _LedgerGoneError:
            return

    async def _read(self, host: ClientHost, client: Client, ledger: LedgerHistory) -> int:
        # A bookie whose disk was full takes part again only after its next look at the disk.
        attempts_max = ATTEMPTS_MAX + math.ceil(self.world.plan.bookie["disk_check_seconds"])
        for attempt in range(1, attempts_max + 1):
            try:
                async with client.open_ledger(ledger.ledger_id, password=ledger.password) as reader:
                    return await read_everything(self.world, reader, ledger)
            except OctavoError as error:
                what = f"{type(error).__name__} {error.message}"
                self.world.note(host.name, "ledger %d: %s", ledger.ledger_id, what)
                if ledger.deleted:
                    break
                if attempt == attempts_max:
                    raise Violation("I1", f"ledger {ledger.ledger_id} cannot be read: {what}") from error
            await asyncio.sleep(1.0)
        return 0

    async def _compare_copies(self, client: Client, ledger: LedgerHistory, end: int) -> None:
        """Check that every entry has Qa identical copies (rule I5), and Qw where its ledger has full copies and does
        not owe them (rule I9). Copies on unlucky machines count as present."""
        world = self.world
        # Debts as they were before the copies are counted: repair makes copies first, and clears debts then.
        books = ledger.current
        lost = {bookie_id for machine in world.unlucky for bookie_id in machine.ids}
        copies: Counter[int] = Counter()
        for share in shares(ledger, end):
            if share.bookie_id in lost:
                copies.update(share.entry_ids)
                if ledger.private:  # whatever it has lost, it gives nothing away
                    await self._expect_refusal(client, ledger, share.bookie_id, _read_of(ledger, share, b""))
            else:
                copies.update(await self._copies(client, ledger, share))
        for entry_id in range(end + 1):
            if copies[entry_id] < ledger.quorums[2]:
                raise Violation("I5", f"ledger {ledger.ledger_id}: entry {entry_id} has {copies[entry_id]} copies")
            owed = books.full_copies is None or any(debt.first <= entry_id <= debt.last for _, debt in books.debts)
            if not owed and copies[entry_id] < ledger.quorums[1]:
                raise Violation(
                    "I9", f"ledger {ledger.ledger_id}: entry {entry_id} has {copies[entry_id]} copies and is not owed"
                )
        if books.full_copies is not None:
            world.trace.count(f"ledgers with full copies {books.full_copies.value} judged")
            world.trace.count("debts judged", len(books.debts))

    async def _copies(self, client: Client, ledger: LedgerHistory, share: Share) -> list[int]:
        held: list[int] = []
        key = derive_secrets(ledger.password, ledger.ledger_id).ledger_key if ledger.private else b""
        at = share.entry_ids[0]
        while at <= share.entry_ids[-1]:
            request = _read_of(ledger, share, key, first=at)
            answer = await self._ask(client, ledger, share.bookie_id, request)
            if ledger.private and answer.entries:
                await self._expect_refusal(client, ledger, share.bookie_id, replace(request, ledger_key=b""))
            for sealed in answer.entries:
                entry_id = header_of(sealed).entry_id
                self.world.history.replica(ledger, entry_id, sealed, share.bookie_id)
                held.append(entry_id)
            at = answer.last_covered + 1
        return held

    async def _expect_refusal(self, client: Client, ledger: LedgerHistory, bookie_id: BookieId, request: Read) -> None:
        """A bookie that holds entries of a private ledger gives none to a client without the key (rule S3)."""
        try:
            answer = await connections_of(client).get(bookie_id).request(request, timeout_seconds=5.0)
        except OctavoError:
            self.world.trace.count("reads of private ledgers refused")
            return
        if isinstance(answer, ReadAnswer) and answer.entries:
            raise Violation("S3", f"ledger {ledger.ledger_id} is private, and bookie {bookie_id} gave entries away")

    async def _ask(self, client: Client, ledger: LedgerHistory, bookie_id: BookieId, request: Read) -> ReadAnswer:
        for _ in range(ATTEMPTS_MAX):
            try:
                answer = await connections_of(client).get(bookie_id).request(request, timeout_seconds=5.0)
            except OctavoError as error:
                if ledger.deleted:  # a delete that a client requested earlier has taken effect
                    raise _LedgerGoneError from error
                await asyncio.sleep(0.5)
                continue
            assert isinstance(answer, ReadAnswer)
            return answer
        raise Violation("I8", f"bookie {bookie_id} does not answer")


def _read_of(ledger: LedgerHistory, share: Share, key: bytes, first: int | None = None) -> Read:
    """A request for what a bookie should hold, from ``first`` on."""
    return Read(
        ledger.ledger_id, key, ReadFlag.NONE, 0, share.entry_ids[0] if first is None else first, share.entry_ids[-1],
        share.modulus, share.residues, COPIES_MAX, COPY_BYTES_MAX,
    )  # fmt: skip
