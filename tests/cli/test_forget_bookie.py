"""Forgetting a bookie that has left: refused while it may still be needed."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from octavo.cli.bookies import forget_bookie
from octavo.cli.session import CommandError
from octavo.metadata import Fragment, MetadataStore
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.store.values import Version
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from support.metadata.interposed_store import InterposedStore
from support.metadata.ledger_metadata import bookie_ids, fragment, open_ledger
from support.metadata.metadata_clusters import cookie, registration
from support.metadata.stream_metadata import open_stream


@pytest.fixture
async def store() -> AsyncIterator[MetadataStore]:
    async with open_memory_store(MemoryServer()) as opened:
        await opened.create_cookie(cookie("b1"))
        await opened.create_cookie(cookie("b2"))
        yield opened


async def known(store: MetadataStore) -> list[str]:
    return [bookie.bookie_id for bookie in await store.list_known_bookies()]


async def test_bookie_that_has_left_is_forgotten(store: MetadataStore) -> None:
    await store.create_ledger(open_ledger(await store.allocate_ledger_id(), fragment(0, "abc")))
    await forget_bookie(store, "b1")
    assert await known(store) == ["b2"]


@pytest.mark.parametrize("name", ["b3", "../b1", ""])
async def test_bookie_that_the_cluster_does_not_know_is_refused(store: MetadataStore, name: str) -> None:
    with pytest.raises(CommandError, match="does not know"):
        await forget_bookie(store, name)


async def test_registered_bookie_is_not_forgotten(store: MetadataStore) -> None:
    lease = await store.register_bookie(registration("b1"))
    with pytest.raises(CommandError, match=r"registered at b1\.example:3181; stop it"):
        await forget_bookie(store, "b1")
    await lease.release()
    await forget_bookie(store, "b1")


async def test_bookie_that_registers_while_it_is_being_forgotten_keeps_its_cookie(store: MetadataStore) -> None:
    async def delete(bookie_id: BookieId, expected: Version) -> None:
        await store.register_bookie(registration("b1"))
        await store.delete_cookie(bookie_id, expected)

    interposed = InterposedStore(store)
    interposed.interpose("delete_cookie", delete)
    with pytest.raises(CommandError, match="is registered at"):
        await forget_bookie(interposed.face, "b1")
    found = await store.read_cookie(BookieId("b1"))
    assert found is not None
    assert found.value == cookie("b1")


NAMES_IT = bookie_ids("b1", "x", "y")
OTHERS = bookie_ids("b2", "x", "y")


@pytest.mark.parametrize("ensembles", [(NAMES_IT,), (NAMES_IT, OTHERS), (OTHERS, NAMES_IT)])
@pytest.mark.parametrize("closed", [True, False])
async def test_bookie_that_a_ledger_names_is_not_forgotten(
    store: MetadataStore, ensembles: tuple[tuple[BookieId, ...], ...], closed: bool
) -> None:
    await store.create_ledger(open_ledger(await store.allocate_ledger_id(), Fragment(EntryId(0), OTHERS)))
    ledger_id = await store.allocate_ledger_id()
    ledger = open_ledger(ledger_id, *(Fragment(EntryId(10 * at), names) for at, names in enumerate(ensembles)))
    await store.create_ledger(ledger.closed(EntryId(20), 20) if closed else ledger)
    with pytest.raises(CommandError, match=f"ledger {ledger_id}, whose metadata name it"):
        await forget_bookie(store, "b1")
    assert await known(store) == ["b1", "b2"]
    await store.delete_ledger(ledger_id)
    await forget_bookie(store, "b1")


async def test_bookie_that_a_stream_names_is_not_forgotten(store: MetadataStore) -> None:
    ledger_id = await store.allocate_ledger_id()
    fragment = replace(open_stream().last_fragment, bookies=NAMES_IT)
    await store.create_stream(replace(open_stream(), ledger_id=ledger_id, fragments=(fragment,)))
    with pytest.raises(CommandError, match=f"ledger {ledger_id}, whose metadata name it"):
        await forget_bookie(store, "b1")
    await store.delete_ledger(ledger_id)
    await forget_bookie(store, "b1")


async def test_bookie_that_starts_meanwhile_is_not_forgotten(store: MetadataStore) -> None:
    class StartsMeanwhile:
        """The bookie has raised its cookie and is not registered yet when the ledgers are read."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def list_ledgers(self) -> AsyncIterator[LedgerId]:
            found = await store.read_cookie(BookieId("b1"))
            assert found is not None
            await store.compare_and_set_cookie(cookie("b1", 2), found.version)
            async for ledger_id in store.list_ledgers():
                yield ledger_id

    with pytest.raises(CommandError, match="started or forgotten in the meantime"):
        await forget_bookie(StartsMeanwhile(), "b1")  # type: ignore[arg-type]
    assert await known(store) == ["b1", "b2"]
