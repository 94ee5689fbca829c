"""Reads the metadata of many ledgers and streams, some at a time."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Final

from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.errors import MetadataError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId

type OnUnreadable = Callable[[LedgerId, MetadataError], object]
"""Is told of the metadata that cannot be understood, and are left out."""

READS_AT_ONCE: Final = 32
"""Reads under way at a time: enough to hide the round trip to a metadata store, and few enough to be no load."""

_PAGE: Final = 32 * READS_AT_ONCE


async def each_ledger(
    store: MetadataStore, on_unreadable: OnUnreadable | None = None
) -> AsyncGenerator[EitherMetadata]:
    """The metadata of all ledgers and streams, by id. Raises as :func:`read_ledgers`."""
    page: list[LedgerId] = []
    async for ledger_id in store.list_ledgers():
        page.append(ledger_id)
        if len(page) >= _PAGE:
            for metadata in await _read_page(store, page, on_unreadable):
                yield metadata
            page = []
    for metadata in await _read_page(store, page, on_unreadable):
        yield metadata


async def _read_page(
    store: MetadataStore, page: list[LedgerId], on_unreadable: OnUnreadable | None
) -> list[EitherMetadata]:
    found = await read_ledgers(store, page, on_unreadable)
    return [metadata for _, metadata in sorted(found.items()) if metadata is not None]


async def read_ledgers(
    store: MetadataStore, ledger_ids: Iterable[LedgerId], on_unreadable: OnUnreadable | None = None
) -> dict[LedgerId, EitherMetadata | None]:
    """The metadata of ledgers and streams; None for one that has been deleted. Raises :class:`MetadataError` for one
    that cannot be understood, unless there is ``on_unreadable``; :class:`MetadataUnavailableError`."""
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
                if on_unreadable is None:
                    raise
                on_unreadable(ledger_id, error)

    readers = [asyncio.ensure_future(read_some()) for _ in range(READS_AT_ONCE)]
    try:
        await asyncio.gather(*readers)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return found
