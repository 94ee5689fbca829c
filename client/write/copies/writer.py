"""Writers of ledgers created with ``full_copies`` (rules G2 and G4).

Either kind waits with closing until every entry has Qw copies. If they are *recorded*, for
``full_copies_patience_seconds``; what is missing then is written into the metadata with the end, as the debt of the
last fragment. If they are *required*, for as long as closing may take; then :meth:`RequiredCopiesWriter.close` raises
:class:`UnderReplicatedError`, the ledger stays open, and the writer keeps what is missing and goes on sending it. The
room of an add in the window is then given back when the entry has all of its copies, not when it is acknowledged.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from octavo.client.supervisor import Supervisor
from octavo.client.write.copies.replication import FullCopiesReplication
from octavo.client.write.deferred.writer import DeferredWriter
from octavo.client.write.replication import Replication
from octavo.client.write.writer import DRAIN_SHARE, LedgerWriter
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import LedgerMetadata, SyncMode
from octavo.protocol.errors import OctavoError, UnderReplicatedError


class RecordedCopiesWriter(LedgerWriter):
    """See the module."""

    def _make_replication(
        self, metadata: LedgerMetadata, supervisor: Supervisor, make: Callable[..., Replication] = FullCopiesReplication
    ) -> Replication:
        return super()._make_replication(metadata, supervisor, partial(make, on_full=self._on_full))

    def _on_full(self, entries: int, payload_bytes: int) -> None:
        """``entries`` more entries have all of their copies, or were given up."""

    @property
    def _books(self) -> FullCopiesReplication | None:
        path = self._write_path
        if path is None:
            return None
        assert isinstance(path.replication, FullCopiesReplication)
        return path.replication

    async def _drain(self, seconds: float) -> None:
        end = self._loop.time() + seconds
        await super()._drain(seconds)
        books = self._books
        if books is not None and self._life.failure is None:
            left = max(end - self._loop.time(), 0.0)
            await books.wait_full(min(left, self._options.full_copies_patience_seconds))


class RequiredCopiesWriter(RecordedCopiesWriter):
    """See the module."""

    def _on_acknowledged(self, first: int, last: int, payload_bytes: int) -> None:
        self._tell_callers(first, last)
        path = self._write_path
        assert path is not None, "only what was pushed is acknowledged"
        if path.lac_sender.timer is None and not self._pipeline.pending:
            path.lac_sender.arm()

    def _on_full(self, entries: int, payload_bytes: int) -> None:
        self._free_entries += entries
        self._free_bytes += payload_bytes
        if self._queue:
            self._admit()

    async def _close(self) -> None:
        books = self._books
        if books is not None and self._life.failure is None:
            try:
                seconds = self._options.close_timeout_seconds * DRAIN_SHARE
                end = self._loop.time() + seconds
                await LedgerWriter._drain(self, seconds)
                full = await books.wait_full(max(end - self._loop.time(), 0.0))
            except asyncio.CancelledError:
                await self._tear_down_write_path()
                raise
            if not full and self._life.failure is None:
                self._closing = None  # the next call tries again
                raise self._under_replicated(books)
        await super()._close()

    async def _settle_end(self, deadline: float) -> OctavoError | None:
        books = self._books
        if books is not None and not books.pipeline.is_full:
            return self._under_replicated(books)  # the writer has failed: a recovery makes the copies and closes it
        return await super()._settle_end(deadline)

    def _under_replicated(self, books: FullCopiesReplication) -> UnderReplicatedError:
        full, lac = books.pipeline.last_add_full, books.pipeline.last_add_confirmed
        first, last = 0 if full is None else full + 1, -1 if lac is None else int(lac)
        return UnderReplicatedError(
            f"{self._not_closed}: its entries {first + self._position_shift} to {last + self._position_shift} do not "
            f"have all copies that it requires: {books.describe_short()}"
        )

    @property
    def _not_closed(self) -> str:
        return f"ledger {self.id} is not closed"


def writer_kind(metadata: LedgerMetadata) -> type[LedgerWriter]:
    """The class of the writer that a ledger needs."""
    if metadata.sync is SyncMode.DEFERRED:
        return DeferredWriter
    return LedgerWriter if metadata.full_copies is None else _BOOKKEEPERS[metadata.full_copies]


_BOOKKEEPERS: Final[Mapping[FullCopies, type[LedgerWriter]]] = {
    FullCopies.RECORDED: RecordedCopiesWriter,
    FullCopies.REQUIRED: RequiredCopiesWriter,
}
