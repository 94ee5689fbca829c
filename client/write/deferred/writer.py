"""The writer of a ledger with deferred sync (rule W10).

An add returns when Qa bookies have accepted its entry: it is in their memory, and on its way to their disks.
:meth:`DeferredWriter.force` returns when everything before it is durable. The writer keeps the entries that are not
forced, and sends them again to bookies that restart or take another's place. So an entry that has been accepted is lost
only if the writer ends before the entry is forced, and no bookie that recovery asks has kept it.

Room in the window is given back when an add is accepted, but not while more than ``unforced_bytes_max`` bytes are
unforced: adds beyond that wait for the force that is under way then.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from octavo.client.supervisor import Supervisor
from octavo.client.write.deferred.replication import DeferredReplication
from octavo.client.write.front.adds import copy_error, reject
from octavo.client.write.replication import Replication
from octavo.client.write.write_path import EMPTY_DEQUE, WritePath
from octavo.client.write.writer import OVER, LedgerWriter
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.errors import LedgerClosedError, OctavoError


class DeferredWriter(LedgerWriter):
    """See the module. What :class:`LedgerWriter` says of acknowledged adds holds for forced ones:
    ``last_add_confirmed`` and ``length`` count these only, and readers see no others. Closing forces first."""

    _room_owed_entries = 0
    """Entries that have been accepted and still take room in the window."""
    _room_owed_bytes = 0
    _force_waiters: deque[tuple[int, asyncio.Future[None]]] = EMPTY_DEQUE
    """Last id that each caller of :meth:`force` waits for."""

    async def force(self) -> None:
        """Return once every add made so far is durable on Qa bookies, including those that wait for room.

        Raises the writer's failure: then the adds that have returned since the last force may be lost. Cancelling the
        call stops nothing.
        """
        life = self._life
        if life.failure is not None:
            raise copy_error(life.failure)
        end = self._pipeline.next_entry_id + len(self._payloads) + self._queued_entries
        if end == self._pipeline.next_entry_id and not self._pipeline.pending:
            return
        if life.state in OVER:
            raise copy_error(life.close_error or LedgerClosedError(f"ledger {self.id}: this writer is closed"))
        forced: asyncio.Future[None] = self._loop.create_future()
        if self._force_waiters is EMPTY_DEQUE:
            self._force_waiters = deque()
        self._force_waiters.append((end - 1, forced))
        self._send_turn()
        if self._write_path is not None:
            _deferred(self._write_path).force()
        await forced

    def _make_replication(
        self, metadata: LedgerMetadata, supervisor: Supervisor, make: Callable[..., Replication] = DeferredReplication
    ) -> Replication:
        return super()._make_replication(metadata, supervisor, partial(make, on_forced=self._on_forced))

    def _push(self, path: WritePath, payloads: Sequence[bytes]) -> None:
        first = self._pipeline.next_entry_id
        super()._push(path, payloads)
        if self._force_waiters and self._force_waiters[-1][0] >= first:
            _deferred(path).force()  # these adds waited for room when their force was asked for

    def _on_acknowledged(self, first: int, last: int, payload_bytes: int) -> None:
        """These entries have been accepted."""
        self._room_owed_entries += last + 1 - first
        self._room_owed_bytes += payload_bytes
        self._give_room()
        self._tell_callers(first, last)

    def _on_forced(self, last: int) -> None:
        """The LAC has risen."""
        self._give_room()
        if self._queue:
            self._admit()
        while self._force_waiters and self._force_waiters[0][0] <= last:
            forced = self._force_waiters.popleft()[1]
            if not forced.done():
                forced.set_result(None)
        path = self._write_path
        assert path is not None, "only what was pushed is forced"
        if path.lac_sender.timer is None and not self._pipeline.pending:
            path.lac_sender.arm()

    def _give_room(self) -> None:
        """Give back the room of accepted entries, unless too many bytes are unforced."""
        path = self._write_path
        assert path is not None, "only what was pushed is accepted"
        if not _deferred(path).pipeline.is_full:
            self._free_entries += self._room_owed_entries
            self._free_bytes += self._room_owed_bytes
            self._room_owed_entries = self._room_owed_bytes = 0

    def _fail_pending(self, error: OctavoError, *, in_doubt: bool) -> None:
        super()._fail_pending(error, in_doubt=in_doubt)
        waiters, self._force_waiters = self._force_waiters, EMPTY_DEQUE
        for _, forced in waiters:
            reject(forced, error, may_have_happened=in_doubt)


def _deferred(path: WritePath) -> DeferredReplication:
    assert isinstance(path.replication, DeferredReplication)
    return path.replication
