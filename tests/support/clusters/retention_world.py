"""A log that retention is applied to by production code, in a store in memory, without bookies; of both layouts."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from octavo.client.log.chain.changes import SetRetention
from octavo.client.log.chain.housekeeping import Housekeeper
from octavo.client.log.chain.update import update_log
from octavo.client.log.cursors.keeper import CursorKeeper
from octavo.client.log.documents.chain import LogDocument, Retention
from octavo.client.log.documents.cursors import CursorsDocument, CursorState, decode_cursors, encode_cursors
from octavo.client.log.documents.names import cursors_document, list_document
from octavo.client.log.documents.reading import read_document
from octavo.client.log.documents.stream import StreamLogDocument
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.pacing import TakeoverPacing
from octavo.client.log.stream.changes import SetStreamRetention
from octavo.client.log.stream.housekeeping import StreamHousekeeper
from octavo.client.log.stream.update import update_stream_log
from octavo.client.options import ClientOptions
from octavo.metadata import MetadataStore
from octavo.metadata.clocks.proven_time import BootTime
from octavo.metadata.memory import MemoryServer, open_memory_store
from octavo.metadata.store.driver import Kind
from octavo.protocol.ids import LedgerId
from support.interleavings import SteppedStore, Turns
from support.metadata.log_documents import log_of
from support.metadata.stream_metadata import open_stream, stream_fragment

DROPS_ALL = Retention(bytes=1, cursors=True)
"""All but the last segments, unless a cursor holds them back."""

IDLE_SECONDS = 1000.0

OLD = 2
"""Where a consumer stands that is not heard of any more."""


async def nothing(*_arguments: object) -> Any:
    raise AssertionError("no ledger is opened or written here")


@dataclass
class World:
    """A log of closed segments of three entries, and one that is open."""

    layout: str
    store: MetadataStore
    turns: Turns
    time_ms: int = 10_000_000
    stored: list[CursorsDocument] = field(default_factory=list)
    """The document of the cursors, in all its versions."""

    def __post_init__(self) -> None:
        self.leader = self.housekeeper("leader")

    async def make(self, retention: Retention, cursors: dict[str, CursorState]) -> None:
        if self.layout == "chain":
            document: Any = log_of(3, 3, 3, 3, 3, None, retention=retention)
        else:
            while await self.store.allocate_ledger_id() < LedgerId(7):
                pass
            fragments = [stream_fragment(1, 3 * n, 3 * n, length_before=300 * n) for n in range(6)]
            await self.store.create_stream(open_stream(*fragments))
            document = StreamLogDocument("orders", "id-1", LedgerId(7), 1000, retention)
        await self.store.create_document(list_document("orders"), document.encode())
        if cursors:
            value = encode_cursors(CursorsDocument(cursors))
            await self.store.create_document(cursors_document("id-1"), value)

    def note(self, server: MemoryServer, kind: Kind | None, key: str | None) -> None:
        """Something has been stored."""
        if kind is Kind.DOCUMENT and key == cursors_document("id-1"):
            self.stored.append(decode_cursors(server.records[kind][key].value, key))

    def access(self, party: str) -> LedgerAccess:
        rng = random.Random(1)
        return LedgerAccess(
            SteppedStore(self.store, party, self.turns, lambda: self.time_ms).face,
            ClientOptions(log_cursor_idle_seconds=IDLE_SECONDS),
            clock_ms=lambda: self.time_ms,
            random_token=lambda: f"{rng.getrandbits(64):016x}",
            uniform=lambda _low, _high: 0.0,
            pacing=TakeoverPacing(rng.uniform),
            create=nothing,
            open=nothing,
            read=nothing,
            load_streams=lambda: None,  # type: ignore[arg-type,return-value]
            boot_clock=lambda: BootTime("a host", self.time_ms),
        )

    def housekeeper(self, party: str) -> Housekeeper | StreamHousekeeper:
        kind = Housekeeper if self.layout == "chain" else StreamHousekeeper
        return kind(self.access(party), "orders", "id-1")

    def keeper(self, party: str) -> CursorKeeper:
        access = self.access(party)
        return CursorKeeper(
            access.store,
            "orders",
            "id-1",
            access.clock_ms,
            3600.0,
            uniform=access.uniform,
            on_failure=access.counts.note_cursors_not_stored,
        )

    async def set_retention(self, party: str, retention: Retention) -> None:
        store = self.access(party).store
        if self.layout == "chain":
            await update_log(store, "orders", SetRetention(retention), log_id="id-1")
        else:
            await update_stream_log(store, "orders", SetStreamRetention(retention), log_id="id-1")

    async def first_position(self, store: MetadataStore | None = None) -> int:
        document = (await read_document(store or self.store, "orders", log_id="id-1")).value
        assert isinstance(document, LogDocument | StreamLogDocument)
        return document.first_position


@asynccontextmanager
async def open_world(
    layout: str, turns: Turns, retention: Retention, cursors: dict[str, CursorState]
) -> AsyncIterator[World]:
    """A new log with this retention and these cursors, in a store of its own."""
    rng = random.Random(1)
    server = MemoryServer("", rng=rng)
    async with open_memory_store(server, rng=rng) as store:
        made = World(layout, store, turns)
        server.add_listener(lambda kind, key: made.note(server, kind, key))
        await made.make(retention, cursors)
        yield made
