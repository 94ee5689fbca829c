"""A process that writes a ledger as fast as it can and prints acknowledged entry ids, until it is killed.

``python writing_process.py URI E QW QA [deferred]``: the first line is the ledger's id, each other one the highest
acknowledged id so far, written after the fact and before anything else happens. With deferred sync that is the highest
forced id. Entry ``i`` has the payload :func:`payload_of`.
"""

import asyncio
import itertools
import os
import sys

import octavo

FENCED = 3
"""Exit status when another client recovers the ledger."""

BATCH = 7
"""Entries of one batch; two batches are in flight, so that a kill always interrupts one."""


def payload_of(entry_id: int) -> bytes:
    """The payload of an entry id, of varying size."""
    return b"entry %d " % entry_id * (1 + entry_id % 5)


async def write(uri: str, quorums: list[int], *, deferred: bool) -> None:
    """Write until the process is killed or the ledger is fenced."""
    async with octavo.connect(uri, bookie_loss_seconds=0.02, reconnect_delay_seconds_max=0.2) as client:
        ledger = await client.create_ledger(*quorums, sync="deferred" if deferred else "immediate")
        os.write(1, b"%d\n" % ledger.id)
        first = itertools.count(step=BATCH)

        async def add_batches() -> None:
            while True:
                start = next(first)
                ids = await ledger.add_many([payload_of(entry_id) for entry_id in range(start, start + BATCH)])
                if deferred:
                    await ledger.force()
                os.write(1, b"%d\n" % ids[-1])

        await asyncio.gather(add_batches(), add_batches())


if __name__ == "__main__":
    try:
        asyncio.run(write(sys.argv[1], list(map(int, sys.argv[2:5])), deferred="deferred" in sys.argv))
    except octavo.LedgerFencedError:
        sys.exit(FENCED)
