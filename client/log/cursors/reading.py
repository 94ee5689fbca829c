"""Reads what the metadata store holds of the cursors of a log."""

from octavo.client.log.documents.cursors import CursorsDocument, CursorState, decode_cursors
from octavo.client.log.documents.names import cursors_document
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned


async def read_cursors_document(store: MetadataStore, log_id: str) -> Versioned[CursorsDocument] | None:
    """The document as it stands now; None when the log never had a cursor, or has been deleted."""
    found = await store.read_document(cursors_document(log_id))
    if found is None:
        return None
    return Versioned(decode_cursors(found.value, f"cursors of log {log_id}"), found.version)


async def read_cursors(store: MetadataStore, log_id: str) -> dict[str, CursorState]:
    """All cursors of the log, by name."""
    found = await read_cursors_document(store, log_id)
    return {} if found is None else dict(found.value.cursors)
