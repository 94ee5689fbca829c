"""One client process of ``octavo bench followers``: it follows a log or a ledger several times.

=====================  =============================================================================================
request                answer
=====================  =============================================================================================
``wait``               nothing, once every follower of this process has received ``entries`` entries
``arrivals``           the same, then ``last``: when the last of them received each of those from ``first`` on
=====================  =============================================================================================

The times are those of the clock that all processes of a machine share.
"""

import asyncio
import time
from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from octavo.cli.bench.many_logs import FOLLOWERS_SECONDS_MAX, Received
from octavo.cli.bench.requests import answer_requests
from octavo.cli.output import print_json
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, CommandError, Session, describe
from octavo.protocol.errors import OctavoError

if TYPE_CHECKING:
    from octavo.client.client import Client


class Arrivals:
    """When the last of several followers received each entry of what they all follow."""

    def __init__(self, followers: int) -> None:
        self._followers = followers
        self._last = array("d")
        self._received = Received()

    async def follow(self, entries: AsyncIterator[object], clock: Any = time.perf_counter) -> None:
        """Note the entries of one follower until it ends or fails."""
        last, note = self._last, self._received.note
        index = 0
        try:
            async for _ in entries:
                now = clock()
                if index == len(last):
                    last.append(now)
                else:
                    last[index] = now  # a later follower of the same entry: the clock never goes back
                index += 1
                note()
        except OctavoError as error:
            self._received.fail(error)

    async def wait_for(self, entries: int, *, seconds_max: float = FOLLOWERS_SECONDS_MAX) -> None:
        """Return once each follower has received this number; no more may have been added, as a sum is compared. Raises
        :class:`CommandError` as :meth:`Received.wait_for`."""
        await self._received.wait_for(entries * self._followers, seconds_max=seconds_max)

    def since(self, first: int) -> list[float]:
        """The times from entry ``first`` on."""
        return self._last[first:].tolist()


async def serve_followers(session: Session, log: str | None, ledger: int | None, followers: int) -> int:
    """Follow, and answer requests on standard input until it ends; returns the exit status. An error is sent as an
    answer, too."""
    arrivals = Arrivals(followers)

    async def answer(request: Mapping[str, Any]) -> dict[str, Any]:
        await arrivals.wait_for(request["entries"])
        return {"last": arrivals.since(request["first"])} if request["do"] == "arrivals" else {}

    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(await session.connect())
            tasks = [
                asyncio.create_task(arrivals.follow(await _entries(stack, client, log, ledger)))
                for _ in range(followers)
            ]
            try:
                await answer_requests(answer)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
    except (OctavoError, CommandError) as error:
        print_json({"error": describe(error) if isinstance(error, OctavoError) else str(error)})
        return EXIT_FAILURE
    return EXIT_OK


async def _entries(
    stack: AsyncExitStack, client: "Client", log: str | None, ledger: int | None
) -> AsyncIterator[object]:
    """Another follower with a handle of its own, which the stack closes."""
    if log is not None:
        return (await stack.enter_async_context(client.open_log(log))).follow()
    assert ledger is not None, "a client process follows a log or a ledger"
    return (await stack.enter_async_context(client.open_ledger(ledger, recover=False))).follow()
