"""The child's side of a benchmark with several processes: requests on standard input, a line of JSON for each answer.

The first answer says that the process is ready. It ends when its standard input ends: a parent that is killed leaves no
load behind.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from octavo.cli.output import print_json

LINE_BYTES_MAX = 64 * 1024 * 1024
"""Longest line between parent and child: a million times at which entries arrived, or thousands of buckets of
latencies."""

type Answer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Executes a request and returns its answer."""


async def answer_requests(answer: Answer) -> None:
    """Answer one request after another; the end of standard input interrupts the current one. Raises what ``answer``
    raises."""
    requests = asyncio.StreamReader(LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(requests), sys.stdin.buffer)
    asked: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer_each() -> None:
        print_json({})
        while True:
            print_json(await answer(json.loads(await asked.get())))

    async def read() -> None:
        while line := await requests.readline():
            asked.put_nowait(line)

    tasks = [asyncio.ensure_future(answer_each()), asyncio.ensure_future(read())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
