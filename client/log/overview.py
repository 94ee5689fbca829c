"""All logs of a cluster at a glance: what the metadata tell of each, read a hundred logs at a time.

No bookie is asked, and no leader is disturbed. Of a log whose last segment is open the metadata tell where that begins,
not where it ends: :attr:`LogOverview.end_is_known`.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from octavo.client.log.documents.chain import LogDocument, LogState
from octavo.client.log.documents.names import list_document, list_prefix, lock_name, name_of_document
from octavo.client.log.documents.stream import AnyLogDocument, StreamLogDocument, decode_any_log, log_term
from octavo.client.log.seam.concurrently import together
from octavo.client.log.seam.status import segments_of
from octavo.client.log.stream.status import known_stop_of_stream
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.protocol.errors import MetadataError, NoSuchLedgerError

LOGS_AT_A_TIME: Final = 100
"""Drivers send requests that are made together at once: the time of a list is not that of as many round trips. More
would hold up what else the store's thread has to do."""


class LogOverview(NamedTuple):
    """One log, as far as the metadata tell."""

    name: str
    log_id: str
    layout: str
    first_position: int
    end: int
    end_is_known: bool
    """False while a leader has the last segment open: entries may follow ``end``, and only bookies know them."""
    term: int
    leader: str | None
    """The name under which the lock is held; None while it is free."""
    bytes: int
    """Payload of the closed segments."""
    created_at_ms: int
    sealed: bool


class UnreadableLog(NamedTuple):
    """A log whose metadata cannot be understood, or are not there."""

    name: str
    reason: str


async def names_of_logs(store: MetadataStore, prefix: str) -> AsyncIterator[str]:
    """The names of all logs that start with ``prefix``, in order and in bounded memory. Logs being created or deleted
    are left out. Raises :class:`MetadataError` for a log whose document cannot be understood."""
    async for some in _documents(store, prefix):
        for name, value in some:
            if decode_any_log(value, name).state is LogState.ACTIVE:
                yield name


async def log_overviews(store: MetadataStore, prefix: str) -> AsyncIterator[LogOverview | UnreadableLog]:
    """All logs whose names start with ``prefix``, as :func:`names_of_logs`; one that cannot be understood by name."""
    async for some in _documents(store, prefix):
        for overview in await together(_overview(store, name, value) for name, value in some):
            if overview is not None:
                yield overview


async def overview_of(store: MetadataStore, name: str) -> LogOverview | UnreadableLog | None:
    """The log of this name; None where there is none."""
    found = await store.read_document(list_document(name))
    return None if found is None else await _overview(store, name, found.value)


async def _documents(store: MetadataStore, prefix: str) -> AsyncIterator[list[tuple[str, bytes]]]:
    """Names and documents of logs, up to :data:`LOGS_AT_A_TIME` of them at a time."""
    listed: list[str] = []
    async for document in store.list_documents(list_prefix(prefix)):
        listed.append(document)
        if len(listed) == LOGS_AT_A_TIME:
            yield await _read(store, listed)
            listed = []
    yield await _read(store, listed)


async def _read(store: MetadataStore, documents: list[str]) -> list[tuple[str, bytes]]:
    values = await together(map(store.read_document, documents))
    return [
        (name_of_document(document), found.value)
        for document, found in zip(documents, values, strict=True)
        if found is not None
    ]


async def _overview(store: MetadataStore, name: str, value: bytes) -> LogOverview | UnreadableLog | None:
    """None for a log that is not there, or not any more."""
    try:
        document = decode_any_log(value, name)
        if document.state is not LogState.ACTIVE:
            return None
        if isinstance(document, LogDocument):
            return _of_chain(document, await _leader(store, document))
        stream = (await store.read_stream(document.ledger_id)).value
        has_writer = stream.state in {StreamState.OPEN, StreamState.IN_RECOVERY}
        return _of_stream(document, stream, await _leader(store, document) if has_writer else None)
    except MetadataError as error:
        return UnreadableLog(name, error.message)
    except NoSuchLedgerError:
        found = await store.read_document(list_document(name))
        if found is None or found.value != value:  # it was deleted meanwhile, and maybe created again
            return None if found is None else await _overview(store, name, found.value)
        return UnreadableLog(name, f"log {name}: its metadata are gone")


async def _leader(store: MetadataStore, document: AnyLogDocument) -> str | None:
    holder = await store.read_lock(lock_name(document.log_id))
    return None if holder is None else holder.holder


def _of_chain(document: LogDocument, leader: str | None) -> LogOverview:
    last = document.segments[-1] if document.segments else None
    return LogOverview(
        name=document.name,
        log_id=document.log_id,
        layout="chain",
        first_position=document.first_position,
        end=max(document.first_position, document.known_stop),
        end_is_known=last is None or last.end is not None,
        term=document.term,
        leader=leader,
        bytes=sum(page.bytes for page in document.pages) + sum(one.bytes or 0 for one in segments_of(document)),
        created_at_ms=document.created_at_ms,
        sealed=False,
    )


def _of_stream(document: StreamLogDocument, stream: StreamMetadata, leader: str | None) -> LogOverview:
    first_position = max(document.first_position, stream.start)
    return LogOverview(
        name=document.name,
        log_id=document.log_id,
        layout="stream",
        first_position=first_position,
        end=max(first_position, known_stop_of_stream(stream)),
        end_is_known=stream.end_position is not None,
        term=log_term(stream.last_fragment.first_term),
        leader=leader,
        bytes=stream.settled_bytes,
        created_at_ms=document.created_at_ms,
        sealed=stream.state is StreamState.CLOSED,
    )
