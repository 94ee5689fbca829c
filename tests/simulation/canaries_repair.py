"""Canaries in repair: copies that do not count, and names taken too early."""

import asyncio
from collections.abc import Sequence
from typing import Any

import google_crc32c
from octavo.bookie.copies.face import LedgerCopies
from octavo.bookie.storage.writes import EntryWriter
from octavo.metadata.model import LedgerMetadata
from octavo.protocol.entries import CHECKSUM, HEADER
from octavo.repair.copying import CopyWindow
from octavo.repair.jobs import Jobs
from octavo.repair.settled import quorums_of_ledger
from simulation.patches import Patch, patch


def names_before_copies_are_durable() -> list[Patch]:
    @patch(EntryWriter, "copy_in")
    def copy_in(
        original: Any, self: Any, ledger_id: Any, entries: Sequence[bytes], **keywords: Any
    ) -> asyncio.Future[None]:
        durable = original(self, ledger_id, entries, **keywords)
        durable.add_done_callback(lambda stored: stored.cancelled() or stored.exception())
        at_once: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        at_once.set_result(None)
        return at_once

    return [copy_in]


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
    async def copy_in(original: Any, self: Any, ledger_id: Any, entries: Sequence[bytes], **keywords: Any) -> None:
        await original(self, ledger_id, [sealed_again(sealed) for sealed in entries], **keywords)

    return [copy_in]


def takes_refusals_for_answers() -> list[Patch]:
    @patch(CopyWindow, "unsound")
    def unsound(original: Any, self: Any) -> Any:
        found = original(self)
        return None if found is not None and found.waits_for else found

    return [unsound, _not_looked_at_again()]
