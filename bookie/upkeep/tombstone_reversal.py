"""Reverses tombstones of ledgers that are alive (rule B5).

A bookie deletes a ledger because the metadata have none of that name. The metadata may have been older than the ledger,
or the ledger was created later, from an id that its client had been given long before. So when any request reaches a
deleted ledger, the bookie reads the metadata in a way that is never answered from stale data; if they know the ledger,
the tombstone is reversed and the ledger is in doubt.
"""

import asyncio

import structlog
from octavo.bookie.storage.damage import ID_LAST
from octavo.bookie.storage.storage import Storage
from octavo.metadata import MetadataStore
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId

log = structlog.get_logger("octavo.bookie")

LEDGERS_AT_ONCE = 256
"""Ledgers asked for in one read of the metadata."""

ABSENT_MAX = 10_000
"""Ledgers remembered as absent; the oldest are dropped first."""


class Reviver:
    """Asks the metadata for deleted ledgers, several at a time, and for each at most once in ``recheck_seconds``."""

    def __init__(
        self, storage: Storage, store: MetadataStore, *, cluster_id: str, recheck_seconds: float = 60.0
    ) -> None:
        self._storage = storage
        self._store = store
        self._cluster_id = cluster_id
        self._recheck_seconds = recheck_seconds
        self._waiting: dict[LedgerId, asyncio.Future[bool]] = {}
        self._absent: dict[LedgerId, float] = {}
        self._task: asyncio.Task[None] | None = None
        self.revived = 0

    async def revive(self, ledger_id: LedgerId) -> bool:
        """Whether the deleted ledger was found alive and is no longer deleted, durably."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._absent.get(ledger_id, 0.0):
            return False
        if not self._storage.ledgers.is_deleted(ledger_id):
            return True
        answer = self._waiting.get(ledger_id)
        if answer is None:
            answer = self._waiting[ledger_id] = loop.create_future()
            if self._task is None:
                self._task = loop.create_task(self._ask_all(), name="octavo-reviver")
        return await asyncio.shield(answer)

    async def stop(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                asked = list(self._waiting)[:LEDGERS_AT_ONCE]
                alive = await self._find_alive(asked)
                for ledger_id in asked:
                    self._waiting.pop(ledger_id).set_result(ledger_id in alive)
        finally:
            self._task = None
            for answer in self._waiting.values():
                answer.cancel()
            self._waiting.clear()

    async def _find_alive(self, asked: list[LedgerId]) -> set[LedgerId]:
        try:
            if await self._store.cluster_id() != self._cluster_id:
                return set()
            absent = await self._store.confirm_absent(asked)
            alive = set(asked).difference(absent)
            for durable in [self._storage.writer.revive(ledger_id) for ledger_id in asked if ledger_id in alive]:
                await durable
            for ledger_id in alive:  # any entry may have been removed: what is missing is copied back
                self._storage.damage.report(ledger_id, 0, ID_LAST)
        except OctavoError as error:
            log.warning(
                "cannot tell whether deleted ledgers are alive",
                ledgers=len(asked), error=type(error).__name__, reason=error.message,
            )  # fmt: skip
            self._refuse_until(asked, asyncio.get_running_loop().time() + min(1.0, self._recheck_seconds))
            return set()
        self.revived += len(alive)
        self._refuse_until(absent, asyncio.get_running_loop().time() + self._recheck_seconds)
        return alive

    def _refuse_until(self, ledger_ids: list[LedgerId], recheck_at: float) -> None:
        for ledger_id in ledger_ids:
            self._absent.pop(ledger_id, None)
            self._absent[ledger_id] = recheck_at
        while len(self._absent) > ABSENT_MAX:
            del self._absent[next(iter(self._absent))]
