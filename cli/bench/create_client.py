"""One client process of ``octavo bench create``: it executes its parent's requests and answers each with a line of
JSON.

=====================  =============================================================================================
request                effect
=====================  =============================================================================================
``ledgers``            create ``number`` ledgers, ``in_flight`` at a time
``clean``              close those ledgers, and delete them unless they are to be kept
``nodes``              create as many bare nodes of a ledger's size in ZooKeeper, with one request each
``transactions``       the same with as many nodes per transaction as Octavo puts ledgers into one
=====================  =============================================================================================

The answer to a measurement has the times ``begun`` and ``ended`` on the clock that all processes of a machine share, so
that the parent can compute how long all clients took together. The process cleans up and ends when its standard input
ends: a parent that is killed leaves no load behind.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from octavo.cli.bench.bare_nodes import RawCreates
from octavo.cli.bench.garbage import collect_seldom
from octavo.cli.bench.load import Extent, closed_loop
from octavo.cli.bench.names import BENCH_KEY
from octavo.cli.bench.requests import answer_requests
from octavo.cli.event_loop import finish
from octavo.cli.output import print_json
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, Session, describe, print_error
from octavo.client.client import Client
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.ledger.model import encode_ledger
from octavo.metadata.zookeeper.ledger_creation import TOGETHER_MAX
from octavo.protocol.errors import NoSuchLedgerError, OctavoError

CLEAN_UP_AT_ONCE = 200
"""Ledgers closed and deleted at the same time afterwards."""


async def serve(session: Session, shape: dict[str, int], *, keep: bool) -> int:
    """Answer requests on standard input until it ends; returns the exit status. An error is sent as an answer, too."""
    try:
        async with await session.connect() as client:
            load = CreateLoad(client, shape, keep=keep)
            try:
                await load.prepare(session.metadata_uri)
                await answer_requests(load.do)
            finally:
                await finish(load.close())
    except OctavoError as error:
        print_json({"error": describe(error)})
        return EXIT_FAILURE
    return EXIT_OK


class CreateLoad:
    """Creates ledgers and deletes them again. ``await prepare()`` first, ``await close()`` at the end."""

    def __init__(self, client: Client, shape: dict[str, Any], *, keep: bool) -> None:
        self._client = client
        self._shape = shape
        self._keep = keep
        self._made: list[LedgerWriter] = []
        self._raw: RawCreates | None = None

    async def prepare(self, uri: str) -> None:
        """Create some ledgers before measuring, because blocks of ledger ids start small, and, with metadata in
        ZooKeeper, a place for bare nodes."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CLEAN_UP_AT_ONCE):
                    group.create_task(self._create())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        size = len(encode_ledger(self._made[0].metadata))
        await self.clean(keep=False)
        if uri.startswith(("zk://", "zk+tls://")):
            self._raw = RawCreates(uri, size)
            await self._raw.open()
        collect_seldom()

    async def do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        what = request["do"]
        if what == "clean":
            await self.clean(keep=self._keep)
            return {}
        number, in_flight = request["number"], request["in_flight"]
        if what == "ledgers":
            return await self._ledgers(number, in_flight)
        assert self._raw is not None, "nodes are asked for with metadata in ZooKeeper only"
        begun, ended = await self._raw.measure(
            number, in_flight, together=TOGETHER_MAX if what == "transactions" else 1, clock=time.monotonic
        )
        return {"begun": begun, "ended": ended}

    async def _ledgers(self, number: int, in_flight: int) -> dict[str, Any]:
        begun = time.monotonic()
        measured = await closed_loop([self._create], Extent(number, None), in_flight, _quiet, clock=time.monotonic)
        error = measured.first_error
        return {
            "begun": begun,
            "ended": begun + measured.seconds,
            "operations": measured.operations,
            "latencies": measured.histogram.as_fields(),
            "errors": measured.errors,
            "first_error": None if error is None else describe(error),
        }

    async def _create(self) -> None:
        self._made.append(await self._client.create_ledger(**self._shape, custom_metadata={BENCH_KEY: b"create"}))

    async def clean(self, *, keep: bool) -> None:
        """Close the new ledgers, and delete them unless they are to be kept."""
        made, self._made = self._made, []
        remaining = iter(made)

        async def work() -> None:
            for writer in remaining:
                try:
                    await writer.close()
                    if not keep:
                        await self._client.delete_ledger(writer.id)
                except NoSuchLedgerError:
                    pass
                except OctavoError as error:
                    print_error(f"ledger {writer.id} could not be cleaned up: {describe(error)}")

        async with asyncio.TaskGroup() as group:
            for _ in range(min(CLEAN_UP_AT_ONCE, len(made))):
                group.create_task(work())

    async def close(self) -> None:
        """Clean up; only ledgers that are to be kept remain."""
        await self.clean(keep=self._keep)
        if self._raw is not None:
            await self._raw.close()


def _quiet(done: float, note: str = "") -> None:
    """No progress within a round: it lasts a second or two."""
