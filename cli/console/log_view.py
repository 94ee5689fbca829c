"""A log as the console shows it. A log that the console may not read is shown as far as the metadata tell."""

from typing import TYPE_CHECKING, Any

from octavo.cli.log.show import (
    cursors_as_json,
    quorums_as_json,
    retention_as_json,
    segments_as_json,
    status_as_json,
)
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.documents.chain import LogDocument
from octavo.client.log.documents.names import lock_name
from octavo.client.log.documents.reading import read_document
from octavo.client.log.documents.stream import StreamLogDocument
from octavo.client.log.documents.terms import log_term
from octavo.client.log.seam.status import segments_of
from octavo.client.log.stream.status import known_stop_of_stream, segments_of_stream
from octavo.metadata.stream.model import StreamState
from octavo.protocol.errors import UnauthorizedError

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.metadata import MetadataStore


async def log_as_json(client: "Client", store: "MetadataStore", name: str) -> dict[str, Any]:
    """Leader, segments and cursors. ``end_is_known``: whether ``end`` includes the segment that is being written, which
    only its bookies know, and tell only to clients with the password and the role read. Raises :class:`NoSuchLogError`,
    :class:`InvalidArgumentError`."""
    try:
        async with client.open_log(name) as log:
            return {**status_as_json(await log.status()), "end_is_known": True}
    except UnauthorizedError:
        document = (await read_document(store, name)).value
    holder = await store.read_lock(lock_name(document.log_id))
    known = await (_chain(document) if isinstance(document, LogDocument) else _stream(store, document))
    return {
        "name": document.name,
        "log_id": document.log_id,
        "end_is_known": False,
        "leader": None if holder is None else holder.holder,
        "retention": retention_as_json(document.retention),
        "cursors": cursors_as_json(await read_cursors(store, document.log_id), known["end"]),
        **known,
    }


async def _chain(document: LogDocument) -> dict[str, Any]:
    segments = segments_of(document)
    return {
        "layout": "chain",
        "full_copies": None,
        "first_position": document.first_position,
        "end": document.known_stop,
        "term": document.term,
        "sealed": False,
        "bytes": sum(page.bytes for page in document.pages) + sum(segment.bytes or 0 for segment in segments),
        "segments": segments_as_json(segments),
        "paged_segments": sum(page.segments for page in document.pages),
        "gaps": [list(gap) for gap in document.gaps],
        "quorums": quorums_as_json(document.quorums),
    }


async def _stream(store: "MetadataStore", document: StreamLogDocument) -> dict[str, Any]:
    stream = (await store.read_stream(document.ledger_id)).value
    first_position = max(document.first_position, stream.start)
    return {
        "layout": "stream",
        "full_copies": None if stream.full_copies is None else stream.full_copies.value,
        "first_position": first_position,
        "end": max(first_position, known_stop_of_stream(stream)),
        "term": log_term(stream.last_fragment.first_term),
        "sealed": stream.state is StreamState.CLOSED,
        "bytes": stream.settled_bytes,
        "segments": segments_as_json(segments_of_stream(stream)),
        "paged_segments": sum(page.fragments for page in stream.pages),
        "gaps": [],
        "quorums": quorums_as_json(stream.last_fragment.quorums),
    }
