"""Standard input for a command that may have to end while no input comes."""

import asyncio
import os
import sys
import threading
from contextlib import suppress

from octavo.cli.ledger.transfer import READ_BYTES


class InterruptibleInput:
    """Reads standard input in a thread that does not keep the process from ending: a leader that lost its log ends at
    once, although a pipe that it reads from stays open and silent."""

    def __init__(self, descriptor: int | None = None) -> None:
        """``descriptor`` to read instead of the process's standard input."""
        self._descriptor = descriptor

    async def read(self) -> bytes:
        """The bytes that have arrived, at most :data:`READ_BYTES`; waits for the first byte. Empty at the end of the
        input.

        Raises :class:`OSError`. Cancelling loses what the thread still reads.
        """
        loop = asyncio.get_running_loop()
        received: asyncio.Future[bytes] = loop.create_future()
        descriptor = sys.stdin.fileno() if self._descriptor is None else self._descriptor

        def deliver(data: bytes, error: OSError | None) -> None:
            if received.done():
                return
            if error is None:
                received.set_result(data)
            else:
                received.set_exception(error)

        def work() -> None:
            data, error = b"", None
            try:
                data = os.read(descriptor, READ_BYTES)
            except OSError as failure:
                error = OSError(failure.errno, failure.strerror, "standard input")
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(deliver, data, error)

        threading.Thread(target=work, name="standard input", daemon=True).start()
        return await received
