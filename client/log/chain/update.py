"""Changes of the list of a chain, made in a compare-and-set loop (rule M1)."""

from octavo.client.log.chain.changes import LogChange, Write
from octavo.client.log.documents.chain import LogDocument
from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.reading import read_log
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.updates.compare_and_set import settle_change


async def update_log(
    store: MetadataStore,
    name: str,
    change: LogChange,
    *,
    log_id: str,
    known: Versioned[LogDocument] | None = None,
) -> Versioned[LogDocument]:
    """Make ``change`` in the list of the log ``log_id``, or find it made; gives what then stands in the store.

    ``known`` is what the caller believes to stand there; it saves a read and is safe when out of date.

    Raises what the change refuses with, :class:`NoSuchLogError` when the log is gone or is another one by now, and
    :class:`MetadataUnavailableError` when the store did not answer: the change may have been made then, and calling
    again settles it.
    """

    async def write(decision: Write, expected: Version) -> Versioned[LogDocument]:
        version = await store.compare_and_set_document(list_document(name), decision.document.encode(), expected)
        return Versioned(decision.document, version)

    return await settle_change(
        known,
        read=lambda: read_log(store, name, log_id=log_id, deleted=True),
        decide=change.decide,
        write=write,
        what=f"the list of log {name}",
    )
