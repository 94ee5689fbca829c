"""Reads the metadata of many ledgers and streams, some at a time."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import Final

import structlog
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId

log = structlog.get_logger("octavo.repair")

READS_AT_ONCE: Final = 32
"""Reads under way at a time: enough to hide the round trip to a metadata store, and few enough to be no load."""

_PAGE: Final = 32 * READS_AT_ONCE


async def each_ledger(store: MetadataStore, *, strict: bool = True) -> AsyncGenerator[EitherMetadata]:
    """The metadata of all ledgers and streams, by id. Raises :class:`MetadataError` for one that cannot be understood,
    if ``strict``; otherwise it is left out. Raises :class:`MetadataUnavailableError`."""
    page: list[LedgerId] = []
    async for ledger_id in store.list_ledgers():
        page.append(ledger_id)
        if len(page) >= _PAGE:
            for metadata in await _read_page(store, page, strict=strict):
                yield metadata
            page = []
    for metadata in await _read_page(store, page, strict=strict):
        yield metadata


async def _read_page(store: MetadataStore, page: list[LedgerId], *, strict: bool) -> list[EitherMetadata]:
    found = await read_ledgers(store, page, strict=strict)
    return [metadata for _, metadata in sorted(found.items()) if metadata is not None]


async def read_ledgers(
    store: MetadataStore, ledger_ids: Iterable[LedgerId], *, strict: bool = False
) -> dict[LedgerId, EitherMetadata | None]:
    """The metadata of ledgers and streams; None for one that has been deleted. One that cannot be understood is left
    out, and logged; if ``strict``, :class:`MetadataError` is raised. Raises :class:`MetadataUnavailableError`."""
    found: dict[LedgerId, EitherMetadata | None] = {}
    wanted = iter(ledger_ids)

    async def read_some() -> None:
        for ledger_id in wanted:
            try:
                found[ledger_id] = (await store.read_either(ledger_id)).value
            except NoSuchLedgerError:
                found[ledger_id] = None
            except MetadataUnavailableError:
                raise
            except MetadataError as error:
                if strict:
                    raise
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
