"""A bookie that may have lost that a ledger is private gives nothing of it away before the metadata have told (S3)."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.metadata import open_metadata_store
from octavo.protocol.errors import BookieOverloadedError, NoSuchLedgerError, OctavoError, UnauthorizedError
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import (
    EntryList,
    LacAnswer,
    ListEntries,
    Missing,
    MissingAnswer,
    Read,
    ReadAnswer,
    ReadFlag,
    ReadLac,
    Reply,
    Request,
)
from octavo.security.roles import Role
from support.clusters.principals import DOCUMENTS, GUARDED, raw
from support.clusters.tls_bookies import Cluster, start_bookie
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.interposed_store import InterposedStore
from support.metadata.memory_stores import memory_uri
from support.raw_client import PASSWORD, key_of

DATA = Path("/bookie")


class Host:
    """The disks of a bookie with a private and a public ledger, and the metadata as the bookie sees them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.filesystem = MemoryFileSystem()
        self.store = InterposedStore(cluster.store)
        self.looked_up: list[LedgerId] = []
        self.private = self.public = LedgerId(0)

    @asynccontextmanager
    async def bookie(self, **settings: Any) -> AsyncIterator[Bookie]:
        bookie = await start_bookie(self.store.face, 1, filesystem=self.filesystem, **{**GUARDED, **settings})
        try:
            yield bookie
        finally:
            await bookie.stop()

    async def write(self) -> None:
        """Both ledgers get entries, and the process of the bookie is killed."""
        async with self.bookie(auth="none"), self.cluster.client() as client:
            ids = []
            for private in (True, False):
                ledger = await client.create_ledger(1, 1, 1, password=PASSWORD, private=private)
                for _ in range(4):
                    await ledger.add(b"secret" * 700)  # more than a page of the journal
                await ledger.close()
                ids.append(ledger.id)
            self.private, self.public = ids
            left = MemoryFileSystem()
            for path in self.filesystem.files():
                left.set_content(path, self.filesystem.content(path))
        self.filesystem = left

    def count_lookups(self) -> None:
        async def read_either(ledger_id: LedgerId) -> Any:
            self.looked_up.append(ledger_id)
            return await self.store.real.read_either(ledger_id)

        self.store.interpose("read_either", read_either)

    def reads(self, ledger_id: LedgerId, key: bytes = b"") -> list[Request]:
        lac = ReadLac(ledger_id, key, ReadFlag.NONE, 0, None, 0, 10, 1 << 20)
        waiting = ReadLac(ledger_id, key, ReadFlag.NONE, 0, None, 60_000, 10, 1 << 20)
        return [read_of(ledger_id, key), lac, waiting, ListEntries(ledger_id, 0, 9)]


def read_of(ledger_id: LedgerId, key: bytes = b"", flags: ReadFlag = ReadFlag.NONE) -> Read:
    return Read(ledger_id, key, flags, 0, 0, 9, 1, (0,), 10, 1 << 20)


async def damage_journal(host: Host) -> None:
    """The page with the state of the private ledger is damaged; entries behind it are not."""
    (segment,) = (path for path in host.filesystem.files() if path.name.startswith("journal-"))
    content = host.filesystem.content(segment)
    page = content.index(key_of(host.private)) // 4096 * 4096
    host.filesystem.set_content(segment, content[:page] + bytes(4096) + content[page + 4096 :])


async def rebuild_without_states(host: Host) -> None:
    """One bit flips in the block with the states, and the operator rebuilds the index."""
    for path in host.filesystem.files(DATA / "index"):
        content = host.filesystem.content(path)
        at = content.rfind(key_of(host.private))
        if at >= 0:
            host.filesystem.damage(path, at)
    assert (await IndexRebuild(host.filesystem, Layout.of(DATA)).run()).in_doubt_because


async def rebuild_without_manifest(host: Host) -> None:
    """The manifest and all index parts are lost."""
    for path in [DATA / "manifest", *host.filesystem.files(DATA / "index")]:
        await host.filesystem.remove(path)
    assert (await IndexRebuild(host.filesystem, Layout.of(DATA)).run()).in_doubt_because


async def lose_nothing(_host: Host) -> None:
    pass


LOSSES: dict[str, Callable[[Host], Awaitable[None]]] = {
    "journal": damage_journal,
    "states": rebuild_without_states,
    "manifest": rebuild_without_manifest,
}


@asynccontextmanager
async def host_after(loss: str) -> AsyncIterator[Host]:
    uri = memory_uri(f"lost-privacy-{loss}")
    async with await open_metadata_store(uri, create=True) as store:
        for name, value in DOCUMENTS.items():
            await store.create_document(name, value)
        host = Host(Cluster(store, uri))
        await host.write()
        if loss != "journal":
            async with host.bookie():
                pass  # what was in the journal is in an entry log now
        await LOSSES.get(loss, lose_nothing)(host)
        yield host


