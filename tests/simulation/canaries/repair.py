"""Canaries in repair: copies that do not count, names taken too early, and doubt that ends too soon."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import google_crc32c
from octavo.bookie.copies.local_storage import LedgerCopies
from octavo.bookie.storage.ledger_state import LedgerState
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.bookie.storage.writes import EntryWriter
from octavo.bookie.upkeep.replaced import ReplacedCopies
from octavo.metadata.ledger.changes import ReplaceMember
from octavo.metadata.ledger.decisions import Write
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.ledger.stored import SettledRange
from octavo.protocol.entries import CHECKSUM, HEADER
from octavo.repair.base import balance, documents
from octavo.repair.base.planning import Why
from octavo.repair.copy import balancing
from octavo.repair.copy.copying import CopyWindow, Told
from octavo.repair.copy.jobs import Jobs
from octavo.repair.copy.puller import Puller
from octavo.repair.doubt import refill
from simulation.engine.patches import Patch, patch


def names_before_copies_are_durable() -> list[Patch]:
    """Breaks both of what keeps the rule: a copy is durable when it has been made, and what is counted before the name
    is durable when it has been counted."""

    @patch(EntryWriter, "copy_in")
    def copy_in(
        original: Any, self: Any, ledger_id: Any, entries: Sequence[bytes], **keywords: Any
    ) -> asyncio.Future[None]:
        durable = original(self, ledger_id, entries, **keywords)
        durable.add_done_callback(lambda stored: stored.cancelled() or stored.exception())
        at_once: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        at_once.set_result(None)
        return at_once

    return [copy_in, _not_looked_at_again()]


def copies_for_the_wrong_position() -> list[Patch]:
    def other(metadata: LedgerMetadata, position: int) -> int:
        return (position + 1) % metadata.quorums.ensemble_size

    @patch(Jobs, "_copy")
    async def copy(original: Any, self: Any, metadata: Any, settled: Any, position: int, **keywords: Any) -> Any:
        return await original(self, metadata, settled, other(metadata, position), **keywords)

    return [copy, _not_looked_at_again()]


def _not_looked_at_again() -> Patch:
    @patch(Jobs, "_holds")
    async def holds(_original: Any, _self: Any, _metadata: Any, _settled: Any, _position: int) -> bool:
        return True

    return holds


def seals_copies_again() -> list[Patch]:
    def sealed_again(sealed: bytes) -> bytes:
        fields = list(HEADER.unpack_from(sealed))
        if fields[1] == 2:
            return sealed  # a MAC cannot be made without the password
        fields[6] = fields[5] + 1  # the LAC is stored plus one
        body = HEADER.pack(*fields) + sealed[HEADER.size : -CHECKSUM.size]
        return body + CHECKSUM.pack(google_crc32c.value(body))

    @patch(LedgerCopies, "copy_in")
    async def copy_in(original: Any, self: Any, ledger_id: Any, entries: Sequence[bytes], **keywords: Any) -> None:
        await original(self, ledger_id, [sealed_again(sealed) for sealed in entries], **keywords)

    return [copy_in]


def takes_refusals_for_answers() -> list[Patch]:
    @patch(CopyWindow, "unsound")
    def unsound(original: Any, self: Any) -> Any:
        found = original(self)
        return None if found is not None and found.waits_for else found

    return [unsound, _not_looked_at_again()]


def leaves_out_what_one_source_denies() -> list[Patch]:
    @patch(CopyWindow, "on_answer")
    def on_answer(original: Any, self: Any, ask: Any, *arguments: Any, **keywords: Any) -> Any:
        wanted = original(self, ask, *arguments, **keywords)
        for entry_id, told in self._told.items():
            if told.get(ask.position) is Told.ABSENT:
                self._needed.pop(entry_id, None)
        return wanted

    @patch(Puller, "ends_right")
    async def ends_right(_original: Any, _self: Any, *_arguments: Any) -> bool:
        return True  # it would notice a range whose last entry is left out

    return [on_answer, ends_right, _not_looked_at_again()]


def documents_have_no_bound() -> list[Patch]:
    return [Patch(documents, "_within", lambda items, _bytes_max: list(items))]


def names_on_any_version() -> list[Patch]:
    @patch(Jobs, "_write_and_settle")
    async def write(original: Any, self: Any, wanted: LedgerMetadata, _expected: Any) -> bool:
        current = await self._store.read_ledger(wanted.ledger_id)
        return bool(await original(self, wanted, current.version))

    return [write]


def repairs_open_fragments() -> list[Patch]:
    @patch(LedgerMetadata, "settled_ranges")
    def with_last(original: Any, self: LedgerMetadata) -> tuple[SettledRange, ...]:
        found: tuple[SettledRange, ...] = original(self)
        if self.is_closed:
            return found
        last = self.last_fragment
        return (*found, SettledRange(last.first_entry_id, last.first_entry_id - 1, last.bookies, 0))

    @patch(ReplaceMember, "decide")
    def decide(original: Any, self: Any, current: LedgerMetadata) -> Any:
        last = current.last_fragment
        if current.is_closed or self.first_entry_id != last.first_entry_id or last.bookies[self.position] != self.old:
            return original(self, current)
        bookies = tuple(self.new if name == self.old else name for name in last.bookies)
        return Write(replace(current, fragments=(*current.fragments[:-1], replace(last, bookies=bookies))))

    return [with_last, decide]


def moved_copies_go_early() -> list[Patch]:
    """The source gives up what it holds as soon as it reads that a ledger is to be moved off it."""

    @patch(ReplacedCopies, "round")
    async def round_(original: Any, self: Any) -> Any:
        async for name in self._store.list_documents(documents.WORK_PREFIX):
            found = await self._store.read_document(name)
            jobs = () if found is None else documents.decode_plan(found.value, name).jobs
            for job in jobs:
                if job.why is Why.BALANCE and job.old == self._bookie_id and self._storage.holds_entries(job.ledger_id):
                    await self._storage.writer.drop(job.ledger_id)
        return await original(self)

    return [round_]


def moves_bring_copies_together() -> list[Patch]:
    def anywhere(slots: Any, _old: Any, new: Any, _locations: Any) -> bool:
        return new not in slots.bookies

    return [Patch(balance, "keeps_apart", anywhere), Patch(balancing, "keeps_apart", anywhere)]


def doubt_ends_for_open_fragments() -> list[Patch]:
    @patch(refill, "first_unsure_id")
    def first_unsure_id(
        original: Any, metadata: Any, bookie_id: Any, *, holds_all: bool, term_floor: int | None = None
    ) -> int | None:
        return None if holds_all else original(metadata, bookie_id, holds_all=holds_all, term_floor=term_floor)

    return [first_unsure_id]


def floor_is_lifted_when_doubt_ends() -> list[Patch]:
    @patch(LedgerTable, "is_below_floor")
    def is_below_floor(_original: Any, self: Any, ledger: LedgerState, _term: int) -> bool:
        return self.unsure_from(ledger) is not None

    return [is_below_floor]
