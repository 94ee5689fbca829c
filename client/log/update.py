"""Reading and changing the list of a log: the compare-and-set loop (rule M1)."""

from typing import Final

from octavo.client.log.changes import LogChange, Refuse, Settled
from octavo.client.log.document import LogDocument, LogState, decode_log
from octavo.client.log.names import list_document
from octavo.metadata.store import MetadataStore, Version, Versioned
from octavo.protocol.errors import MetadataConflictError, NoSuchLogError

ATTEMPTS_MAX: Final = 100
"""Rounds of one change. A round is lost only to another client's progress: so many in a row mean that something writes
the list in a loop."""


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
    for _ in range(ATTEMPTS_MAX):
        current = known if known is not None else await read_log(store, name, log_id=log_id, deleted=True)
        decision = change.decide(current.value)
        if isinstance(decision, Settled | Refuse) and known is not None:
            known = None  # decide on what stands there, not on what we believe
            continue
        if isinstance(decision, Refuse):
            raise decision.error
        if isinstance(decision, Settled):
            return current
        known = None
        try:
            version: Version = await store.compare_and_set_document(
                list_document(name), decision.document.encode(), current.version
            )
        except MetadataConflictError:
            continue
        return Versioned(decision.document, version)
    raise MetadataConflictError(
        f"log {name}: its list was changed {ATTEMPTS_MAX} times while it was to be changed once"
    )
