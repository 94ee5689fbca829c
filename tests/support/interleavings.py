"""Runs a few tasks in every order in which their steps at the metadata store can follow each other.

A *party* is a coroutine that has a store of its own, whose methods wait for their turn. One party at a time goes on, up
to its next call of the store or its end. A schedule says which; all of them are tried, depth first, each in a world of
its own. What the parties do in between is production code.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from octavo.metadata import MetadataStore

_STEPS: frozenset[str] = frozenset(
    {
        "compare_and_set_document",
        "compare_and_set_stream",
        "create_document",
        "read_document",
        "read_stream",
    }
)
"""Methods that wait for a turn. Others are no part of what is explored."""

_TURNS_MAX = 1000
"""Turns of the loop in which a party gets to its next step."""


class Turns:
    """Who goes on next, in one world."""

    def __init__(self, is_step: Callable[[str, tuple[object, ...]], bool]) -> None:
        self.is_step = is_step
        self.exploring = False
        """Whether the parties have begun: nothing waits before."""
        self.waiting: dict[str, asyncio.Future[None]] = {}

    async def wait(self, party: str) -> None:
        """Wait until the schedule lets the party go on."""
        turn = self.waiting[party] = asyncio.get_running_loop().create_future()
        await turn


class SteppedStore:
    """The store of one party."""

    def __init__(self, store: MetadataStore, party: str, turns: Turns, clock_ms: Callable[[], int]) -> None:
        """``clock_ms`` is the clock of the store."""
        self._store = store
        self._clock_ms = clock_ms
        self._party = party
        self._turns = turns

    @property
    def face(self) -> MetadataStore:
        """This store, as clients see it."""
        return cast(MetadataStore, self)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name not in _STEPS:
            return method

        async def step(*arguments: object) -> Any:
            if self._turns.exploring and self._turns.is_step(name, arguments):
                await self._turns.wait(self._party)
            return await method(*arguments)

        return step

    async def time_ms(self) -> int:
        """As the clock of this store."""
        return self._clock_ms()

    async def put_document(self, name: str, value: bytes, expected: Any) -> Any:
        """As the real one, which calls what is interposed."""
        return await MetadataStore.put_document(self.face, name, value, expected)


type Parties = Mapping[str, Callable[[], Awaitable[object]]]


async def explore(world: Callable[[Turns], Any], *, is_step: Callable[[str, tuple[object, ...]], bool]) -> int:
    """Try every schedule; how many there are. ``world`` gives an async context manager that makes a new world with its
    parties, and checks it once they have ended."""
    schedule: list[tuple[int, int]] = []
    tried = 0
    while True:
        turns = Turns(is_step)
        choices: list[tuple[int, int]] = []
        async with world(turns) as parties:
            turns.exploring = True
            await _run(turns, parties, [at for at, _ in schedule], choices)
            turns.exploring = False
        tried += 1
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return tried
        at, count = choices.pop()
        schedule = [*choices, (at + 1, count)]


async def _run(turns: Turns, parties: Parties, prefix: list[int], choices: list[tuple[int, int]]) -> None:
    tasks = {name: asyncio.ensure_future(party()) for name, party in parties.items()}
    try:
        while True:
            await _settle(turns, tasks)
            ready = sorted(turns.waiting)
            if not ready:
                break
            at = prefix[len(choices)] if len(choices) < len(prefix) else 0
            choices.append((at, len(ready)))
            turns.waiting.pop(ready[at]).set_result(None)
        await asyncio.gather(*tasks.values())
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def _settle(turns: Turns, tasks: Mapping[str, asyncio.Future[object]]) -> None:
    for _ in range(_TURNS_MAX):
        if all(task.done() or name in turns.waiting for name, task in tasks.items()):
            return
        await asyncio.sleep(0)
    raise AssertionError(f"neither at a step nor at their end: {[n for n in tasks if n not in turns.waiting]}")
