"""Reads the metadata of many ledgers, some at a time."""

import asyncio
from collections.abc import Iterable
from typing import Final

import structlog
from octavo.metadata.model import LedgerMetadata
from octavo.metadata.store import MetadataStore
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId

log = structlog.get_logger("octavo.repair")

READS_AT_ONCE: Final = 32
"""Reads under way at a time: enough to hide the round trip to a metadata store, and few enough to be no load."""


async def read_ledgers(store: MetadataStore, ledger_ids: Iterable[LedgerId]) -> dict[LedgerId, LedgerMetadata | None]:
    """The metadata of ledgers; None for one that has been deleted. One that cannot be understood is left out, and
    logged. Raises :class:`MetadataUnavailableError`."""
    found: dict[LedgerId, LedgerMetadata | None] = {}
    wanted = iter(ledger_ids)

    async def read_some() -> None:
        for ledger_id in wanted:
            try:
                found[ledger_id] = (await store.read_ledger(ledger_id)).value
            except NoSuchLedgerError:
                found[ledger_id] = None
            except MetadataUnavailableError:
                raise
            except MetadataError as error:
                log.warning(
                    "the metadata of a ledger cannot be understood", ledger=int(ledger_id), reason=error.message
                )

    readers = [asyncio.ensure_future(read_some()) for _ in range(READS_AT_ONCE)]
    try:
        await asyncio.gather(*readers)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return found
