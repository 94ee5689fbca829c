"""All logs of a cluster at a glance: what the metadata tell of each, read a hundred logs at a time.

No bookie is asked, and no leader is disturbed. Of a log whose last segment is open the metadata tell where that begins,
not where it ends: :attr:`LogOverview.end_is_known`.
"""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from octavo.client.log.documents.glance import StreamLogGlance, glance_at_log, is_active
from octavo.client.log.documents.names import list_document, list_prefix, lock_name, name_of_document
from octavo.client.log.documents.terms import log_term
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import MetadataError, NoSuchLedgerError, OctavoError

if TYPE_CHECKING:
    from octavo.client.log.documents.chain import LogDocument
    from octavo.metadata.stream.glance import StreamGlance

LOGS_AT_A_TIME: Final = 200
"""Each of three requests reads what belongs to so many logs: the time of a list is not that of as many round trips.
More would hold up what else the store's thread has to do."""


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


type _Listed = tuple[str, bytes]
"""The name of a log, and its document."""


async def names_of_logs(store: MetadataStore, prefix: str) -> AsyncIterator[str]:
    """The names of all logs that start with ``prefix``, in order and in bounded memory. Logs being created or deleted
    are left out. Raises :class:`MetadataError` for a log whose document cannot be understood."""
    async for some in _documents(store, prefix):
        for name, value in some:
            if is_active(glance_at_log(value, name)):
                yield name


async def log_overviews(store: MetadataStore, prefix: str) -> AsyncIterator[LogOverview | UnreadableLog]:
    """All logs whose names start with ``prefix``, as :func:`names_of_logs`; one that cannot be understood by name."""
    async for some in _documents(store, prefix):
        for overview in await _overviews(store, some):
            if overview is not None:
                yield overview


async def overview_of(store: MetadataStore, name: str) -> LogOverview | UnreadableLog | None:
    """The log of this name; None where there is none."""
    found = await store.read_document(list_document(name))
    if found is None:
        return None
    (overview,) = await _overviews(store, [(name, found.value)])
    return overview


async def _documents(store: MetadataStore, prefix: str) -> AsyncIterator[list[_Listed]]:
    """Names and documents of logs, up to :data:`LOGS_AT_A_TIME` of them at a time."""
    listed: list[str] = []
    async for document in store.list_documents(list_prefix(prefix)):
        listed.append(document)
        if len(listed) == LOGS_AT_A_TIME:
            yield await _read(store, listed)
            listed = []
    yield await _read(store, listed)


async def _read(store: MetadataStore, documents: list[str]) -> list[_Listed]:
    values = await store.read_documents(documents)
    return [
        (name_of_document(document), found.value)
        for document, found in zip(documents, values, strict=True)
        if found is not None
    ]


async def _overviews(store: MetadataStore, logs: Sequence[_Listed]) -> list[LogOverview | UnreadableLog | None]:
    """One for each of the logs; None for a log that is not there, or not any more."""
    glances = {name: _glance(name, value) for name, value in logs}
    streams = {name: log for name, log in glances.items() if isinstance(log, StreamLogGlance)}
    found = await store.glance_streams([log.ledger_id for log in streams.values()])
    told = dict(zip(streams, found, strict=True))
    leaders = await _leaders(store, glances, told)
    return [
        _told(name, glances[name], told.get(name), leaders.get(name))
        if not isinstance(told.get(name), NoSuchLedgerError)
        else await _without_stream(store, name, value)
        for name, value in logs
    ]


type _Glance = StreamLogGlance | LogDocument | UnreadableLog | None


def _glance(name: str, value: bytes) -> _Glance:
    try:
        log = glance_at_log(value, name)
    except MetadataError as error:
        return UnreadableLog(name, error.message)
    return log if is_active(log) else None


async def _leaders(
    store: MetadataStore, glances: dict[str, _Glance], streams: dict[str, "StreamGlance | OctavoError"]
) -> dict[str, str]:
    """The leaders of the logs that can have one."""
    locks: dict[str, str] = {}
    for name, log in glances.items():
        stream = streams.get(name)
        if log is None or isinstance(log, UnreadableLog) or isinstance(stream, OctavoError):
            continue
        if stream is None or stream.has_writer:
            locks[name] = lock_name(log.log_id)
    holders = await store.read_locks([*locks.values()])
    return {name: holder.holder for name, holder in zip(locks, holders, strict=True) if holder is not None}


def _told(
    name: str, log: _Glance, stream: "StreamGlance | OctavoError | None", leader: str | None
) -> LogOverview | UnreadableLog | None:
    if log is None or isinstance(log, UnreadableLog):
        return log
    if not isinstance(log, StreamLogGlance):
        return _of_chain(log, leader)
    assert stream is not None, "the metadata of every stream were asked for"
    if isinstance(stream, OctavoError):
        return UnreadableLog(name, stream.message)
    return _of_stream(name, log, stream, leader)


async def _without_stream(store: MetadataStore, name: str, value: bytes) -> LogOverview | UnreadableLog | None:
    """The log, whose stream is not there: it was deleted, and maybe created again, or its metadata are lost."""
    found = await store.read_document(list_document(name))
    if found is not None and found.value == value:
        return UnreadableLog(name, f"log {name}: its metadata are gone")
    return None if found is None else (await _overviews(store, [(name, found.value)]))[0]


def _of_chain(document: "LogDocument", leader: str | None) -> LogOverview:
    from octavo.client.log.seam.status import segments_of  # noqa: PLC0415 - most lists meet no chain

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


def _of_stream(name: str, log: StreamLogGlance, stream: "StreamGlance", leader: str | None) -> LogOverview:
    first_position = max(log.first_position, stream.start)
    return LogOverview(
        name=name,
        log_id=log.log_id,
        layout="stream",
        first_position=first_position,
        end=max(first_position, stream.known_stop),
        end_is_known=stream.stop_is_known,
        term=log_term(stream.first_term),
        leader=leader,
        bytes=stream.settled_bytes,
        created_at_ms=log.created_at_ms,
        sealed=stream.closed,
    )
