"""Changes of the list of a chain, made in a compare-and-set loop (rule M1)."""

from octavo.client.log.chain.changes import LogChange
from octavo.client.log.documents.chain import LogDocument
from octavo.client.log.documents.reading import read_log
from octavo.client.log.documents.updating import update_document
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned


async def update_log(
    store: MetadataStore,
    name: str,
    change: LogChange,
    *,
    log_id: str,
    known: Versioned[LogDocument] | None = None,
) -> Versioned[LogDocument]:
    """Make ``change`` in the list of the log ``log_id``, or find it made; gives what then stands in the store. Takes
    ``known``, and raises, as :func:`~octavo.client.log.documents.updating.update_document`."""
    return await update_document(store, name, change.decide, log_id=log_id, read=read_log, known=known)
