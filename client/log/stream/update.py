"""Changes of the document of a log that is a stream, made in a compare-and-set loop (rule M1)."""

from typing import TYPE_CHECKING

from octavo.client.log.documents.reading import read_stream_log
from octavo.client.log.documents.stream import StreamLogDocument
from octavo.client.log.documents.updating import update_document
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned

if TYPE_CHECKING:
    from octavo.client.log.stream.changes import StreamLogChange


async def update_stream_log(
    store: MetadataStore,
    name: str,
    change: "StreamLogChange",
    *,
    log_id: str,
    known: Versioned[StreamLogDocument] | None = None,
) -> Versioned[StreamLogDocument]:
    """Make ``change`` in the document of the log ``log_id``, or find it made; gives what then stands in the store.
    Takes ``known``, and raises, as :func:`~octavo.client.log.documents.updating.update_document`."""
    return await update_document(store, name, change.decide, log_id=log_id, read=read_stream_log, known=known)
