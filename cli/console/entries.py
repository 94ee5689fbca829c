"""Entries of a log as the console shows them: a page of them, by position or by time, or those that hold a text.

A log with a password is not shown: the console has none.
"""

from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from octavo.cli.console.json_fields import FieldWanted, parse_field
from octavo.cli.log.moments import parse_moment
from octavo.cli.output import bytes_as_json
from octavo.protocol.errors import LogDamagedError, QuorumLostError, TruncatedError

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.client.log.log import Log
    from octavo.client.log.seam.entries import LogEntry

ENTRIES_MAX: Final = 100
"""Of a page."""

SHOWN_BYTES_MAX: Final = 16 * 1024
"""Of a payload; the page says how long it is."""

SCANNED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of the payloads that one request searches; the page offers to go on."""

SCANNED_ENTRIES_MAX: Final = 50_000
"""Of one request."""


async def entries_as_json(
    client: "Client",
    name: str,
    *,
    first: int | None = None,
    last: int | None = None,
    at: str | None = None,
    contains: str = "",
    field: str = "",
    count: int = 50,
    searched_max: int = SCANNED_ENTRIES_MAX,
) -> dict[str, Any]:
    """Up to ``count`` entries from ``first`` on, from the time ``at`` on, or, without both, the newest ones.

    With ``contains`` only those whose payload holds that text, in UTF-8; with ``field`` only those whose payload is
    JSON with that field (:mod:`octavo.cli.console.json_fields`). ``last`` is the last position to look at. No more than
    ``searched_max`` entries are looked at. ``next`` is the position at which to go on, and None where there is no more.
    ``error`` says why the entries behind the last one cannot be had.

    Raises :class:`NoSuchLogError`, :class:`UnauthorizedError`, :class:`InvalidArgumentError`, and what opening raises.
    """
    wanted = Wanted(contains.encode(), parse_field(field) if field else None)
    async with client.open_log(name) as log:
        end = await log.refresh()
        stop = end if last is None else min(end, last + 1)
        if at is not None:
            first = await log.position_at(parse_moment(at, datetime.now(UTC)))
        start = max(log.first_position, stop - count if first is None else first)
        items, searched, error = await _search(log, start, min(stop, start + searched_max), wanted, count)
        return {
            "first_position": log.first_position,
            "end": end,
            "from": start,
            "searched": max(0, searched - start),
            "items": items,
            "next": searched if searched < stop and error is None else None,
            "error": error,
        }


class Wanted(NamedTuple):
    """The entries that a page shows."""

    text: bytes
    field: FieldWanted | None

    def fits(self, payload: bytes) -> bool:
        """Whether the page shows an entry with this payload."""
        return self.text in payload and (self.field is None or self.field.fits(payload))


async def _search(
    log: "Log", start: int, stop: int, wanted: Wanted, count: int
) -> tuple[list[dict[str, Any]], int, str | None]:
    """The entries that fit, the position behind the last one that was looked at, and why it ends there if something is
    wrong."""
    items: list[dict[str, Any]] = []
    at, scanned_bytes = start, 0
    if start >= stop:
        return items, stop, None
    try:
        async with aclosing(log.entries(start, stop - 1)) as entries:
            async for entry in entries:
                at = entry.position + 1
                scanned_bytes += len(entry.payload)
                if wanted.fits(entry.payload):
                    items.append(_as_json(entry))
                if len(items) == count or scanned_bytes >= SCANNED_BYTES_MAX:
                    return items, at, None
    except (LogDamagedError, QuorumLostError, TruncatedError) as error:
        return items, at, error.message
    return items, stop, None


def _as_json(entry: "LogEntry") -> dict[str, Any]:
    return {
        "position": entry.position,
        "term": entry.term,
        "sealed_at": entry.sealed_at.isoformat(),
        "bytes": len(entry.payload),
        "payload": bytes_as_json(beginning_of(entry.payload)),
    }


def beginning_of(payload: bytes) -> bytes:
    """Cut a payload to what the page shows, a text between two characters."""
    if len(payload) <= SHOWN_BYTES_MAX:
        return payload
    cut = payload[:SHOWN_BYTES_MAX]
    for left_out in range(4):
        shorter = cut[: len(cut) - left_out]
        try:
            shorter.decode()
        except UnicodeDecodeError:
            continue
        return shorter
    return cut
