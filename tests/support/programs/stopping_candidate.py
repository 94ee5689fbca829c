"""A process that stops itself (SIGSTOP) when it has got the lock of a log, before it takes the log over.

``python stopping_candidate.py URI LOG LEASE_SECONDS``. It prints ``asks`` whenever it asks for the lock, ``stops``
before it stops, which it does once, and ``leads TERM`` when it leads. It then adds an entry, and ends.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata import open_metadata_store


def say(*words: object) -> None:
    """Tell the parent."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(uri: str, name: str, lease_seconds: float) -> None:
    store: Any = await open_metadata_store(uri, lease_seconds=lease_seconds)
    ask = store.lock
    stopped = False

    async def lock(*arguments: Any) -> Any:
        nonlocal stopped
        say("asks")
        lease = await ask(*arguments)
        if not stopped:
            stopped = True
            say("stops")
            os.kill(os.getpid(), signal.SIGSTOP)
        return lease

    store.lock = lock
    options = ClientOptions(lease_seconds=lease_seconds)
    async with (
        Client(store, cluster_id=await store.cluster_id(), options=options) as client,
        client.open_log(name) as log,
        log.lead() as writer,
    ):
        say("leads", writer.term)
        await writer.add(b"candidate")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
