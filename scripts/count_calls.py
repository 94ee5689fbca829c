"""Count the calls of functions that an add takes, in the client and three bookies: a measure without noise.

count_calls.py [--adds 2000]

Of adds to a ledger, of adds to a log of each layout, and of adds to many ledgers with one under way in each.

Times on a busy machine differ by more than a change of the code costs. The number of calls does not: client and bookies
run in one process, and the interpreter counts their calls of Python functions and of functions in C while entries are
added. Run the script with the interpreters of two environments to compare two versions:

    OTHER/.venv/bin/python scripts/count_calls.py

How adds share frames depends a little on the machine, so the numbers of two runs differ by up to 1 %.
"""

import argparse
import asyncio
import contextlib
import gc
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import uvloop
from bookies_here import start_bookies
from octavo.bookie.logs import configure_logging
from octavo.client.log.logs import Layout
from octavo.client.log.writer.writer import LogWriter
from octavo.client.write.writer import LedgerWriter

import octavo

IN_FLIGHT = 500


class Load(NamedTuple):
    """Adds of payloads of ``size`` bytes, ``in_flight`` at a time."""

    name: str
    size: int
    in_flight: int

    async def run(self, ledger: LedgerWriter | LogWriter, adds: int) -> None:
        """Add this number of entries."""
        payload = bytes(self.size)
        for _ in range(adds // self.in_flight):
            if self.in_flight == 1:
                await ledger.add(payload)
            else:
                await asyncio.gather(*(ledger.add(payload) for _ in range(self.in_flight)))


LAYOUTS: tuple[Layout, ...] = ("chain", "stream")

LEDGERS = IN_FLIGHT
"""Ledgers of one client; as many adds are under way."""

LOADS = (Load("lone", 100, 1), Load("100 B", 100, IN_FLIGHT), Load("1 KiB", 1024, IN_FLIGHT))


class Calls:
    """Counts calls from :meth:`start` to :meth:`stop`."""

    def __init__(self) -> None:
        self.python = self.c = 0

    def start(self) -> None:
        """Count from now on."""
        sys.setprofile(self._note)

    @staticmethod
    def stop() -> None:
        """Count no more."""
        sys.setprofile(None)

    def _note(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.python += event == "call"
        self.c += event == "c_call"


async def measure(folder: Path, adds: int) -> None:
    """Print the calls of each load."""
    gc.disable()  # what a collection calls belongs to no add
    async with contextlib.AsyncExitStack() as stack:
        uri, _ = await start_bookies(stack, folder)
        client = await stack.enter_async_context(octavo.connect(uri))
        for load in LOADS:
            async with client.create_ledger() as ledger:
                await count(load, "ledger", ledger, adds)
            for layout in LAYOUTS:
                log = await stack.enter_async_context(
                    client.create_log(f"{load.name}-{layout}".replace(" ", "-"), layout=layout)
                )
                async with log.lead() as writer:
                    await count(load, layout, writer, adds)
        await count_many(client, adds)


async def count_many(client: octavo.Client, adds: int) -> None:
    """Print the calls of adds of 1 KiB to many ledgers."""
    ledgers = await asyncio.gather(*(client.create_ledger() for _ in range(LEDGERS)))
    payload = bytes(1024)

    async def run(rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.gather(*(ledger.add(payload) for ledger in ledgers))

    await run(2)  # caches fill, connections come up
    calls = Calls()
    calls.start()
    await run(adds // LEDGERS)
    calls.stop()
    report(calls, "many", "ledgers", adds)
    await asyncio.gather(*(ledger.close() for ledger in ledgers))


async def count(load: Load, what: str, writer: LedgerWriter | LogWriter, adds: int) -> None:
    """Print the calls of one load."""
    await load.run(writer, IN_FLIGHT)  # caches fill, connections come up
    calls = Calls()
    calls.start()
    await load.run(writer, adds)
    calls.stop()
    report(calls, load.name, what, adds)


def report(calls: Calls, load: str, what: str, adds: int) -> None:
    """Print a line."""
    print(f"{load:6} {what:7} {calls.python / adds:8.2f} of Python  {calls.c / adds:8.2f} of C")


def main() -> int:
    """Run the script. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Count the calls of functions that an add takes.")
    parser.add_argument("--adds", type=int, default=2000, help=f"adds of each load; a multiple of {IN_FLIGHT}")
    arguments = parser.parse_args()
    if arguments.adds < IN_FLIGHT or arguments.adds % IN_FLIGHT:
        parser.error(f"--adds must be a multiple of {IN_FLIGHT}")
    configure_logging("error", "console")
    with tempfile.TemporaryDirectory(prefix="octavo-count-") as folder:
        uvloop.run(measure(Path(folder), arguments.adds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
