"""Looks at the cluster for the console: one look every few seconds, however many pages are open.

While no page is open the observer looks twice a minute, so that a page that is opened shows the last hour. When the
metadata store does not answer, the last look stays visible with its age and the error.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from octavo.cli.cluster.status import as_json as cluster_as_json
from octavo.cli.console.history import History, Point
from octavo.cli.console.switches import Switches
from octavo.cli.rates import RATES, compare, latencies
from octavo.cli.session import describe
from octavo.metadata.updates.cluster_release import finalized_release
from octavo.metadata.updates.garbage_hold import read_hold
from octavo.protocol.errors import OctavoError
from octavo.repair.operate.operators import read_status, status_fields

if TYPE_CHECKING:
    from octavo.client.bookie_status import BookieStatus
    from octavo.client.client import Client
    from octavo.metadata import MetadataStore

INTERVAL_SECONDS = 2.0

UNWATCHED_SECONDS = 30.0
"""The observer rests when no page has asked for so long. Browsers slow hidden pages down to one request in a minute;
such a page gets a fresh look when it asks again."""

RESTING_SECONDS = 30.0
"""Between two looks while no page asks."""

NEXT_LOOK_SECONDS_MAX = 10.0
"""How long a request waits for the next look. Looks take longer while the metadata store does not answer."""

BLOCKED_SHOWN_MAX = 100

MORE_FACTS = ("uptime_seconds", "tls", "certificate_expires_at")
"""Facts of INFO that pages show and `octavo top` does not."""


class Observer:
    """The picture of the whole cluster that pages show. ``clock`` gives seconds since 1970."""

    def __init__(
        self,
        client: "Client",
        store: "MetadataStore",
        switches: Switches,
        clock: Callable[[], float],
        *,
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> None:
        self._client = client
        self._store = store
        self._switches = switches
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._looks = 0
        self._fresh = False
        """False before the first look, and after a time without an open page."""
        self._next_look = asyncio.Condition()
        self._hurried = asyncio.Event()
        self._asked_at: float | None = None
        self._seen: dict[str, Any] | None = None
        self._error: str | None = None
        self._before: tuple[Sequence[BookieStatus], float] | None = None
        self._history = History()

    async def state(self, after: int | None = None) -> dict[str, Any]:
        """The latest look, as soon as it is another one than number ``after``; that one after
        :data:`NEXT_LOOK_SECONDS_MAX`. ``cluster`` is None while there has been none, and ``error`` says why."""
        self._asked_at = asyncio.get_running_loop().time()
        if not self._fresh:
            self.look_now()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NEXT_LOOK_SECONDS_MAX), self._next_look:
                await self._next_look.wait_for(lambda: self._fresh and self._looks != after)
        seen = self._seen or {"looked_at": None, "cluster": None, "bookies": [], "totals": {}, "repair": None}
        return {
            **seen,
            "look": self._looks,
            "now": self._clock(),
            "error": self._error,
            "interval_seconds": self._interval_seconds,
            "history": [[point.at, *point.rates, *point.times] for point in self._history.points()],
        }

    def look_now(self) -> None:
        """Look at once, as something has been changed."""
        self._hurried.set()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            begun = loop.time()
            self._hurried.clear()
            try:
                self._seen = await self._look()
                self._error = None
            except OctavoError as error:
                self._error = error.message or type(error).__name__
            watched = self._asked_at is not None and loop.time() - self._asked_at <= UNWATCHED_SECONDS
            async with self._next_look:
                self._looks, self._fresh = self._looks + 1, watched
                self._next_look.notify_all()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(begun + (self._interval_seconds if watched else RESTING_SECONDS)):
                    await self._hurried.wait()

    async def _look(self) -> dict[str, Any]:
        loop, store = asyncio.get_running_loop(), self._store
        switches = asyncio.ensure_future(self._switches.look())
        try:
            bookies, now = await self._client.bookies(details=True), loop.time()
            operators = await switches
        finally:
            switches.cancel()
        cluster = cluster_as_json(
            await store.cluster_id(), bookies, await read_hold(store), await finalized_release(store), now=self._clock()
        )
        facts: dict[str, dict[str, Any]] = {one.bookie_id: dict(one.facts) for one in bookies if one.facts is not None}
        repair = status_fields(
            await read_status(store), facts, now_ms=round(self._clock() * 1000), blocked_max=BLOCKED_SHOWN_MAX
        )
        before, then = self._before or (bookies, now)
        rows = compare(before, bookies, max(now - then, 1e-3))
        totals: dict[str, float | None] = {}
        for name in RATES:
            rates = [row[name] for row in rows if row[name] is not None]
            totals[name] = round(sum(rates), 1) if rates and self._before is not None else None
        totals |= latencies(before, bookies)
        if self._before is not None:
            rates_now = tuple(totals[name] or 0.0 for name in RATES)
            times_now = (totals["add_p50_seconds"], totals["add_p99_seconds"])
            self._history.add(Point(self._clock(), rates_now, times_now))
        self._before = (bookies, now)
        conditions = {one["bookie_id"]: one for one in repair["bookies"]}
        for row, bookie in zip(rows, bookies, strict=True):
            row |= {"version": bookie.version, "rack": bookie.rack, "host_id": bookie.host_id}
            row["answers"] = bookie.facts is not None
            row["no_details_because"] = None if bookie.error is None else describe(bookie.error)
            row |= {name: None if bookie.facts is None else bookie.facts.get(name) for name in MORE_FACTS}
            row["can_be_switched"] = bookie.bookie_id in operators
            row["read_only_reason"] = operators.get(bookie.bookie_id)
            row["condition"] = conditions.get(bookie.bookie_id, {}).get("state", "ordinary")
        return {
            "looked_at": self._clock(),
            "cluster": cluster,
            "bookies": rows,
            "totals": totals,
            "repair": repair,
        }