def shown(answer: Reply | OctavoError) -> bool:
    """Whether the answer tells anything of what is held."""
    if isinstance(answer, ReadAnswer):
        return bool(answer.entries)
    if isinstance(answer, LacAnswer):
        return bool(answer.entries or answer.entry)
    return isinstance(answer, EntryList | MissingAnswer)


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_private_ledger_is_private_after_its_state_was_lost(loss: str) -> None:
    async with host_after(loss) as host, host.bookie() as bookie:
        host.count_lookups()
        async with raw(bookie, Role.READ) as reader:
            for request in host.reads(host.private):
                assert isinstance(await reader.ask(request), UnauthorizedError), request
            for request in host.reads(host.private, key_of(host.private, b"another"))[:2]:
                assert isinstance(await reader.ask(request), UnauthorizedError), request
            answer = await reader.ask(read_of(host.private, key_of(host.private)))
            assert shown(answer), "there is something to keep private"
        async with raw(bookie, Role.REPAIR) as repair:
            assert shown(await repair.ask(read_of(host.private, flags=ReadFlag.REPAIR)))
        assert bookie.service.storage.reader.private_key(host.private)[0]


@pytest.mark.parametrize("loss", LOSSES)
async def test_nothing_is_given_away_while_the_metadata_cannot_be_read(loss: str) -> None:
    async with host_after(loss) as host, host.bookie() as bookie, raw(bookie, Role.READ) as reader:
        host.store.make_unavailable("read_either")
        for ledger_id in (host.private, host.public):
            for request in host.reads(ledger_id):
                answer = await reader.ask(request)
                assert isinstance(answer, BookieOverloadedError), "the client may ask again"
                assert answer.retryable
        async with raw(bookie, Role.REPAIR) as repair:
            assert shown(await repair.ask(read_of(host.private, flags=ReadFlag.REPAIR))), "a repair needs no look-up"
            missing = Missing(host.public, 0, 9, 1, (0,))
            assert isinstance(await repair.ask(missing), MissingAnswer)
        host.store.restore()
        assert shown(await reader.ask(read_of(host.public)))
        assert isinstance(await reader.ask(read_of(host.private)), UnauthorizedError)


async def test_the_metadata_are_asked_once_for_each_ledger_also_over_restarts() -> None:
    async with host_after("states") as host:
        host.count_lookups()
        async with host.bookie() as bookie, raw(bookie, Role.READ) as reader:
            for request in [*host.reads(host.public)[:2], *host.reads(host.private)]:
                await reader.ask(request)
            assert sorted(host.looked_up) == sorted([host.private, host.public])
        async with host.bookie() as bookie, raw(bookie, Role.READ) as reader:
            assert bookie.service.storage.doubted_ids_stop is not None
            assert shown(await reader.ask(read_of(host.public)))
            assert isinstance(await reader.ask(read_of(host.private)), UnauthorizedError)
            assert len(host.looked_up) == 2


async def test_a_bookie_that_is_sure_of_its_entries_again_has_not_learned_what_is_private() -> None:
    """Repair gives back entries (rule D2), and no states."""
    async with host_after("states") as host, host.bookie() as bookie, raw(bookie, Role.READ) as reader:
        stop = bookie.service.storage.doubted_ids_stop
        assert stop is not None
        await bookie.service.storage.narrow_doubt(stop, {})
        assert bookie.service.storage.doubt is None
        assert isinstance(await reader.ask(read_of(host.private)), UnauthorizedError)
        assert shown(await reader.ask(read_of(host.public)))


async def test_requests_for_one_ledger_share_a_look_up() -> None:
    async with host_after("states") as host, host.bookie() as bookie, raw(bookie, Role.READ) as reader:
        host.count_lookups()
        for _ in range(5):
            reader.send(read_of(host.public))
        for _ in range(5):
            _, answer = await reader.receive_reply()
            assert shown(answer)
        assert host.looked_up == [host.public]


async def test_a_bookie_that_has_lost_nothing_asks_nothing() -> None:
    async with host_after("nothing") as host, host.bookie() as bookie, raw(bookie, Role.READ) as reader:
        host.count_lookups()
        assert shown(await reader.ask(read_of(host.public)))
        assert isinstance(await reader.ask(read_of(host.private)), UnauthorizedError)
        assert host.looked_up == []


async def test_a_ledger_that_the_metadata_do_not_have_is_given_to_no_client() -> None:
    async with host_after("states") as host, host.bookie() as bookie, raw(bookie, Role.READ) as reader:
        for ledger_id in (host.private, host.public):
            stored = await host.cluster.store.read_ledger(ledger_id)
            await host.cluster.store.delete_ledger(ledger_id, stored.version)
            for request in host.reads(ledger_id):
                assert isinstance(await reader.ask(request), NoSuchLedgerError), request


async def test_ledgers_of_which_the_bookie_holds_nothing_are_not_looked_up() -> None:
    async with host_after("states") as host:
        before = await host.cluster.store.allocate_ledger_id()
        async with host.bookie() as bookie, raw(bookie, Role.READ) as reader:
            host.count_lookups()
            stop = bookie.service.storage.doubted_ids_stop
            assert stop is not None
            assert stop > before
            for ledger_id in (before, LedgerId(stop)):
                assert isinstance(await reader.ask(read_of(ledger_id)), ReadAnswer)
            assert host.looked_up == []


async def test_copies_tell_the_bookie_what_the_metadata_say() -> None:
    async with host_after("states") as host, host.bookie() as bookie, raw(bookie, Role.READ) as reader:
        host.store.make_unavailable("read_either")
        storage = bookie.service.storage
        for ledger_id, private in ((host.private, True), (host.public, False)):
            held = await storage.reader.read(ledger_id, 0, 0, entries_max=1, bytes_max=1 << 20)
            await storage.writer.copy_in(ledger_id, held.entries, private=private)
        assert shown(await reader.ask(read_of(host.public)))
        assert isinstance(await reader.ask(read_of(host.private)), UnauthorizedError)
