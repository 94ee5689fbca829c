"""Where a reader of a chain looks between a roll and the recorded end of the segment before (rule P1): what bookies say
about an open segment is not its end."""

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from octavo.client.log.chain.view import ChainView, Place
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.pacing import TakeoverPacing
from octavo.client.log.seam.view import Reach
from octavo.client.options import ClientOptions
from octavo.client.read.reader import LedgerReader
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.clocks.proven_time import BootTime
from octavo.protocol.ids import LedgerId
from support.metadata.log_documents import log_of
from support.metadata.memory_stores import memory_uri

FIRST, SECOND = LedgerId(10), LedgerId(11)


@dataclass(eq=False)
class Ledger:
    """What a reader of a ledger says about it."""

    id: LedgerId
    last_add_confirmed: int | None
    heard_later: int | None
    """The LAC once bookies were asked for it."""
    ledger_closed: bool = False
    closed: bool = False

    async def refresh_last_add_confirmed(self) -> None:
        self.last_add_confirmed = self.heard_later

    def _learn_confirmed(self, entry: int) -> None:
        self.last_add_confirmed = max(entry, -1 if self.last_add_confirmed is None else self.last_add_confirmed)

    async def close(self) -> None:
        self.closed = True


@dataclass
class Rolled:
    """A log that has rolled: its list has a second segment, and no end for the first."""

    store: MetadataStore
    first: Ledger = field(default_factory=lambda: Ledger(FIRST, last_add_confirmed=2, heard_later=4))
    opened: list[LedgerId] = field(default_factory=list)
    reach: dict[LedgerId, Reach] = field(default_factory=dict)

    async def open(self, ledger_id: LedgerId, _password: bytes, recovers: bool) -> LedgerReader:
        assert not recovers, "reading disturbs no leader"
        self.opened.append(ledger_id)
        made = self.first if ledger_id == FIRST else Ledger(ledger_id, last_add_confirmed=None, heard_later=None)
        return cast("LedgerReader", made)

    def view(self) -> ChainView:
        rng = random.Random(1)
        access = LedgerAccess(
            self.store,
            ClientOptions(),
            clock_ms=lambda: 10_000,
            random_token=lambda: "a token",
            uniform=rng.uniform,
            pacing=TakeoverPacing(rng.uniform),
            create=None,  # type: ignore[arg-type]
            open=self.open,
            read=None,  # type: ignore[arg-type]
            load_streams=lambda: None,  # type: ignore[arg-type,return-value]
            boot_clock=lambda: BootTime("a host", 10_000),
        )
        return ChainView(access, log_of(None, None), b"", reach_of=self.reach.get)


@pytest.fixture
async def rolled() -> AsyncIterator[Rolled]:
    async with await open_metadata_store(memory_uri("chain-view"), create=True, rng=random.Random(1)) as store:
        yield Rolled(store)


async def place_of(view: ChainView, position: int) -> tuple[LedgerId, int, int | None]:
    found = await view.locate(position)
    assert type(found) is Place
    return found.ledger_id, found.first, found.stop


@pytest.mark.parametrize("position", [0, 2, 3, 4, 50])
async def test_every_position_is_the_open_segments(rolled: Rolled, position: int) -> None:
    view = rolled.view()

    assert await place_of(view, position) == (FIRST, 0, None)
    await view.close()


async def test_the_end_that_bookies_tell_is_not_passed(rolled: Rolled) -> None:
    view = rolled.view()

    await view.learn_end()

    assert view.end == 5, "acknowledged, as bookies tell now"
    assert await place_of(view, 5) == (FIRST, 0, None), "more may have been acknowledged there"
    assert rolled.opened == [FIRST]
    await view.close()


async def test_the_leaders_own_word_is_an_end_once_it_is_final(rolled: Rolled) -> None:
    view = rolled.view()
    rolled.reach[FIRST] = Reach(4, is_final=False)
    assert await place_of(view, 4) == (FIRST, 0, None)

    rolled.reach[FIRST] = Reach(5, is_final=True)

    assert await place_of(view, 4) == (FIRST, 0, 5)
    assert await place_of(view, 5) == (SECOND, 5, None)
    await view.close()


async def test_a_closed_segment_gives_the_next_its_first_position(rolled: Rolled) -> None:
    rolled.first.ledger_closed = True
    view = rolled.view()

    assert await place_of(view, 2) == (FIRST, 0, 3)
    assert await place_of(view, 3) == (SECOND, 3, None)
    await view.learn_end()
    assert view.end == 3
    assert rolled.opened == [FIRST, SECOND]
    await view.close()
