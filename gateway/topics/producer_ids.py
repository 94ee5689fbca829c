"""Ids of producers: a counter in the metadata store, from which gateways take blocks (rule K6)."""

import asyncio
from typing import Final

from octavo.metadata import MetadataStore
from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.protocol.errors import MetadataConflictError

DOCUMENT: Final = "kafka/producer-ids"
_FORMAT: Final = 1

_IDS_SKIPPED_A_TERM: Final = 1_000_000

BLOCK: Final = 1000
"""Ids taken at a time: one write of the metadata for a thousand producers. What is left of a block is never used."""


def encode_counter(next_id: int) -> bytes:
    """The stored form."""
    return encode_object({"next_id": next_id}, format_number=_FORMAT)


def decode_counter(value: bytes) -> int:
    """The lowest id that no gateway has taken.

    Raises:
        MetadataError: The value is damaged.
    """
    reader = FieldReader(decode_object(value, what=f"document {DOCUMENT}", format_max=_FORMAT), f"document {DOCUMENT}")
    next_id = reader.get("next_id", int)
    if next_id < 0:
        raise reader.damaged("the counter is below 0")
    return next_id


def raised_counter(value: bytes | None, terms_skipped: int) -> bytes:
    """The stored form of the counter of a restored cluster, above every id that was given out since the dump.

    ``value``: that of the dump, if it has one. ``terms_skipped``: by the dump's age, as for terms; no cluster gives out
    as many ids in a second.

    Raises:
        MetadataError: The value is damaged.
    """
    return encode_counter((0 if value is None else decode_counter(value)) + terms_skipped * _IDS_SKIPPED_A_TERM)


class ProducerIds:
    """See the module."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = self._stop = 0
        self._taking = asyncio.Lock()

    async def take(self) -> int:
        """An id that no other call returns, in any gateway.

        Raises:
            OctavoError: The metadata store does not answer.
        """
        async with self._taking:
            if self._next == self._stop:
                self._next = await self._take_block()
                self._stop = self._next + BLOCK
            self._next += 1
            return self._next - 1

    async def highest_stop(self) -> int:
        """An id above every one that was given out so far."""
        found = await self._store.read_document(DOCUMENT)
        return 0 if found is None else decode_counter(found.value)

    async def _take_block(self) -> int:
        while True:
            found = await self._store.read_document(DOCUMENT)
            first = 0 if found is None else decode_counter(found.value)
            try:
                await self._store.put_document(
                    DOCUMENT, encode_counter(first + BLOCK), None if found is None else found.version
                )
            except MetadataConflictError:
                continue
            return first
