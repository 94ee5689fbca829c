"""Compare-and-sets of many ledgers, gathered so that the metadata store makes them together (rule A8).

While one batch is under way further changes gather; then they become the next batch, as adds do in a group commit.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.errors import MetadataUnavailableError

BATCH_MAX: Final = 256
"""Most changes handed to the store at a time."""

type _Change = tuple[EitherMetadata, Version, "asyncio.Future[Version | None]"]


def _always() -> bool:
    return True


class Naming:
    """Makes compare-and-sets of ledgers. Used from one event loop."""

    def __init__(self, store: MetadataStore, owns_id: Callable[[], bool] = _always) -> None:
        """``owns_id``: whether the bookie's id is certainly its own. Nothing is changed while it may not be: a process
        that was paused would name what other disks do not have (rule B10)."""
        self._store = store
        self._owns_id = owns_id
        self._waiting: list[_Change] = []
        self._task: asyncio.Task[None] | None = None
        self.conflicts = 0

    async def compare_and_set(self, metadata: EitherMetadata, expected: Version) -> Version | None:
        """As :meth:`MetadataStore.compare_and_set_ledgers`, for one ledger: the new version, or None on a conflict.

        Raises :class:`MetadataUnavailableError`: the change may have been made. Cancelling the wait withdraws a change
        that has not been handed to the store yet, and no other.
        """
        outcome: asyncio.Future[Version | None] = asyncio.get_running_loop().create_future()
        change: _Change = (metadata, expected, outcome)
        self._waiting.append(change)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            version = await asyncio.shield(outcome)
        except asyncio.CancelledError:
            self._waiting = [waiting for waiting in self._waiting if waiting is not change]
            raise
        if version is None:
            self.conflicts += 1
        return version

    async def close(self) -> None:
        """End; changes under way may or may not be made."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for _, _, outcome in self._waiting:
            outcome.cancel()
        self._waiting.clear()

    async def _run(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH_MAX], self._waiting[BATCH_MAX:]
                await self._write(batch)
        finally:
            self._task = None

    async def _write(self, batch: list[_Change]) -> None:
        try:
            versions = await self._change([(change, expected) for change, expected, _ in batch])
        except Exception as error:  # of any kind: a job that gets no outcome would wait for ever
            for _, _, outcome in batch:
                if not outcome.done():
                    outcome.set_exception(error)
                    outcome.exception()  # a waiter that was cancelled does not take it
            return
        except BaseException:
            for _, _, outcome in batch:
                outcome.cancel()
            raise
        for (_, _, outcome), version in zip(batch, versions, strict=True):
            if not outcome.done():
                outcome.set_result(version)

    async def _change(self, changes: Sequence[tuple[EitherMetadata, Version]]) -> list[Version | None]:
        if not self._owns_id():
            raise MetadataUnavailableError(
                "the bookie is not registered, so it names itself nowhere", may_have_happened=False
            )
        return await self._store.compare_and_set_ledgers(changes)
