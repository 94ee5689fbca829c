"""Creates logs. Of several clients that create one name at once, one wins; nothing is left of the others (rule P13).

A chain is one document. A log that is a stream is a document and the metadata of a stream, which cannot be written at
once. So the document comes first, MAKING, then the stream, then the document is ACTIVE
(:mod:`octavo.client.log.documents.stream`). A creator that dies in between leaves a document that names the stream.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from octavo.client.arguments import Protection
from octavo.client.log.documents.chain import Dropped, LogDocument, Retention
from octavo.client.log.documents.key_window import KeyWindow
from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.passwords import log_verifier
from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import AnyLogDocument, StreamLogDocument, decode_any_log
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.stream.changes import MarkActive
from octavo.client.log.stream.housekeeping import StreamHousekeeper
from octavo.client.log.stream.update import update_stream_log
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import LOG_KEY
from octavo.metadata.store.values import Version, Versioned
from octavo.protocol.errors import (
    LogExistsError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLogError,
    OctavoError,
)
from octavo.protocol.quorums import Quorums

_SALT_BYTES: Final = 16


class LogMaker:
    """See the module. Of one client."""

    def __init__(self, access: LedgerAccess, random_bytes: Callable[[int], bytes]) -> None:
        self._access = access
        self._store = access.store
        self._random_bytes = random_bytes

    async def create_chain(
        self, name: str, quorums: Quorums, protection: Protection, retention: Retention
    ) -> Versioned[LogDocument]:
        """Make a log that is a chain. Raises :class:`LogExistsError`."""
        log_id, salt = self._access.random_token(), self._random_bytes(_SALT_BYTES)
        document = LogDocument(
            name=name,
            log_id=log_id,
            quorums=quorums,
            digest=protection.digest,
            private=protection.private,
            verifier=log_verifier(protection.password, log_id, salt),
            salt=salt,
            created_at_ms=self._access.clock_ms(),
            retention=retention,
            counts_ages=True,
        )
        present = await self._free_name(name)
        if present is not None:
            other = present.value
            streams = (*(one.ledger_id for one in other.abandoned), other.ledger_id)
            document = replace(document, dropped=tuple(map(Dropped, streams)))
        return Versioned(document, await self._put(name, document.encode(), present))

    async def create_stream(
        self,
        name: str,
        quorums: Quorums,
        protection: Protection,
        retention: Retention,
        *,
        full_copies: FullCopies | None = None,
        keys: KeyWindow | None = None,
    ) -> Versioned[StreamLogDocument]:
        """Make a log that is a stream. Raises :class:`LogExistsError`, and :class:`NotEnoughBookiesError`."""
        document = StreamLogDocument(
            name=name,
            log_id=self._access.random_token(),
            ledger_id=await self._store.allocate_ledger_id(),
            created_at_ms=self._access.clock_ms(),
            retention=retention,
            counts_ages=True,
            keys=keys,
            state=LogState.MAKING,
        )
        present = await self._free_name(name)
        if present is not None:
            document = document.in_place_of(present.value)
        known = Versioned(document, await self._put(name, document.encode(), present))
        try:
            await self._access.streams.create_at_rest(
                document.ledger_id,
                quorums,
                protection,
                custom_metadata={LOG_KEY: name.encode()},
                full_copies=full_copies,
            )
            known = await update_stream_log(self._store, name, MarkActive(), log_id=document.log_id, known=known)
        except NoSuchLogError as error:
            # Another client has got ahead, and knows nothing of this stream unless it was there a moment ago.
            await self._withdraw(document)
            raise _exists(name) from error
        except MetadataUnavailableError:
            # The document says what stands: an attempt to create the log again goes on from there.
            raise
        except BaseException:
            await self._withdraw(document)
            raise
        with contextlib.suppress(OctavoError):
            return await StreamHousekeeper(self._access, name, document.log_id).delete_abandoned(known)
        return known

    async def _free_name(self, name: str) -> Versioned[StreamLogDocument] | None:
        """Make sure that there is no log of this name: finish a deletion that another client has begun. Gives the
        document of a creator that has not ended, which is to be replaced. Raises :class:`LogExistsError`."""
        found = await self._store.read_document(list_document(name))
        if found is None:
            return None
        document = decode_any_log(found.value, name)
        if document.state is LogState.ACTIVE:
            raise _exists(name)
        if isinstance(document, StreamLogDocument) and document.state is LogState.MAKING:
            return Versioned(document, found.version)
        await delete_log(self._access, document)
        return None

    async def _put(self, name: str, value: bytes, present: Versioned[StreamLogDocument] | None) -> Version:
        try:
            if present is None:
                return await self._store.create_document(list_document(name), value)
            return await self._store.compare_and_set_document(list_document(name), value, present.version)
        except MetadataConflictError as error:
            raise _exists(name) from error

    async def _withdraw(self, document: StreamLogDocument) -> None:
        """Leave nothing of a log that was not made, even if this task is cancelled. Tries for
        ``close_timeout_seconds``. A log that was made after all stays."""

        async def withdraw() -> None:
            # If the metadata store does not answer, the document remains, and tells which stream to delete.
            with contextlib.suppress(OctavoError, TimeoutError):
                async with asyncio.timeout(self._access.options.close_timeout_seconds):
                    await self._withdraw_now(document)

        withdrawal = asyncio.get_running_loop().create_task(withdraw())
        while not withdrawal.done():
            # The caller is raising an exception already: a cancellation adds nothing to that.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([withdrawal])

    async def _withdraw_now(self, document: StreamLogDocument) -> None:
        found = await self._store.read_document(list_document(document.name))
        stored = None if found is None else decode_any_log(found.value, document.name)
        if found is None or not isinstance(stored, StreamLogDocument) or stored.log_id != document.log_id:
            await self._access.delete(document.ledger_id)
        elif stored.state is LogState.MAKING:
            found_all = all([await self._access.delete(one.ledger_id) for one in stored.abandoned])
            if not found_all:
                # Other creators may still be about to make their streams, which only this document names. It stays
                # MAKING, for the next creator.
                await self._access.delete(document.ledger_id)
                return
            # Before the stream goes: the log must not become ACTIVE any more.
            deleted = replace(stored, state=LogState.DELETED)
            await self._store.compare_and_set_document(list_document(document.name), deleted.encode(), found.version)
            await delete_log(self._access, deleted)


async def delete_log(access: LedgerAccess, document: AnyLogDocument) -> None:
    """Delete a log of any layout, or finish its deletion."""
    if isinstance(document, StreamLogDocument):
        await StreamHousekeeper(access, document.name, document.log_id).delete_log()
    else:
        from octavo.client.log.chain.housekeeping import Housekeeper  # noqa: PLC0415 - most programs have streams only

        await Housekeeper(access, document.name, document.log_id).delete_log()


def _exists(name: str) -> LogExistsError:
    return LogExistsError(f"log {name} exists already", may_have_happened=False)
