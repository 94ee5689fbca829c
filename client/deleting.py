"""Deletes a ledger, or a stream with its pages, by its id."""

from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.stream import StreamLogDocument, decode_any_log
from octavo.metadata.ledger.model import LOG_KEY
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.paging import delete_stream
from octavo.protocol.errors import LedgerKindError, MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId


async def delete_by_id(store: MetadataStore, ledger_id: LedgerId) -> None:
    """Delete a ledger or a stream (rule U8). Raises :class:`NoSuchLedgerError`, :class:`MetadataUnavailableError`, and
    :class:`LedgerKindError` for the stream of a log, which is deleted with its log."""
    metadata = await _metadata(store, ledger_id)
    if metadata is None or metadata.next_term is None:
        await store.delete_ledger(ledger_id)
        return
    name = await _log_of(store, metadata)
    if name is not None:
        raise LedgerKindError(
            f"ledger {ledger_id} is the stream of log {name}: it cannot be deleted by itself; delete the log"
        )
    await delete_stream(store, ledger_id)


async def _metadata(store: MetadataStore, ledger_id: LedgerId) -> EitherMetadata | None:
    """None where they are damaged, or of a newer version: such a ledger can be deleted all the same."""
    try:
        return (await store.read_either(ledger_id)).value
    except (NoSuchLedgerError, MetadataUnavailableError):
        raise
    except MetadataError:
        return None


async def _log_of(store: MetadataStore, stream: StoredLedger) -> str | None:
    """The log whose stream it is; None where no document names it, so that nothing else would delete it."""
    name = stream.custom_metadata.get(LOG_KEY, b"").decode(errors="replace")
    found = await store.read_document(list_document(name)) if name else None
    document = None if found is None else decode_any_log(found.value, name)
    is_named = isinstance(document, StreamLogDocument) and document.ledger_id == stream.ledger_id
    return name if is_named else None
