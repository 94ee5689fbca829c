"""Reads that are shared: few, and never older than the question."""

import asyncio

import pytest
from octavo.metadata.store.shared_load import SharedLoad
from octavo.protocol.errors import ClientClosedError, InternalError, MetadataUnavailableError, OctavoError


class Source:
    """A read that ends when told; gives how many were begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.failing: BaseException | None = None
        self.go = asyncio.Event()

    async def load(self) -> int:
        self.begun += 1
        number = self.begun
        await self.go.wait()
        if self.failing is not None:
            raise self.failing
        return number


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_callers_that_ask_at_once_share_one_read() -> None:
    source = Source()
    shared = SharedLoad(source.load)
    source.go.set()
    assert await asyncio.gather(*(shared.load() for _ in range(100))) == [1] * 100
    assert await shared.load() == 2


async def test_a_caller_that_asks_during_a_read_gets_the_next() -> None:
    source = Source()
    shared = SharedLoad(source.load)
    early = asyncio.ensure_future(shared.load())
    await turns()
    late = [asyncio.ensure_future(shared.load()) for _ in range(10)]
    await turns()
    assert source.begun == 1
    source.go.set()
    assert await early == 1
    assert await asyncio.gather(*late) == [2] * 10


async def test_cancelled_caller_disturbs_no_other() -> None:
    source = Source()
    shared = SharedLoad(source.load)
    one, two = asyncio.ensure_future(shared.load()), asyncio.ensure_future(shared.load())
    await turns()
    one.cancel()
    source.go.set()
    assert await two == 1
    assert one.cancelled() or (await asyncio.gather(one, return_exceptions=True))


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (MetadataUnavailableError("away", may_have_happened=False), MetadataUnavailableError),
        (KeyError("x"), InternalError),
    ],
)
async def test_failure_is_raised_to_all_that_asked_and_to_none_after(
    raised: BaseException, told: type[OctavoError]
) -> None:
    source = Source()
    shared = SharedLoad(source.load)
    source.failing = raised
    source.go.set()
    outcomes = await asyncio.gather(*(shared.load() for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [told] * 3
    assert len(set(map(id, outcomes))) == 3
    source.failing = None
    assert await shared.load() == 2


async def test_closing_ends_waiting() -> None:
    source = Source()
    shared = SharedLoad(source.load)
    early = asyncio.ensure_future(shared.load())
    await turns()
    late = asyncio.ensure_future(shared.load())
    await turns()
    await shared.close()
    for outcome in await asyncio.gather(early, late, return_exceptions=True):
        assert isinstance(outcome, ClientClosedError)
