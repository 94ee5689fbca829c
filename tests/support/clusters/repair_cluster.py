"""Whole bookies with repair in one process: files and metadata in memory, real connections, grace times of a moment."""

import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from octavo.bookie.bookie import Bookie
from octavo.bookie.companion import CompanionView
from octavo.bookie.config import load_config
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.reset_identity import reset_identity
from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata import LedgerMetadata, MetadataStore, open_metadata_store
from octavo.metadata.cluster.repair_states import (
    DOCUMENT,
    BookieCondition,
    Condition,
    RepairStates,
    decode_states,
    encode_states,
)
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.paging import members_of, parts_of
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.agent import Agent
from octavo.repair.base.documents import SUMMARY, Summary, decode_summary
from octavo.repair.base.settings import RepairSettings
from support.disks.faulty_filesystem import MemoryFileSystem
from support.inside import connections_of
from support.metadata.memory_stores import memory_uri

import octavo

QUICK = RepairSettings(
    lost_seconds=0.5,
    audit_seconds=0.3,
    open_seconds=600.0,
    silent_seconds=5.0,
    report_seconds=0.02,
    poll_seconds=0.05,
    retry_seconds_open=0.1,
    retry_seconds_min=0.2,
    retry_seconds_max=1.0,
    request_timeout_seconds=2.0,
)
"""What takes minutes in production takes a moment. Only open ledgers are left to their writers for long: on a slow
machine a living writer may need a second to replace a bookie."""

CLIENT: dict[str, Any] = {
    "reconnect_delay_seconds_min": 0.01,
    "reconnect_delay_seconds_max": 0.05,
    "resend_delay_seconds": 0.05,
    "bookie_loss_seconds": 0.05,
}


@dataclass
class Member:
    """One bookie of the cluster, running or not."""

    name: str
    filesystem: MemoryFileSystem
    settings: RepairSettings
    bookie: Bookie | None = None
    store: MetadataStore | None = None
    agents: list[Agent] = field(default_factory=list)


