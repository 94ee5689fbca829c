"""A program that begins to iterate, and refers to its iterators when its client is closed and its event loop ends. It
does nothing wrong.

``python held_iterators.py URI LOOP``. LOOP: ``asyncio`` or ``uvloop``. Prints how many iterators it holds.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any, Literal

import uvloop

import octavo

ENTRIES = 3
PATIENCE_SECONDS = 0.2
"""For an entry that no writer adds."""

_held: list[AsyncIterator[Any]] = []
"""What the program still refers to when the interpreter ends."""


async def hold(iterator: AsyncIterator[Any]) -> None:
    """Take the first thing."""
    _held.append(iterator)
    await anext(iterator)


async def hold_waiting(iterator: AsyncIterator[Any]) -> None:
    """Take all entries, wait for another one, and give up."""
    _held.append(iterator)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for _ in iterator:
                pass


async def of_program(log: octavo.Log) -> AsyncIterator[octavo.Entry]:
    """A generator of the program's own, which reads in bulk."""
    async with log.reader_at(0) as (extent, reader):
        async for batch in reader.batches(-extent.base, ENTRIES - 1 - extent.base):
            for entry in batch.entries:
                yield entry


async def iterate_log(client: octavo.Client, name: str, layout: Literal["chain", "stream"]) -> None:
    log = await client.create_log(name, ensemble_size=2, write_quorum=2, ack_quorum=2, layout=layout)
    writer = await log.lead()
    await writer.add_many([b"%d" % number for number in range(ENTRIES)])
    await hold(log.follow(0))
    await hold_waiting(log.follow(0))
    await hold(log.entries(0))
    await hold((await log.cursor("c")).follow())
    await hold(of_program(log))


async def iterate_ledger(client: octavo.Client) -> None:
    writer = await client.create_ledger(2, 2, 2)
    for number in range(ENTRIES):
        await writer.add(b"%d" % number)
    reader = await client.open_ledger(writer.id, recover=False)
    await reader.refresh_last_add_confirmed()
    await hold(reader.follow(0))
    await hold_waiting(reader.follow(0))
    await hold(reader.entries(0, 1))
    await hold(reader.batches(0, 1))


async def main(uri: str, loop: str) -> None:
    async with octavo.connect(uri) as client:
        await iterate_log(client, f"chain-{loop}", "chain")
        await iterate_log(client, f"stream-{loop}", "stream")
        await iterate_ledger(client)
        await hold(client.list_ledgers())
        await hold(client.list_logs())
    sys.stdout.write(f"{len(_held)}\n")


if __name__ == "__main__":
    _, uri, loop = sys.argv
    (asyncio.run if loop == "asyncio" else uvloop.run)(main(uri, loop))
