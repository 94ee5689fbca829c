"""Named documents: small values of anyone's, under names that the store lists in order."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from octavo.metadata.store.driver import Kind
from octavo.metadata.store.handle import Handle
from octavo.metadata.store.names import check_name
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.store.watch import HubWatch
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError

DOCUMENT_BYTES_MAX: Final = 512 * 1024
"""Largest document: by default ZooKeeper stores at most 1 MiB in a node."""

_PREFIX: Final = re.compile(r"[A-Za-z0-9._/-]{0,512}")


class DocumentRecords:
    """The documents of one handle. :class:`MetadataStore` says what each method guarantees."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    async def create(self, name: str, value: bytes) -> Version:
        _check_document(name, value)
        version = await self._handle.records().create(Kind.DOCUMENT, name, value)
        if version is None:
            raise MetadataConflictError(f"document {name} already exists")
        return version

    async def read(self, name: str) -> Versioned[bytes] | None:
        check_name(name)
        record = await self._handle.records().read(Kind.DOCUMENT, name)
        return None if record is None else Versioned(record.value, record.version)

    async def read_many(self, names: Sequence[str]) -> list[Versioned[bytes] | None]:
        for name in names:
            check_name(name)
        records = await self._handle.records().read_many(Kind.DOCUMENT, names)
        return [None if record is None else Versioned(record.value, record.version) for record in records]

    async def compare_and_set(self, name: str, value: bytes, expected: Version) -> Version:
        _check_document(name, value)
        version = await self._handle.records().compare_and_set(Kind.DOCUMENT, name, value, expected)
        if version is None:
            raise MetadataConflictError(f"document {name} has been changed or deleted by another client")
        return version

    async def delete(self, name: str, expected: Version | None) -> None:
        check_name(name)
        if not await self._handle.records().delete(Kind.DOCUMENT, name, expected) and expected is not None:
            raise MetadataConflictError(f"document {name} has been changed or deleted by another client")

    async def names(self, prefix: str) -> AsyncIterator[str]:
        if _PREFIX.fullmatch(prefix) is None:
            raise InvalidArgumentError(f"{prefix!r} cannot be the start of a document's name")
        async for key in self._handle.keys(Kind.DOCUMENT, prefix):
            yield key

    def watch(
        self, name: str, read: Callable[[str], Awaitable[Versioned[bytes] | None]]
    ) -> HubWatch[Versioned[bytes] | None]:
        """Follow a document, which ``read`` reads."""
        check_name(name)
        self._handle.records()

        async def load(_previous: Versioned[bytes] | None) -> Versioned[bytes] | None:
            return await read(name)

        return self._handle.hub.watch((Kind.DOCUMENT, name), load)


def _check_document(name: str, value: bytes) -> None:
    check_name(name)
    if len(value) > DOCUMENT_BYTES_MAX:
        raise InvalidArgumentError(f"document {name}: {len(value)} bytes exceed the limit of {DOCUMENT_BYTES_MAX}")
