"""Ledgers and streams: their metadata, under ids that are given once."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from octavo.metadata.store.driver import Kind, Record, ledger_key
from octavo.metadata.store.handle import Handle
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.store.watch import HubWatch
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.stream.glance import StreamGlance, glance_at_stream
from octavo.metadata.stream.known_streams import KnownStreams
from octavo.protocol.errors import (
    InvalidArgumentError,
    LedgerExistsError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
)
from octavo.protocol.ids import ID_MAX, LedgerId

CONFIRM_PAGE_RECORDS: Final = 200
"""Absences confirmed at a time: with ZooKeeper, as many requests are outstanding at once."""


class LedgerRecords:
    """The ledgers and streams, as one handle sees them. :class:`MetadataStore` says what each method guarantees."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._streams = KnownStreams()

    async def confirm_absent(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        for ledger_id in ledger_ids:
            if not 0 <= ledger_id <= ID_MAX:
                raise InvalidArgumentError(f"a ledger id must be between 0 and {ID_MAX}, not {ledger_id}")
        absent: list[LedgerId] = []
        for start in range(0, len(ledger_ids), CONFIRM_PAGE_RECORDS):
            keys = [ledger_key(ledger_id) for ledger_id in ledger_ids[start : start + CONFIRM_PAGE_RECORDS]]
            absent += [LedgerId(int(key)) for key in await self._handle.records().confirm_absent(Kind.LEDGER, keys)]
        return absent

    async def create(self, metadata: EitherMetadata) -> Version:
        ledger_id = metadata.ledger_id
        if not await self._handle.records().is_allocated(ledger_id):
            raise InvalidArgumentError(f"ledger id {ledger_id} was never allocated in this cluster")
        encoded = self._streams.encoded(metadata)
        version = await self._handle.records().create(Kind.LEDGER, ledger_key(ledger_id), encoded)
        if version is None:
            raise LedgerExistsError(f"ledger {ledger_id} already exists")
        return version

    async def read(self, ledger_id: LedgerId) -> Versioned[EitherMetadata]:
        found = await self._load(ledger_id, None)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return found

    async def glance_streams(self, ledger_ids: Sequence[LedgerId]) -> list[StreamGlance | OctavoError]:
        keys = {ledger_id: ledger_key(ledger_id) for ledger_id in ledger_ids if 0 <= ledger_id <= ID_MAX}
        records = await self._handle.records().read_many(Kind.LEDGER, [*keys.values()])
        found = dict(zip(keys, records, strict=True))
        return [_glance(ledger_id, found.get(ledger_id)) for ledger_id in ledger_ids]

    async def read_as[T](self, ledger_id: LedgerId, as_kind: Callable[[EitherMetadata], T]) -> Versioned[T]:
        """As :meth:`read`, with what ``as_kind`` makes of the metadata."""
        found = await self.read(ledger_id)
        return Versioned(as_kind(found.value), found.version)

    async def compare_and_set(self, metadata: EitherMetadata, expected: Version) -> Version:
        key = ledger_key(metadata.ledger_id)
        encoded = self._streams.encoded(metadata)
        version = await self._handle.records().compare_and_set(Kind.LEDGER, key, encoded, expected)
        if version is None:
            raise await self._conflict(metadata.ledger_id)
        return version

    async def compare_and_set_many(self, changes: Sequence[tuple[EitherMetadata, Version]]) -> list[Version | None]:
        encoded = [
            (ledger_key(metadata.ledger_id), self._streams.encoded(metadata), expected)
            for metadata, expected in changes
        ]
        try:
            return await self._handle.records().compare_and_set_many(Kind.LEDGER, encoded)
        except MetadataUnavailableError as error:
            # It may tell of one change only; others may have been made before.
            raise MetadataUnavailableError(error.message, may_have_happened=True) from error

    async def delete(self, ledger_id: LedgerId, expected: Version | None) -> None:
        if not await self._handle.records().delete(Kind.LEDGER, ledger_key(ledger_id), expected):
            raise await self._conflict(ledger_id)

    async def ids(self, after: LedgerId | None) -> AsyncIterator[LedgerId]:
        async for key in self._handle.keys(Kind.LEDGER, "", "" if after is None else ledger_key(after)):
            yield LedgerId(int(key))

    def watch_as[T](self, ledger_id: LedgerId, as_kind: Callable[[EitherMetadata], T]) -> HubWatch[Versioned[T] | None]:
        """Follow what ``as_kind`` makes of the metadata."""
        self._handle.records()

        async def load(previous: Versioned[EitherMetadata] | None) -> Versioned[EitherMetadata] | None:
            return await self._load(ledger_id, previous)

        def accept(found: Versioned[EitherMetadata] | None) -> Versioned[T] | None:
            return None if found is None else Versioned(as_kind(found.value), found.version)

        return self._handle.hub.watch_as((Kind.LEDGER, ledger_key(ledger_id)), load, accept)

    async def _load(
        self, ledger_id: LedgerId, previous: Versioned[EitherMetadata] | None
    ) -> Versioned[EitherMetadata] | None:
        records = self._handle.records
        record = await records().read(Kind.LEDGER, ledger_key(ledger_id)) if 0 <= ledger_id <= ID_MAX else None
        if record is None:
            return None
        if previous is not None and previous.version == record.version:
            return previous
        return Versioned(self._streams.decoded(ledger_id, record.value), record.version)

    async def _conflict(self, ledger_id: LedgerId) -> NoSuchLedgerError | MetadataConflictError:
        if await self._handle.records().read(Kind.LEDGER, ledger_key(ledger_id)) is None:
            return NoSuchLedgerError(f"ledger {ledger_id} does not exist, or has been deleted")
        return MetadataConflictError(f"ledger {ledger_id}: another client has changed its metadata")


def _glance(ledger_id: LedgerId, record: Record | None) -> StreamGlance | OctavoError:
    if record is None:
        return NoSuchLedgerError(f"ledger {ledger_id} does not exist")
    try:
        return glance_at_stream(ledger_id, record.value)
    except OctavoError as error:
        return error
