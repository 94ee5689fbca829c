"""Reading and changing the list of a log: the compare-and-set loop (rule M1)."""

from octavo.client.log.changes import LogChange, Write
from octavo.client.log.document import LogDocument, LogState, decode_log
from octavo.client.log.names import list_document
from octavo.metadata.settling import settle_change
from octavo.metadata.store import MetadataStore, Version, Versioned
from octavo.protocol.errors import NoSuchLogError


async def read_log(
    store: MetadataStore, name: str, *, log_id: str | None = None, deleted: bool = False
) -> Versioned[LogDocument]:
    """The list as it stands now. Raises :class:`NoSuchLogError` when there is none, when it is not that of the log
    ``log_id`` (None: any), and when the log is being deleted and ``deleted`` does not allow for that."""
    found = await store.read_document(list_document(name))
    if found is None:
        raise NoSuchLogError(f"there is no log {name}")
    document = decode_log(found.value, name)
    if document.state is LogState.DELETED and not deleted:
        raise NoSuchLogError(f"log {name} has been deleted")
    if log_id is not None and document.log_id != log_id:
        raise NoSuchLogError(f"log {name} has been deleted and created again")
    return Versioned(document, found.version)


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
