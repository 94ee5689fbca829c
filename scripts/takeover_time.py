"""Measure how long the takeover of a log that is a stream lasts, beside the recovery of a plain ledger and the takeover
of a log that is a chain.

takeover_time.py [--rounds 20] [--cases idle load stopped large fragments rest] [--megabytes 1024]
                 [--fragments 100000] [--in-flight 1000] [--data-dir DIR]

The benchmark starts a cluster of four bookies on SQLite; everything is stored with E = Qw = 3, Qa = 2. In each round,
a writer adds a few entries to a plain ledger, to a stream and to a chain, and goes on adding where the case says so.
Then another client, which is connected to the bookies, recovers the ledger or takes the log over. The order of the
three changes from round to round. Times of a recovery end when ``open_ledger`` returns; those of a takeover when
``take_over`` returns, and, as ``with_add``, when the first add of the new leader is acknowledged.

==========  ========================================================================================================
case        what is there when the takeover begins
==========  ========================================================================================================
idle        100 entries, nothing under way
load        adds in flight, as many as the option says
stopped     as idle, and one of the three bookies stands still (SIGSTOP)
large       ``--megabytes`` of entries, nothing under way
fragments   a stream of ``--fragments`` fragments; ledger and chain as in idle
rest        the last leader has closed its writer
==========  ========================================================================================================

Each line of the result is JSON.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import uvloop
from local_cluster import add_data_dir, temporary_cluster
from octavo.client.log.logs import Layout
from octavo.metadata import open_metadata_store
from octavo.metadata.pages import MOVED_FRAGMENTS_MAX
from octavo.metadata.paging import tidy_stream
from octavo.metadata.store import MetadataStore
from octavo.metadata.stream_model import FIRST_TERM
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import place
from recovery_time import Bookies

import octavo

CASES = ("idle", "load", "stopped", "large", "fragments", "rest")

_ENTRIES = 100

_LONG_ENTRIES = 100_000
"""Of each fragment that is made up."""

_PAYLOAD = os.urandom(1024)

_LAYOUTS: tuple[Layout, ...] = ("stream", "chain")


class Bench:
    """A cluster, and what the measurements of one case need of it."""

    def __init__(self, bookies: Bookies, store: MetadataStore, arguments: argparse.Namespace, case: str) -> None:
        self._uri = bookies.uri
        self._bookies = bookies
        self._store = store
        self._arguments = arguments
        self._case = case
        self._number = 0
        self._long: str | None = None
        """The log with very many fragments, which all rounds of its case share: it takes a minute to make."""

    async def _fill(self, add_many: Callable[[list[bytes]], Awaitable[object]]) -> None:
        """The entries that are there before the takeover."""
        entries = _ENTRIES
        if self._case == "large":
            entries = max(entries, self._arguments.megabytes * 2**20 // len(_PAYLOAD))
        for first in range(0, entries, 1000):
            await add_many([_PAYLOAD] * min(1000, entries - first))

    @asynccontextmanager
    async def _one_stopped(self, bookies: tuple[str, ...]) -> AsyncIterator[None]:
        """In the case ``stopped``, one of these bookies stands still during the block."""
        if self._case != "stopped":
            yield
            return
        pid = self._bookies.pid_of(bookies[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def _under_way(self, add: Callable[[bytes], asyncio.Future[Any]]) -> list[asyncio.Future[Any]]:
        """In the case ``load``, adds that are under way."""
        return [add(_PAYLOAD) for _ in range(self._arguments.in_flight if self._case == "load" else 0)]

    async def recovery(self) -> dict[str, float]:
        """Of a plain ledger."""
        async with octavo.connect(self._uri) as writing, octavo.connect(self._uri) as recovering:
            ledger = await writing.create_ledger(3, 3, 2)
            await self._fill(ledger.add_many)
            async with recovering.open_ledger(ledger.id, recover=False):  # connects to the bookies
                pass
            if self._case == "rest":
                await ledger.close()
            async with self._one_stopped(ledger.metadata.last_fragment.bookies):
                under_way = self._under_way(ledger.add_nowait)
                await asyncio.sleep(0)
                started = time.perf_counter()
                async with recovering.open_ledger(ledger.id):
                    seconds = time.perf_counter() - started
            await asyncio.gather(*under_way, return_exceptions=True)
            with contextlib.suppress(octavo.OctavoError):
                await ledger.close()
            await writing.delete_ledger(ledger.id)
        return {"returned": seconds}

    async def takeover(self, layout: Layout) -> dict[str, float]:
        """Of a log."""
        # The old leader, in this process, must not heal itself while the takeover is timed.
        async with (
            octavo.connect(self._uri, log_duel_pause_seconds=1.0) as leading,
            octavo.connect(self._uri) as standby,
        ):
            log = await self._log(leading, layout)
            leader = await log.take_over()
            await self._fill(leader.add_many)
            follower = await standby.open_log(log.name)
            await follower.refresh()  # connects to the bookies
            if self._case == "rest":
                await leader.close()
            segment = (await log.status()).segments[-1].ledger_id
            async with self._one_stopped(await self._bookies_of(segment, layout)):
                adds = self._under_way(lambda payload: asyncio.ensure_future(leader.add(payload)))
                await asyncio.sleep(0)
                started = time.perf_counter()
                writer = await follower.take_over()
                returned = time.perf_counter()
                await writer.add(b"the first of the new leader")
                added = time.perf_counter()
                await writer.close()
            await asyncio.gather(*adds, return_exceptions=True)
            with contextlib.suppress(octavo.OctavoError):
                await leader.close()
            if log.name != self._long:
                await leading.delete_log(log.name)
        return {"returned": returned - started, "with_add": added - started}

    async def _log(self, client: octavo.Client, layout: Layout) -> octavo.Log:
        """The log to take over: a new one, but for the one with very many fragments."""
        if self._long is not None and layout == "stream":
            return await client.open_log(self._long)
        self._number += 1
        name = f"takeover-{self._case}-{layout}-{self._number}"
        log = await client.create_log(name, 3, 3, 2, layout=layout)
        if self._case == "fragments" and layout == "stream":
            self._long = name
            async with await log.take_over() as writer:
                await writer.add(_PAYLOAD)
            await self._lengthen((await log.status()).segments[-1].ledger_id)
        return log

    async def _lengthen(self, ledger_id: LedgerId) -> None:
        """Put fragments before the last one of a stream at rest, as if there had been so many rolls before."""
        left = self._arguments.fragments
        offset = 0
        while left:
            known = await self._store.read_stream(ledger_id)
            *before, last = known.value.fragments
            put = min(left, MOVED_FRAGMENTS_MAX)
            before += [
                replace(
                    last,
                    first_entry_id=place(FIRST_TERM, offset + number * _LONG_ENTRIES),
                    first_position=offset + number * _LONG_ENTRIES,
                )
                for number in range(put)
            ]
            left -= put
            offset += put * _LONG_ENTRIES
            fragments = (*before, replace(last, first_position=offset))
            await self._store.compare_and_set_stream(replace(known.value, fragments=fragments), known.version)
            await tidy_stream(self._store, ledger_id, writer_token="0" * 32)

    async def _bookies_of(self, ledger_id: LedgerId, layout: Layout) -> tuple[str, ...]:
        """Where the last entries are."""
        if layout == "stream":
            return (await self._store.read_stream(ledger_id)).value.last_fragment.bookies
        return (await self._store.read_ledger(ledger_id)).value.last_fragment.bookies

    async def measured(self) -> dict[str, Any]:
        """All rounds."""
        tasks: list[tuple[str, Callable[[], Awaitable[dict[str, float]]]]] = [
            ("ledger", self.recovery),
            ("stream", lambda: self.takeover("stream")),
            ("chain", lambda: self.takeover("chain")),
        ]
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(self._arguments.rounds):
            at = number % len(tasks)
            rounds.append({name: await task() for name, task in tasks[at:] + tasks[:at]})

        def figures(what: str, key: str) -> dict[str, float]:
            milliseconds = sorted(one[what][key] * 1000 for one in rounds)
            return {"median_ms": round(statistics.median(milliseconds), 1), "max_ms": round(milliseconds[-1], 1)}

        def ratio(key: str, other: str) -> float:
            return round(statistics.median(one["stream"][key] / one[other][key] for one in rounds), 3)

        return {
            "case": self._case,
            "rounds": len(rounds),
            "recovery": figures("ledger", "returned"),
            "stream": figures("stream", "returned"),
            "chain": figures("chain", "returned"),
            "stream_to_recovery": ratio("returned", "ledger"),
            "stream_to_chain": ratio("returned", "chain"),
            "stream_with_add": figures("stream", "with_add"),
            "chain_with_add": figures("chain", "with_add"),
            "stream_to_chain_with_add": ratio("with_add", "chain"),
        }


async def measure(bookies: Bookies, arguments: argparse.Namespace) -> None:
    """Measure and print all cases."""
    async with await open_metadata_store(bookies.uri) as store:
        for case in arguments.cases:
            print(json.dumps(await Bench(bookies, store, arguments, case).measured()), flush=True)


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[one for one in CASES if one != "large"])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--fragments", type=int, default=100_000)
    parser.add_argument("--in-flight", type=int, default=1000)
    add_data_dir(parser)
    arguments = parser.parse_args()
    with temporary_cluster(arguments.data_dir, bookies=4) as cluster:
        uvloop.run(measure(Bookies(cluster), arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
