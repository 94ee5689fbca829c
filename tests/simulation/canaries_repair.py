"""Canaries in repair: copies that do not count, names taken too early, doubt that ends too soon."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import google_crc32c
from octavo.bookie.copies.face import LedgerCopies
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.metadata.changes import ReplaceMember, Write
from octavo.metadata.model import LedgerMetadata
from octavo.protocol.entries import CHECKSUM, HEADER
from octavo.repair import refill, settled
from octavo.repair.copying import CopyWindow, Told
from octavo.repair.jobs import Jobs
from octavo.repair.naming import Naming
from octavo.repair.settled import SettledRange, quorums_of_ledger
from simulation.patches import Patch, patch


def names_before_copies_are_durable() -> list[Patch]:
    @patch(LedgerCopies, "copy_in")
    async def copy_in(original: Any, self: Any, ledger_id: Any, entries: Sequence[bytes]) -> None:
        storing = asyncio.ensure_future(original(self, ledger_id, entries))
        storing.add_done_callback(lambda stored: stored.cancelled() or stored.exception())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if storing.done():
            storing.result()

    return [copy_in]


def skips_what_one_denies() -> list[Patch]:
    @patch(CopyWindow, "_next_member")
    def next_member(original: Any, self: Any, entry_id: int) -> int | None:
        member: int | None = original(self, entry_id)
        return None if Told.ABSENT in self._told[entry_id].values() else member

    @patch(CopyWindow, "unsound")
    def unsound(original: Any, self: Any) -> Any:
        denied = all(Told.ABSENT in self._told[entry_id].values() for entry_id in self._needed)
        return None if denied else original(self)

    return [next_member, unsound, _not_looked_at_again()]


def copies_for_the_wrong_position() -> list[Patch]:
    def other(metadata: LedgerMetadata, position: int) -> int:
        return (position + 1) % quorums_of_ledger(metadata).ensemble_size

    @patch(Jobs, "_copy")
    async def copy(original: Any, self: Any, metadata: Any, settled: Any, position: int) -> Any:
        return await original(self, metadata, settled, other(metadata, position))

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
    async def copy_in(original: Any, self: Any, ledger_id: Any, entries: Sequence[bytes]) -> None:
        await original(self, ledger_id, [sealed_again(sealed) for sealed in entries])

    return [copy_in]


def names_on_any_version() -> list[Patch]:
    @patch(Naming, "compare_and_set")
    async def compare_and_set(original: Any, self: Any, metadata: LedgerMetadata, _expected: Any) -> Any:
        current = await self._store.read_ledger(metadata.ledger_id)
        return await original(self, metadata, current.version)

    return [compare_and_set]


def repairs_open_fragments() -> list[Patch]:
    @patch(settled, "_settled")
    def all_settled(original: Any, metadata: LedgerMetadata) -> Iterator[SettledRange]:
        yield from original(metadata)
        if not metadata.is_closed:
            last = metadata.last_fragment
            yield SettledRange(last.first_entry_id, last.first_entry_id - 1, last.bookies, last.length_before)

    @patch(ReplaceMember, "decide")
    def decide(original: Any, self: Any, current: LedgerMetadata) -> Any:
        last = current.last_fragment
        if current.is_closed or last.first_entry_id != self.first_entry_id or last.bookies[self.position] != self.old:
            return original(self, current)
        members = (*last.bookies[: self.position], self.new, *last.bookies[self.position + 1 :])
        return Write(replace(current, fragments=(*current.fragments[:-1], replace(last, bookies=members))))

    return [all_settled, decide]


def doubt_ends_in_open_fragments() -> list[Patch]:
    @patch(refill, "first_unsure_id")
    def first_unsure_id(original: Any, metadata: Any, bookie_id: Any, *, holds_all: bool) -> int | None:
        return None if holds_all else original(metadata, bookie_id, holds_all=holds_all)

    return [first_unsure_id]


def floor_is_lifted() -> list[Patch]:
    @patch(LedgerTable, "is_below_floor")
    def is_below_floor(_original: Any, self: Any, ledger: Any) -> bool:
        return self.unsure_from(ledger) is not None

    return [is_below_floor]


def takes_refusals_for_answers() -> list[Patch]:
    @patch(CopyWindow, "unsound")
    def unsound(original: Any, self: Any) -> Any:
        found = original(self)
        return None if found is not None and found.waits_for else found

    return [unsound, _not_looked_at_again()]
