"""Looks at a cluster for ``octavo top``: what bookies and logs do between two of them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from octavo.cli.rates import compare
from octavo.client.log.cursors.reading import read_cursors
from octavo.client.log.overview import LogOverview, log_overviews
from octavo.client.log.seam.concurrently import together
from octavo.protocol.errors import NoSuchLogError, OctavoError

if TYPE_CHECKING:
    from octavo.client.bookie_status import BookieStatus
    from octavo.client.client import Client
    from octavo.client.log.documents.cursors import CursorState
    from octavo.client.log.log import Log
    from octavo.metadata import MetadataStore

LOGS_MAX: Final = 200
"""Logs that are watched, the first by name: a look takes a request to bookies for each log that has a leader."""


class Looks(Protocol):
    """Looks at a cluster again and again."""

    @property
    def note(self) -> str:
        """Says what the page leaves out; empty if it shows all."""

    async def look(self) -> Any:
        """The cluster as it is now."""

    def compare(self, before: Any, after: Any, seconds: float) -> list[dict[str, Any]]:
        """The rows of a page by two looks that are ``seconds`` apart; without ``before`` (None), without rates."""


async def intervals(looks: Looks, interval: float, *, count: int | None) -> AsyncGenerator[list[dict[str, Any]]]:
    """The rows of each of ``count`` intervals (None: for ever)."""
    loop = asyncio.get_running_loop()
    before, then = await looks.look(), loop.time()
    while count is None or count > 0:
        await asyncio.sleep(interval)
        after, now = await looks.look(), loop.time()
        yield looks.compare(before, after, now - then)
        before, then = after, now
        count = None if count is None else count - 1


class BookieLooks:
    """At the bookies."""

    note = ""

    def __init__(self, client: "Client") -> None:
        self._client = client

    async def look(self) -> "list[BookieStatus]":
        """The bookies and what they have counted."""
        return await self._client.bookies(details=True)

    def compare(
        self, before: "list[BookieStatus] | None", after: "list[BookieStatus]", seconds: float
    ) -> list[dict[str, Any]]:
        """As :class:`Looks`."""
        return compare(before or [], after, seconds)


class LogLooks:
    """At the logs whose names start with ``prefix``.

    Of a log with a leader only its bookies know the end. They are asked by a handle that stays open; a log that cannot
    be opened without a password shows what the metadata tell.
    """

    def __init__(self, client: "Client", store: "MetadataStore", prefix: str) -> None:
        self._client = client
        self._store = store
        self._prefix = prefix
        self._handles: dict[str, Log] = {}
        self.note = ""

    async def close(self) -> None:
        """Close the handles."""
        handles, self._handles = list(self._handles.values()), {}
        await asyncio.gather(*(handle.close() for handle in handles), return_exceptions=True)

    async def look(self) -> list[dict[str, Any]]:
        """The logs as they are now."""
        found: list[LogOverview] = []
        self.note = ""
        overviews = log_overviews(self._store, self._prefix)
        async for overview in overviews:
            if len(found) == LOGS_MAX:
                self.note = f"the first {LOGS_MAX} logs"
                break
            if isinstance(overview, LogOverview):
                found.append(overview)
        ids = {log.log_id for log in found}
        for log_id in [log_id for log_id in self._handles if log_id not in ids]:
            await self._handles.pop(log_id).close()
        return await together(self._row(log, time.time()) for log in found)

    async def _row(self, log: LogOverview, now: float) -> dict[str, Any]:
        cursors = await read_cursors(self._store, log.log_id)
        end = await self._end_of(log)
        known = end if end is not None else log.end
        return {
            "name": log.name,
            "log_id": log.log_id,
            "leader": log.leader,
            "sealed": log.sealed,
            "first_position": log.first_position,
            "end": known,
            "end_is_known": log.end_is_known or end is not None,
            "bytes": log.bytes,
            "age_seconds": max(0.0, round(now - log.created_at_ms / 1000, 1)),
            **lag_of(cursors, known),
        }

    async def _end_of(self, log: LogOverview) -> int | None:
        """The end of a log that is being written; None where the metadata tell as much as this client can learn."""
        if log.end_is_known:
            return None
        with contextlib.suppress(OctavoError):
            handle = self._handles.get(log.log_id)
            if handle is None:
                handle = self._handles[log.log_id] = await self._client.open_log(log.name)
            try:
                return await handle.refresh()
            except NoSuchLogError:
                await self._handles.pop(log.log_id).close()
        return None

    def compare(
        self, before: Sequence[Mapping[str, Any]] | None, after: Sequence[Mapping[str, Any]], seconds: float
    ) -> list[dict[str, Any]]:
        """As :class:`Looks`. Adds are None where one of the looks does not know the end, or did not see the log."""
        ends = {row["log_id"]: row["end"] for row in before or [] if row["end_is_known"]}

        def rate(row: Mapping[str, Any]) -> float | None:
            if not row["end_is_known"] or row["log_id"] not in ends:
                return None
            return round(float(row["end"] - ends[row["log_id"]]) / seconds, 1)

        return [{**row, "adds_per_second": rate(row)} for row in after]


def lag_of(cursors: "Mapping[str, CursorState]", end: int) -> dict[str, Any]:
    """The cursor that is farthest behind, and by how many entries; None for both without cursors."""
    if not cursors:
        return {"lag": None, "slowest_cursor": None}
    name = min(cursors, key=lambda one: (cursors[one].position, one))
    return {"lag": max(0, end - cursors[name].position), "slowest_cursor": name}
