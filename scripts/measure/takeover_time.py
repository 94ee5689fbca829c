"""Measure how long the takeover of a log that is a stream lasts, beside the recovery of a plain ledger and the takeover
of a log that is a chain.

takeover_time.py [--rounds 20] [--cases idle load stopped large fragments rest] [--megabytes 1024]
                 [--fragments 100000] [--in-flight 1000] [--data-dir DIR]

The benchmark starts a cluster of four bookies on SQLite; everything is stored with E = Qw = 3, Qa = 2. In each round,
a writer in a process of its own adds a few entries to a plain ledger, to a stream and to a chain, and goes on adding
where the case says so. Then another client, which is connected to the bookies, recovers the ledger or takes the log
over. The order of the three changes from round to round. Times of a recovery end when ``open_ledger`` returns; those
of a takeover when ``take_over`` returns, and, as ``with_add``, when the first add of the new leader is acknowledged.

==========  ========================================================================================================
case        what is there when the takeover begins
==========  ========================================================================================================
idle        100 entries, nothing under way
load        a writer that goes on adding, with as many adds in flight as the option says
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
from pathlib import Path
from typing import Any

import uvloop
from octavo.client.log.logs import Layout
from octavo.metadata import open_metadata_store
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.model import FIRST_TERM
from octavo.metadata.stream.pages import MOVED_FRAGMENTS_MAX
from octavo.metadata.updates.paging import tidy_stream
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import place

import octavo

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import add_data_dir, temporary_cluster
from recovery_time import Bookies

CASES = ("idle", "load", "stopped", "large", "fragments", "rest")

_ENTRIES = 100

_LONG_ENTRIES = 100_000
"""Of each fragment that is made up."""

_PAYLOAD = os.urandom(1024)

_LAYOUTS: tuple[Layout, ...] = ("stream", "chain")


class Leader:
    """The process of the client that leads: what it does in its own process takes no time of the takeover's, as when
    machines fail over to one another."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def started(cls, uri: str) -> AsyncIterator["Leader"]:
        """A process, for the duration of the block."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            __file__,
            "--lead",
            uri,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,  # what a leader logs that loses its lead
        )
        try:
            yield cls(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()

    async def does(self, command: str, **arguments: Any) -> Any:
        """Let the process run a command of :class:`Led`, and wait for its result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
        answer = await self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process of the leader has ended")
        return json.loads(answer)


class Led:
    """The target of the leader's process: a ledger, a stream or a chain at a time."""

    def __init__(self, client: octavo.Client) -> None:
        self._client = client
        self._writer: octavo.LedgerWriter | octavo.LogWriter
        self._adding: list[asyncio.Task[None]] = []
        self._delete: Callable[[], Awaitable[None]]

    async def make(self, kind: str, name: str | None, entries: int) -> Any:
        """Make a ledger or a log, or open the log of that name, with that many entries. The ledger's id, or the name
        of the log."""
        answer: Any
        if kind == "ledger":
            ledger = await self._client.create_ledger(3, 3, 2)
            self._writer, answer = ledger, ledger.id
            self._delete = lambda: self._client.delete_ledger(ledger.id)
        else:
            assert name is not None
            layout: Layout = "stream" if kind == "stream" else "chain"
            try:
                log = await self._client.open_log(name)
            except octavo.NoSuchLogError:
                log = await self._client.create_log(name, 3, 3, 2, layout=layout)
            self._writer, answer = await log.take_over(), name
            self._delete = lambda: self._client.delete_log(name)
        for first in range(0, entries, 1000):
            await self._writer.add_many([_PAYLOAD] * min(1000, entries - first))
        return answer

    async def rest(self) -> None:
        """Close the ledger, or give up the lead."""
        await self._writer.close()

    async def load(self, in_flight: int) -> None:
        """Add from now on, with that many adds under way, until another client leads."""

        async def keep_adding() -> None:
            with contextlib.suppress(octavo.OctavoError):
                while True:
                    await self._writer.add(_PAYLOAD)

        self._adding = [asyncio.create_task(keep_adding()) for _ in range(in_flight)]
        await self._writer.add(_PAYLOAD)

    async def end(self, delete: bool) -> None:
        """Stop, after the takeover."""
        for task in self._adding:
            task.cancel()
        await asyncio.gather(*self._adding, return_exceptions=True)
        self._adding = []
        with contextlib.suppress(octavo.OctavoError):
            await self._writer.close()
        if delete:
            await self._delete()


