"""Reads the document of a log, and what stands below it."""

from octavo.client.log.documents.chain import LogDocument
from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import AnyLogDocument, StreamLogDocument, decode_any_log
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.errors import InternalError, LogDamagedError, NoSuchLedgerError, NoSuchLogError, OctavoError


async def read_document(
    store: MetadataStore, name: str, *, log_id: str | None = None, deleted: bool = False
) -> Versioned[AnyLogDocument]:
    """The document of the log as it stands now, whatever its layout. Raises :class:`NoSuchLogError` when there is none,
    when it is not that of the log ``log_id`` (None: any), when the log is being created, and when it is being deleted
    and ``deleted`` does not allow for that."""
    found = await store.read_document(list_document(name))
    if found is None:
        raise NoSuchLogError(f"there is no log {name}")
    document = decode_any_log(found.value, name)
    if document.state is LogState.DELETED and not deleted:
        raise NoSuchLogError(f"log {name} has been deleted")
    if log_id is not None and document.log_id != log_id:
        raise NoSuchLogError(f"log {name} has been deleted and created again")
    if document.state is LogState.MAKING and log_id is None:
        raise NoSuchLogError(f"there is no log {name}: a client is creating it, or has died while it did")
    return Versioned(document, found.version)


async def read_log(
    store: MetadataStore, name: str, *, log_id: str | None = None, deleted: bool = False
) -> Versioned[LogDocument]:
    """The list of a chain as it stands now; raises as :func:`read_document`."""
    document, version = await read_document(store, name, log_id=log_id, deleted=deleted)
    if not isinstance(document, LogDocument):
        raise InternalError(f"log {name} is no chain")
    return Versioned(document, version)


async def read_stream_log(
    store: MetadataStore, name: str, *, log_id: str | None = None, deleted: bool = False
) -> Versioned[StreamLogDocument]:
    """The document of a log that is a stream; raises as :func:`read_document`."""
    document, version = await read_document(store, name, log_id=log_id, deleted=deleted)
    if not isinstance(document, StreamLogDocument):
        raise InternalError(f"log {name} is no stream")
    return Versioned(document, version)


async def read_root(store: MetadataStore, document: StreamLogDocument) -> Versioned[StreamMetadata]:
    """The metadata of the stream of a log. Raises as :func:`explain_missing` gives it when there are none."""
    try:
        return await store.read_stream(document.ledger_id)
    except NoSuchLedgerError as error:
        raise await explain_missing(store, document) from error


async def explain_missing(store: MetadataStore, document: StreamLogDocument) -> OctavoError:
    """Why the stream of a log does not exist: :class:`NoSuchLogError` when the log does not exist any more either, else
    :class:`LogDamagedError`."""
    try:
        await read_stream_log(store, document.name, log_id=document.log_id)
    except NoSuchLogError as error:
        return error
    return LogDamagedError(
        f"log {document.name}: its stream, ledger {document.ledger_id}, does not exist any more; it was deleted by "
        "hand. Restore its metadata"
    )
