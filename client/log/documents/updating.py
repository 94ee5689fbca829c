"""Changes of the document under a log's name, whatever its layout, made in a compare-and-set loop (rule M1)."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from octavo.client.log.documents.effects import Encodable, WriteDocument
from octavo.client.log.documents.names import list_document
from octavo.metadata.ledger.decisions import Refuse, Settled
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.updates.compare_and_set import settle_change


class ReadDocument[D: Encodable](Protocol):
    """Reads the document of one layout, as :func:`octavo.client.log.documents.reading.read_document` does."""

    def __call__(self, store: MetadataStore, name: str, *, log_id: str, deleted: bool) -> Awaitable[Versioned[D]]: ...


async def update_document[D: Encodable](
    store: MetadataStore,
    name: str,
    decide: Callable[[D], WriteDocument[D] | Settled | Refuse],
    *,
    log_id: str,
    read: ReadDocument[D],
    known: Versioned[D] | None = None,
) -> Versioned[D]:
    """Carry out what ``decide`` wants of the document of the log ``log_id``, or find it made; gives what then stands in
    the store.

    ``known`` is what the caller believes to stand there; it saves a read and is safe when out of date.

    Raises what the change refuses with, :class:`NoSuchLogError` when the log is gone or is another one by now, and
    :class:`MetadataUnavailableError` when the store did not answer: the change may have been made then, and calling
    again settles it.
    """

    async def write(decision: WriteDocument[D], expected: Version) -> Versioned[D]:
        version = await store.compare_and_set_document(list_document(name), decision.document.encode(), expected)
        return Versioned(decision.document, version)

    return await settle_change(
        known,
        read=lambda: read(store, name, log_id=log_id, deleted=True),
        decide=decide,
        write=write,
        what=f"the document of log {name}",
    )
