"""The list of logs with what they do: one look at a time, however many pages show it."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from octavo.cli.top.looks import LOGS_MAX, LogLooks

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.metadata import MetadataStore

LISTS_MAX: Final = 4
"""Lists that are remembered, by the beginning of the names: each holds handles of logs that have a leader."""

FRESH_SECONDS: Final = 1.0
"""A look that is not older answers the next page, too."""

STALE_SECONDS: Final = 30.0
"""Rates since a look that is older say nothing about now."""


class _List:
    """The logs whose names have one beginning. ``at``: when they were looked at; below 0: never."""

    def __init__(self, looks: LogLooks) -> None:
        self.looks = looks
        self.lock = asyncio.Lock()
        self.at = -1.0
        self.rows: list[dict[str, Any]] | None = None
        self.shown: list[dict[str, Any]] = []


class LogsWatch:
    """See the module. ``clock`` gives seconds and goes on evenly."""

    def __init__(self, client: "Client", store: "MetadataStore", clock: Callable[[], float]) -> None:
        self._client = client
        self._store = store
        self._clock = clock
        self._lists: dict[str, _List] = {}

    async def logs(self, prefix: str) -> dict[str, Any]:
        """The logs whose names start with ``prefix``, up to :data:`octavo.cli.top.looks.LOGS_MAX` of them; rates are
        None at the first look. Raises :class:`OctavoError`."""
        found = self._lists.pop(prefix, None) or _List(LogLooks(self._client, self._store, prefix))
        self._lists[prefix] = found
        while len(self._lists) > LISTS_MAX:
            oldest = self._lists.pop(next(iter(self._lists)))
            async with oldest.lock:
                await oldest.looks.close()
        async with found.lock:
            if found.at < 0 or self._clock() - found.at > FRESH_SECONDS:
                await self._look(found)
        return {"items": found.shown, "more": bool(found.looks.note), "shown_max": LOGS_MAX}

    async def _look(self, found: _List) -> None:
        rows, now = await found.looks.look(), self._clock()
        seconds = now - found.at
        before = found.rows if found.at >= 0 and seconds <= STALE_SECONDS else None
        found.shown = found.looks.compare(before, rows, max(seconds, 1e-3))
        found.rows, found.at = rows, now

    async def close(self) -> None:
        """Close the handles of all logs."""
        lists, self._lists = list(self._lists.values()), {}
        for one in lists:
            async with one.lock:
                await one.looks.close()
