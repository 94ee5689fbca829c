"""A log as the console shows it. A log that the console may not read is shown as far as its list of segments tells."""

from typing import TYPE_CHECKING, Any

from octavo.cli.log.show import cursors_as_json, retention_as_json, segments_as_json, status_as_json
from octavo.client.log.cursors import read_cursors
from octavo.client.log.names import lock_name
from octavo.client.log.status import segments_of
from octavo.client.log.update import read_log
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
        document = (await read_log(store, name)).value
    holder = await store.read_lock(lock_name(document.log_id))
    segments = segments_of(document)
    return {
        "name": document.name,
        "log_id": document.log_id,
        "first_position": document.first_position,
        "end": document.known_stop,
        "end_is_known": False,
        "term": document.term,
        "leader": None if holder is None else holder.holder,
        "bytes": sum(page.bytes for page in document.pages) + sum(segment.bytes or 0 for segment in segments),
        "retention": retention_as_json(document.retention),
        "segments": segments_as_json(segments),
        "paged_segments": sum(page.segments for page in document.pages),
        "cursors": cursors_as_json(await read_cursors(store, document.log_id), document.known_stop),
        "gaps": [list(gap) for gap in document.gaps],
    }