class RepairCluster:
    """See the module. Made by :func:`repair_cluster`."""

    def __init__(self, uri: str, store: MetadataStore, stack: contextlib.AsyncExitStack) -> None:
        self.uri = uri
        self.store = store
        self.members: dict[str, Member] = {}
        self._stack = stack
        self._stores: dict[octavo.Client, MetadataStore] = {}
        """Those of the clients."""
        self._killed: set[octavo.Client] = set()

    # --- bookies ----------------------------------------------------------------------------------------------------

    async def start(self, name: str, *, settings: RepairSettings | None = None) -> Bookie:
        """Start a bookie, the first time or again, then by default with the settings that it had."""
        member = self.members.get(name)
        if member is None:
            member = self.members[name] = Member(name, MemoryFileSystem(), settings or QUICK)
        member.settings = settings or member.settings
        member.store = await open_metadata_store(self.uri)
        config = {
            "data_dir": Path(f"/{name}"), "port": 0, "metadata": self.uri, "journal_segment_bytes": 16 << 20,
            "entry_log_bytes": 1 << 20, "bookie_id": name,
        }  # fmt: skip
        member.bookie = await Bookie.start(
            load_config(None, {}, config), filesystem=member.filesystem, store=member.store,
            rng=random.Random(f"{name} {len(member.agents)}"), software="0", wall_clock=time.time,
            companion=lambda view: self._agent(member, view),
        )  # fmt: skip
        return member.bookie

    async def stop(self, name: str) -> None:
        """Stop a bookie; it may be started again."""
        member = self.members[name]
        if member.bookie is not None and member.store is not None:
            await member.bookie.stop()
            await member.store.close()
            member.bookie = member.store = None

    async def replace_disks(self, name: str) -> Bookie:
        """Start a stopped bookie with new, empty disks under its old id, as `octavo bookie reset-identity` allows."""
        member = self.members[name]
        member.filesystem = MemoryFileSystem()
        layout = Layout.of(Path(f"/{name}"))
        for path in layout.directories.values():
            await member.filesystem.make_directory(path)
        await reset_identity(member.filesystem, layout, self.store, bookie_id=name, rng=random.Random(name))
        return await self.start(name, settings=member.settings)

    def damage_entry(self, name: str, ledger_id: int, number: int, payload_bytes: int = 100) -> None:
        """Flip a bit of an entry's payload in the entry logs of a bookie."""
        filesystem, wanted = self.members[name].filesystem, payload(ledger_id, number, payload_bytes)
        places = [(path, filesystem.content(path).find(wanted)) for path in filesystem.files(Path(f"/{name}/entries"))]
        (path, offset), *_ = [place for place in places if place[1] >= 0]
        filesystem.damage(path, offset)

    async def close(self) -> None:
        for name in self.members:
            await self.stop(name)

    def bookie(self, name: str) -> Bookie:
        bookie = self.members[name].bookie
        assert bookie is not None, f"{name} is stopped"
        return bookie

    async def _agent(self, member: Member, view: CompanionView) -> None:
        agent = Agent(view, member.settings)
        member.agents.append(agent)
        await agent.run()

    # --- clients and ledgers ----------------------------------------------------------------------------------------

    async def client(self, **options: Any) -> octavo.Client:
        store = await open_metadata_store(self.uri)
        client = Client(
            store, cluster_id=await store.cluster_id(), options=ClientOptions.from_keywords(CLIENT | options)
        )
        self._stores[client] = store
        self._stack.push_async_callback(self._close_client, client)
        return client

    async def kill_client(self, client: octavo.Client) -> None:
        """The client's process dies: its ledgers stay open, and it replaces no bookie any more. While its writer lived,
        it would replace a bookie that does not confirm an add, or is lost."""
        self._killed.add(client)
        await self._stores[client].close()  # first: from here on it changes no metadata
        await connections_of(client).close()

    async def _close_client(self, client: octavo.Client) -> None:
        with contextlib.suppress(*([octavo.OctavoError] if client in self._killed else [])):
            await client.close()

    async def ledger(self, client: octavo.Client, entries: int, *sizes: int, payload_bytes: int = 100) -> int:
        """A closed ledger with as many entries; ``sizes`` are E, Qw and Qa."""
        async with client.create_ledger(*sizes) as writer:
            await writer.add_many([payload(writer.id, number, payload_bytes) for number in range(entries)])
        return writer.id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return (await self.store.read_ledger(LedgerId(ledger_id))).value

    async def either(self, ledger_id: int) -> EitherMetadata:
        """The metadata of a ledger or a stream."""
        return (await self.store.read_either(LedgerId(ledger_id))).value

    async def check_entries(
        self, client: octavo.Client, ledger_id: int, entries: int, *, payload_bytes: int = 100
    ) -> None:
        """Every entry can be read and has its bytes."""
        async with client.open_ledger(ledger_id, recover=False) as reader:
            read = await reader.read(0, entries - 1) if entries else []
            assert [entry.payload for entry in read] == [payload(ledger_id, n, payload_bytes) for n in range(entries)]

    # --- what must hold -----------------------------------------------------------------------------------------------

    async def is_whole(self, ledger_id: int) -> bool:
        """Whether every member that the metadata name is running and holds, sound, all that it should."""
        parts = [part async for part in parts_of(self.store, await self.either(ledger_id))]
        for metadata, settled in [(part, settled) for part in parts for settled in part.settled_ranges()]:
            quorums = metadata.quorums_at(settled.first)
            for position, name in enumerate(settled.bookies):
                bookie = self.members[name].bookie
                if bookie is None:
                    return False
                stripe = (quorums.ensemble_size, quorums.residues_at(position))
                first = settled.first
                while first <= settled.last:
                    read = await bookie.service.storage.reader.read(
                        LedgerId(ledger_id), first, settled.last, stripe=stripe, entries_max=4096, bytes_max=1 << 20
                    )
                    wanted = [one for one in range(first, read.last_covered + 1) if one % stripe[0] in stripe[1]]
                    if len(read.entries) != len(wanted):
                        return False
                    first = read.last_covered + 1
        return True

    async def names(self, ledger_id: int) -> frozenset[str]:
        """Every bookie that the ledger names."""
        return await members_of(self.store, await self.either(ledger_id))

    def copied(self, name: str) -> int:
        """Entries that the bookie has copied since its last start."""
        return self.members[name].agents[-1].entries_copied

    async def states(self) -> RepairStates:
        found = await self.store.read_document(DOCUMENT)
        return decode_states(None if found is None else found.value)

    async def change_states(self, change: Callable[[RepairStates], RepairStates]) -> None:
        """As an operator does."""
        while True:
            found = await self.store.read_document(DOCUMENT)
            value = encode_states(change(decode_states(None if found is None else found.value)))
            with contextlib.suppress(MetadataConflictError):
                if found is None:
                    await self.store.create_document(DOCUMENT, value)
                else:
                    await self.store.compare_and_set_document(DOCUMENT, value, found.version)
                return

    async def set_condition(self, name: str, condition: Condition | None) -> None:
        entry = None if condition is None else BookieCondition(condition, int(time.time() * 1000))
        await self.change_states(lambda states: states.with_bookie(BookieId(name), entry))

    async def summary(self) -> Summary | None:
        found = await self.store.read_document(SUMMARY)
        return None if found is None else decode_summary(found.value)

    async def document_versions(self) -> dict[str, int]:
        """The documents of repair, each with its version: no write, no change."""
        names = [name async for name in self.store.list_documents("repair/")]
        return {name: found.version for name in names if (found := await self.store.read_document(name)) is not None}


def payload(ledger_id: int, number: int, payload_bytes: int) -> bytes:
    """The payload of an entry: tells where it belongs."""
    return f"{ledger_id}/{number}/".encode().ljust(payload_bytes, b".")


@contextlib.asynccontextmanager
async def repair_cluster(name: str, bookies: int, **settings: Any) -> AsyncIterator[RepairCluster]:
    """A cluster of bookies ``b0``, ``b1``, ...; ``settings`` replace those of :data:`QUICK`. ``name``: of a store in
    memory, or the URI of another one."""
    uri = name if "://" in name else memory_uri(name)
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(await open_metadata_store(uri, create=True))
        cluster = RepairCluster(uri, store, stack)
        stack.push_async_callback(cluster.close)
        for number in range(bookies):
            await cluster.start(f"b{number}", settings=replace(QUICK, **settings))
        yield cluster
