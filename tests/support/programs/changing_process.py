"""A process that leads a log, adds numbered entries, and changes the quorums of the log when it is told to.

``python changing_process.py URI LOG``. It takes the log over at once. Each entry has the payload ``PID:NUMBER``. A line
``E QW QA`` of its input asks for a change. It prints a line for everything that it is told:

=========================  =========================
``leads TERM``             it leads now
``acked POSITION NUMBER``  an add was acknowledged
``changed E QW QA``        the change has been made
=========================  =========================
"""

import asyncio
import itertools
import os
import sys

import octavo

ADDERS = 2
"""Tasks that add one entry after another."""


def tell(*words: object) -> None:
    """Print one line at once."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


async def add(writer: octavo.LogWriter, numbers: "itertools.count[int]") -> None:
    """Add without end."""
    while True:
        number = next(numbers)
        position = await writer.add(b"%d:%d" % (os.getpid(), number))
        tell("acked", position, number)


async def main(uri: str, name: str) -> None:
    """Lead until killed."""
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    numbers = itertools.count()
    async with (
        octavo.connect(uri) as client,
        client.open_log(name) as log,
        log.take_over() as writer,
        asyncio.TaskGroup() as group,
    ):
        tell("leads", writer.term)
        for _ in range(ADDERS):
            group.create_task(add(writer, numbers))
        async for line in orders:
            ensemble_size, write_quorum, ack_quorum = map(int, line.split())
            await writer.change(ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum)
            tell("changed", ensemble_size, write_quorum, ack_quorum)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
