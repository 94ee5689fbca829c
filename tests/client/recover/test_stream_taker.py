"""When a client takes a stream over that it has lost to another one (rule T10), in simulated time."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.recover.stream_taker import StreamTaker
from octavo.client.recover.takeover import PAUSE_TAKEOVERS
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata import open_metadata_store
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.entries import derive_secrets
from octavo.protocol.errors import TermOverError
from octavo.protocol.ids import EntryId
from octavo.protocol.places import place
from simulation.engine.loop import SimulationLoop
from support.metadata.interposed_store import InterposedStore
from support.metadata.stream_metadata import open_stream, stream_fragment

READ_SECONDS = 2.0
"""How long the store takes to read a stream."""

type Losing = Callable[[], Coroutine[Any, Any, tuple[float, float, float]]]
"""Tries to take the stream over, and loses: when it was called, first asked the store, and was told, in the loop's
seconds."""


def at_rest(term: int) -> StreamMetadata:
    """In this term, which is empty."""
    last = EntryId(place(term, 0) - 1)
    return replace(open_stream(stream_fragment(term, 0, 0)), last_entry_id=None).in_recovery(None, "").at_rest(last, 0)


def play(scene: Callable[[Losing], Coroutine[Any, Any, None]]) -> None:
    """A client that takes over a stream, by metadata that are old whenever it comes."""
    loop = SimulationLoop()

    async def main() -> None:
        async with await open_metadata_store("memory://", create=True) as real:
            store = InterposedStore(real)
            while await real.allocate_ledger_id() < at_rest(2).ledger_id:
                pass
            old = Versioned(at_rest(1), await real.create_stream(at_rest(1)))
            await real.compare_and_set_stream(at_rest(2), old.version)
            asked: list[float] = []

            async def read_stream(*arguments: Any) -> object:
                asked.append(loop.time())
                await asyncio.sleep(READ_SECONDS)
                return await real.read_stream(*arguments)

            store.interpose("read_stream", read_stream)
            options, rng = ClientOptions(), random.Random(1)
            pool = ConnectionPool(store.face, cluster_id=await real.cluster_id(), options=options, rng=rng)
            taker = StreamTaker(
                store=store.face,
                pool=pool,
                placer=Placer(store.face, rng=rng, quarantined=pool.quarantined),
                options=options,
                rng=rng,
                wall_clock=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            )

            async def lose() -> tuple[float, float, float]:
                asked.clear()
                called = loop.time()
                with pytest.raises(TermOverError):
                    await taker.take_over(old, derive_secrets(b"", old.value.ledger_id))
                return called, asked[0], loop.time()

            await scene(lose)
            await pool.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_client_that_lost_pauses_before_it_takes_over_again() -> None:
    async def scene(lose: Losing) -> None:
        called, asked, told = await lose()
        assert asked == called, "it has lost nothing yet"
        for _ in range(20):
            took = told - asked
            assert took >= READ_SECONDS
            called, asked, told = await lose()
            shortest, longest = PAUSE_TAKEOVERS
            assert shortest * took <= asked - called <= longest * took

    play(scene)


def test_the_pause_of_a_client_that_lost_begins_when_it_is_told() -> None:
    async def scene(lose: Losing) -> None:
        _, asked, told = await lose()
        await asyncio.sleep(PAUSE_TAKEOVERS[1] * (told - asked))
        called, asked, _ = await lose()
        assert asked == called, "it is over"

    play(scene)
