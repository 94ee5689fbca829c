"""Changes of the document of a log that is a stream, made in a compare-and-set loop (rule M1)."""

from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.reading import read_stream_log
from octavo.client.log.documents.stream import StreamLogDocument
from octavo.client.log.stream.changes import StreamLogChange, WriteStreamLog
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.updates.compare_and_set import settle_change


async def update_stream_log(
    store: MetadataStore,
    name: str,
    change: StreamLogChange,
    *,
    log_id: str,
    known: Versioned[StreamLogDocument] | None = None,
) -> Versioned[StreamLogDocument]:
    """Make ``change`` in the document of the log ``log_id``, or find it made; gives what then stands in the store.

    ``known`` is what the caller believes to stand there; it saves a read and is safe when out of date.

    Raises as :func:`octavo.client.log.chain.update.update_log`.
    """

    async def write(decision: WriteStreamLog, expected: Version) -> Versioned[StreamLogDocument]:
        version = await store.compare_and_set_document(list_document(name), decision.document.encode(), expected)
        return Versioned(decision.document, version)

    return await settle_change(
        known,
        read=lambda: read_stream_log(store, name, log_id=log_id, deleted=True),
        decide=change.decide,
        write=write,
        what=f"the document of log {name}",
    )
