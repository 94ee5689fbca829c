"""Records of a topic as the console shows them: a page of them, from an offset or a time on, or the newest ones.

A private topic is not shown: the console has no password.
"""

from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from octavo.bookie.admin.http_messages import HttpError
from octavo.cli.console.entries import SCANNED_BYTES_MAX, SHOWN_BYTES_MAX, beginning_of
from octavo.cli.log.moments import parse_moment
from octavo.cli.output import bytes_as_json
from octavo.gateway.codes import RefusedError
from octavo.gateway.leading.anchors import Anchors
from octavo.gateway.leading.beginning import batch_of, extent_of
from octavo.gateway.records.batch import read_header
from octavo.gateway.records.contents import Record, records_of
from octavo.gateway.records.unpacking import MissingCodecError
from octavo.gateway.topics.reading import read_topic
from octavo.protocol.errors import InvalidArgumentError, LogDamagedError, QuorumLostError, TruncatedError

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.client.log.log import Log
    from octavo.client.log.seam.entries import LogEntry
    from octavo.metadata import MetadataStore

HEADERS_MAX: Final = 50
"""Of a record."""


async def records_as_json(
    client: "Client",
    store: "MetadataStore",
    name: str,
    partition: int,
    *,
    offset: int | None = None,
    at: str | None = None,
    count: int = 50,
) -> dict[str, Any]:
    """Up to ``count`` records of a partition from ``offset`` on, from those on that were added at the time ``at`` or
    later, or, without both, the newest ones.

    ``next`` is the offset at which to go on, and None where there is no more. ``error`` says why the records behind the
    last one cannot be had. An entry that holds no records that can be read is an item with ``trouble``.

    Raises :class:`HttpError` if there is no such partition, :class:`UnauthorizedError`, :class:`InvalidArgumentError`,
    and what opening raises.
    """
    moment = None if at is None else parse_moment(at, datetime.now(UTC))
    try:
        topic = await read_topic(store, name)
    except RefusedError as error:
        raise HttpError(404, "NoSuchTopic", error.text) from error
    if partition >= topic.partitions:
        raise InvalidArgumentError(f"topic {name} has the partitions 0 to {topic.partitions - 1}")
    async with client.open_log(topic.log_name(partition)) as log:
        anchors, stop = Anchors(store, log.log_id), await log.refresh()
        extent = await extent_of(log, anchors, stop)
        lowest = max(log.first_position, (await anchors.read()).position)
        if moment is not None:
            first, offset = max(lowest, await log.position_at(moment)), extent.start_offset
        else:
            offset = max(extent.start_offset, extent.next_offset - count if offset is None else offset)
            first = await batch_of(log, offset, lowest, stop)
        page = await _page(log, first, stop, offset, count)
    return {
        "partitions": topic.partitions,
        "start_offset": extent.start_offset,
        "end": extent.next_offset,
        **page,
    }


async def _page(log: "Log", first: int, stop: int, offset: int, count: int) -> dict[str, Any]:
    """The records in the entries from ``first`` on that have this offset or a higher one."""
    items: list[dict[str, Any]] = []
    scanned_bytes = 0
    if first >= stop:
        return {"items": items, "next": None, "error": None}
    try:
        async with aclosing(log.entries(first, stop - 1)) as entries:
            async for entry in entries:
                scanned_bytes += len(entry.payload)
                found, left = _records_in(entry, offset, count - len(items))
                items += found
                offset = max(offset, _behind(entry))
                is_enough = len(items) >= count or scanned_bytes >= SCANNED_BYTES_MAX
                if left is not None or (is_enough and entry.position + 1 < stop):
                    return {"items": items, "next": offset if left is None else left, "error": None}
    except (LogDamagedError, QuorumLostError, TruncatedError) as error:
        return {"items": items, "next": None, "error": error.message}
    return {"items": items, "next": None, "error": None}


def _behind(entry: "LogEntry") -> int:
    batch = read_header(entry.payload)
    return 0 if batch is None else batch.next_offset


def _records_in(entry: "LogEntry", offset: int, room: int) -> tuple[list[dict[str, Any]], int | None]:
    """Up to ``room`` records from an offset on, and the offset of the next one, if there was no room for it."""
    items: list[dict[str, Any]] = []
    try:
        for record in records_of(entry.payload):
            if record.offset < offset:
                continue
            if len(items) == room:
                return items, record.offset
            items.append(_as_json(record, entry))
    except (RefusedError, MissingCodecError) as error:
        text = error.text if isinstance(error, RefusedError) else str(error)
        batch = read_header(entry.payload)
        items.append(
            {
                "position": entry.position,
                "offset": None if batch is None else batch.base_offset,
                "trouble": text,
                "bytes": len(entry.payload),
            }
        )
    return items, None


def _as_json(record: Record, entry: "LogEntry") -> dict[str, Any]:
    return {
        "position": entry.position,
        "offset": record.offset,
        "timestamp_ms": record.time_ms,
        "added_at": entry.sealed_at.isoformat(),
        "key": _shown(record.key),
        "value": _shown(record.value),
        "bytes": len(record.value or b""),
        "key_bytes": len(record.key or b""),
        "headers": [
            {"name": bytes_as_json(one.name[:SHOWN_BYTES_MAX]), "value": _shown(one.value)}
            for one in record.headers[:HEADERS_MAX]
        ],
        "headers_left_out": max(0, len(record.headers) - HEADERS_MAX),
        "trouble": None,
    }


def _shown(value: bytes | None) -> str | dict[str, str] | None:
    return None if value is None else bytes_as_json(beginning_of(value))
