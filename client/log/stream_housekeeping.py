"""What keeps a log that is a stream small: truncation, and the deletion of streams that no log needs any more.

Every step can be done by any client at any time, and begun again after a crash.
"""

import contextlib

from octavo.client.log.ledgers import LedgerAccess
from octavo.client.log.names import cursors_document, list_document
from octavo.client.log.stream_changes import ForgetAbandoned, MarkStreamDeleted, RaiseFirst
from octavo.client.log.stream_document import StreamLogDocument
from octavo.client.log.update import read_stream_log, update_stream_log
from octavo.metadata.paging import delete_stream, truncate_stream
from octavo.metadata.store import Versioned
from octavo.metadata.stream_model import StreamMetadata
from octavo.protocol.errors import MetadataConflictError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId


class StreamHousekeeper:
    """See the module. Of one log."""

    def __init__(self, access: LedgerAccess, name: str, log_id: str) -> None:
        self._access = access
        self._store = access.store
        self._name = name
        self._log_id = log_id

    async def truncate(self, before: int) -> tuple[Versioned[StreamLogDocument], Versioned[StreamMetadata]]:
        """Let readers have nothing below ``before``, and drop what of the stream lies below it. The part of the last
        fragment that does goes once there is another one (rule P7)."""
        known = await update_stream_log(self._store, self._name, RaiseFirst(before), log_id=self._log_id)
        return known, await self.follow_document(known.value)

    async def follow_document(self, document: StreamLogDocument) -> Versioned[StreamMetadata]:
        """Truncate the stream where the document says that the log begins."""
        return await truncate_stream(
            self._store, document.ledger_id, document.first_position, writer_token=self._access.random_token()
        )

    async def delete_abandoned(self, known: Versioned[StreamLogDocument]) -> Versioned[StreamLogDocument]:
        """Delete the streams of creators that died (rule P13), and note which were there."""
        deleted: list[LedgerId] = []
        missing: list[LedgerId] = []
        for one in known.value.abandoned:
            (deleted if await self._delete(one.ledger_id) else missing).append(one.ledger_id)
        if not deleted and not missing:
            return known
        change = ForgetAbandoned(deleted, missing)
        return await update_stream_log(self._store, self._name, change, log_id=self._log_id, known=known)

    async def _delete(self, ledger_id: LedgerId) -> bool:
        """Delete a stream with its pages; False when it did not exist."""
        try:
            await delete_stream(self._store, ledger_id)
        except NoSuchLedgerError:
            return False
        return True

    async def delete_log(self) -> None:
        """Delete the log: its stream and its cursors, its document last. Goes on where another client left off."""
        known = await read_stream_log(self._store, self._name, log_id=self._log_id, deleted=True)
        known = await update_stream_log(self._store, self._name, MarkStreamDeleted(), log_id=self._log_id, known=known)
        for ledger_id in (known.value.ledger_id, *(one.ledger_id for one in known.value.abandoned)):
            await self._delete(ledger_id)
        await self._store.delete_document(cursors_document(self._log_id))
        with contextlib.suppress(MetadataConflictError):
            await self._store.delete_document(list_document(self._name), known.version)