async def lead(uri: str) -> None:
    """The process of the leader: a command a line, until there are no more."""
    # A leader that is fenced must not heal itself while the takeover is timed.
    async with octavo.connect(uri, log_duel_pause_seconds=1.0) as client:
        led = Led(client)
        while line := await asyncio.to_thread(sys.stdin.readline):
            command, arguments = json.loads(line)
            print(json.dumps(await getattr(led, command)(**arguments)), flush=True)


class Bench:
    """A cluster, and what the measurements of one case need of it."""

    def __init__(
        self, bookies: Bookies, leader: Leader, store: MetadataStore, arguments: argparse.Namespace, case: str
    ) -> None:
        self._uri = bookies.uri
        self._bookies = bookies
        self._leader = leader
        self._store = store
        self._arguments = arguments
        self._case = case
        self._number = 0
        self._long: str | None = None
        """The log with very many fragments, which all rounds of its case share: it takes a minute to make."""

    async def _made(self, kind: str, name: str | None = None) -> Any:
        """The things that exist before the takeover."""
        entries = _ENTRIES
        if self._case == "large":
            entries = max(entries, self._arguments.megabytes * 2**20 // len(_PAYLOAD))
        return await self._leader.does("make", kind=kind, name=name, entries=entries)

    @asynccontextmanager
    async def _trouble(self, bookies: tuple[str, ...]) -> AsyncIterator[None]:
        """During the block, the leader adds (in the case ``load``), has closed its writer (``rest``), or one of these
        bookies stands still (``stopped``)."""
        if self._case == "rest":
            await self._leader.does("rest")
        if self._case == "load":
            await self._leader.does("load", in_flight=self._arguments.in_flight)
        if self._case != "stopped":
            yield
            return
        pid = self._bookies.pid_of(bookies[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    async def recovery(self) -> dict[str, float]:
        """Of a plain ledger."""
        async with octavo.connect(self._uri) as recovering:
            ledger_id = await self._made("ledger")
            async with recovering.open_ledger(ledger_id, recover=False) as reader:  # connects to the bookies
                bookies = reader.metadata.last_fragment.bookies
            async with self._trouble(bookies):
                started = time.perf_counter()
                async with recovering.open_ledger(ledger_id):
                    seconds = time.perf_counter() - started
            await self._leader.does("end", delete=True)
        return {"returned": seconds}

    async def takeover(self, layout: Layout) -> dict[str, float]:
        """Of a log."""
        async with octavo.connect(self._uri) as standby:
            name = await self._name(layout)
            await self._made(layout, name)
            follower = await standby.open_log(name)
            await follower.refresh()  # connects to the bookies
            segment = (await follower.status()).segments[-1].ledger_id
            async with self._trouble(await self._bookies_of(segment, layout)):
                started = time.perf_counter()
                writer = await follower.take_over()
                returned = time.perf_counter()
                await writer.add(b"the first of the new leader")
                added = time.perf_counter()
                await writer.close()
            await self._leader.does("end", delete=name != self._long)
            if name == self._long:  # as a leader does that leads for longer
                await tidy_stream(self._store, segment, writer_token="0" * 32)
        return {"returned": returned - started, "with_add": added - started}

    async def _name(self, layout: Layout) -> str:
        """Of the log to take over: a new one, but for the one with very many fragments."""
        if self._long is not None and layout == "stream":
            return self._long
        self._number += 1
        name = f"takeover-{self._case}-{layout}-{self._number}"
        if self._case == "fragments" and layout == "stream":
            self._long = name
            async with octavo.connect(self._uri) as client:
                log = await client.create_log(name, 3, 3, 2, layout=layout)
                async with await log.take_over() as writer:
                    await writer.add(_PAYLOAD)
                await self._lengthen((await log.status()).segments[-1].ledger_id)
        return name

    async def _lengthen(self, ledger_id: LedgerId) -> None:
        """Put fragments before the last one of a stream at rest, as if there had been a roll for each before."""
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
    async with await open_metadata_store(bookies.uri) as store, Leader.started(bookies.uri) as leader:
        for case in arguments.cases:
            print(json.dumps(await Bench(bookies, leader, store, arguments, case).measured()), flush=True)


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=[one for one in CASES if one != "large"])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--fragments", type=int, default=100_000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--lead", metavar="URI", help=argparse.SUPPRESS)
    add_data_dir(parser)
    arguments = parser.parse_args()
    if arguments.lead is not None:
        uvloop.run(lead(arguments.lead))
        return 0
    with temporary_cluster(arguments.data_dir, bookies=4) as cluster:
        uvloop.run(measure(Bookies(cluster), arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
