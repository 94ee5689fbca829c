"""The :class:`MetadataStore` that all drivers share: encoding, errors, watches and leases on top of a driver's
records."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from octavo.metadata.cluster.registration import (
    BookieRegistration,
    BookieState,
    Cookie,
    KnownBookie,
    decode_cookie,
    decode_registration,
    encode_cookie,
    encode_registration,
)
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.store.driver import LIST_PAGE_RECORDS, Kind, RecordStore, Unchanged, ledger_key
from octavo.metadata.store.leases import HeldLease, LeaseKeeper
from octavo.metadata.store.lock_line import LockLine
from octavo.metadata.store.request_times import measured
from octavo.metadata.store.shared_load import SharedLoad
from octavo.metadata.store.store import (
    DOCUMENT_BYTES_MAX,
    LockHolder,
    MetadataStore,
    Version,
    Versioned,
)
from octavo.metadata.store.watch import HubWatch, WatchHub
from octavo.metadata.stream.any_metadata import EitherMetadata, as_ledger, as_stream
from octavo.metadata.stream.known_streams import KnownStreams
from octavo.metrics.histogram import Histogram
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    LedgerExistsError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from octavo.protocol.ids import ID_MAX, BookieId, LedgerId
from octavo.security import forks

if TYPE_CHECKING:
    from octavo.metadata.stream.model import StreamMetadata

_NAME: Final = re.compile(r"(?!.{513})[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")
_PREFIX: Final = re.compile(r"[A-Za-z0-9._/-]{0,512}")
_HOLDER_CHARACTERS_MAX: Final = 512

CONFIRM_PAGE_RECORDS: Final = 200
"""Absences confirmed at a time: with ZooKeeper, as many requests are outstanding at once."""


class RecordMetadataStore(MetadataStore):
    """See :class:`MetadataStore`. ``clock`` gives seconds for leases; ``rng`` generates the names of sessions."""

    def __init__(
        self, records: RecordStore, *, lease_seconds: float, clock: Callable[[], float], rng: random.Random
    ) -> None:
        check_lease_seconds(lease_seconds)
        self._records = records
        self._closed = False
        self._loop = asyncio.get_running_loop()
        forks.note_loop(self._loop)
        forks.hold(self)
        self.seconds: dict[str, Histogram] = {}
        self.list_page_records = LIST_PAGE_RECORDS
        """Keys that lists of this handle read at a time."""
        self._streams = KnownStreams()
        self._bookies = SharedLoad(self._load_bookies)
        self._hub = WatchHub(records.watching, self._on_topic)
        self._keeper = LeaseKeeper(records, lease_seconds, clock, lambda: f"{rng.getrandbits(128):032x}")
        self._line = LockLine(self._open, self._keeper, self._hub, lambda: f"{rng.getrandbits(128):032x}")
        records.start(self._on_change)
        records.report_ended_sessions(self._keeper.renew_soon)

    def __repr__(self) -> str:
        return f"<MetadataStore {self.uri}{' closed' if self._closed else ''}>"

    @property
    def uri(self) -> str:
        return self._records.uri

    @property
    def answers(self) -> bool:
        return self._keeper.answered

    def on_forked(self) -> None:
        """In a forked child (rule H1): the leases are the parent's."""
        self._closed = True
        self._keeper.on_forked()

    async def close(self) -> None:
        forks.check_process(self._loop)
        if self._closed:
            return
        self._closed = True
        forks.let_go(self)
        await self._hub.close()
        await self._bookies.close()
        await self._keeper.close()
        await self._records.close()

    async def renew_leases(self) -> None:
        """Renew now, without waiting for the next interval, and mark the leases that have been lost."""
        self._open()
        await self._keeper.renew()

    async def cluster_id(self) -> str:
        return await self._open().cluster_id()

    async def time_ms(self) -> int:
        return await self._open().time_ms()

    # --- ledgers ---------------------------------------------------------------------------------------------------

    @measured
    async def allocate_ledger_id(self) -> LedgerId:
        return await self._open().allocate_ledger_id()

    async def ledger_ids_stop(self) -> LedgerId:
        return await self._open().ledger_ids_stop()

    @measured
    async def confirm_absent(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        for ledger_id in ledger_ids:
            if not 0 <= ledger_id <= ID_MAX:
                raise InvalidArgumentError(f"a ledger id must be between 0 and {ID_MAX}, not {ledger_id}")
        absent: list[LedgerId] = []
        for start in range(0, len(ledger_ids), CONFIRM_PAGE_RECORDS):
            keys = [ledger_key(ledger_id) for ledger_id in ledger_ids[start : start + CONFIRM_PAGE_RECORDS]]
            absent += [LedgerId(int(key)) for key in await self._open().confirm_absent(Kind.LEDGER, keys)]
        return absent

    @measured
    async def create_ledger(self, metadata: LedgerMetadata) -> Version:
        return await self._create(metadata)

    @measured
    async def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        found = await self._read(ledger_id)
        return Versioned(as_ledger(found.value), found.version)

    @measured
    async def read_either(self, ledger_id: LedgerId) -> Versioned[EitherMetadata]:
        return await self._read(ledger_id)

    @measured
    async def compare_and_set_ledger(self, metadata: LedgerMetadata, expected: Version) -> Version:
        return await self._compare_and_set(metadata, expected)

    @measured
    async def compare_and_set_ledgers(self, changes: Sequence[tuple[EitherMetadata, Version]]) -> list[Version | None]:
        encoded = [
            (ledger_key(metadata.ledger_id), self._streams.encoded(metadata), expected)
            for metadata, expected in changes
        ]
        try:
            return await self._open().compare_and_set_many(Kind.LEDGER, encoded)
        except MetadataUnavailableError as error:
            # It may tell of one change only; others may have been made before.
            raise MetadataUnavailableError(error.message, may_have_happened=True) from error

    @measured
    async def delete_ledger(self, ledger_id: LedgerId, expected: Version | None = None) -> None:
        if not await self._open().delete(Kind.LEDGER, ledger_key(ledger_id), expected):
            raise await self._ledger_conflict(ledger_id)

    async def list_ledgers(self, *, after: LedgerId | None = None) -> AsyncIterator[LedgerId]:
        async for key in self._keys(Kind.LEDGER, "", "" if after is None else ledger_key(after)):
            yield LedgerId(int(key))

    def watch_ledger(self, ledger_id: LedgerId) -> HubWatch[Versioned[LedgerMetadata] | None]:
        return self._watch(ledger_id, as_ledger)

    # --- streams ---------------------------------------------------------------------------------------------------

    @measured
    async def create_stream(self, metadata: "StreamMetadata") -> Version:
        return await self._create(metadata)

    @measured
    async def read_stream(self, ledger_id: LedgerId) -> "Versioned[StreamMetadata]":
        found = await self._read(ledger_id)
        return Versioned(as_stream(found.value), found.version)

    @measured
    async def compare_and_set_stream(self, metadata: "StreamMetadata", expected: Version) -> Version:
        return await self._compare_and_set(metadata, expected)

    def watch_stream(self, ledger_id: LedgerId) -> "HubWatch[Versioned[StreamMetadata] | None]":
        return self._watch(ledger_id, as_stream)

    # --- ledgers and streams ---------------------------------------------------------------------------------------

    async def _create(self, metadata: EitherMetadata) -> Version:
        ledger_id = metadata.ledger_id
        if not await self._open().is_allocated(ledger_id):
            raise InvalidArgumentError(f"ledger id {ledger_id} was never allocated in this cluster")
        version = await self._open().create(Kind.LEDGER, ledger_key(ledger_id), self._streams.encoded(metadata))
        if version is None:
            raise LedgerExistsError(f"ledger {ledger_id} already exists")
        return version

    async def _read(self, ledger_id: LedgerId) -> Versioned[EitherMetadata]:
        found = await self._load_either(ledger_id, None)
        if found is None:
            raise NoSuchLedgerError(f"ledger {ledger_id} does not exist")
        return found

    async def _compare_and_set(self, metadata: EitherMetadata, expected: Version) -> Version:
        key = ledger_key(metadata.ledger_id)
        version = await self._open().compare_and_set(Kind.LEDGER, key, self._streams.encoded(metadata), expected)
        if version is None:
            raise await self._ledger_conflict(metadata.ledger_id)
        return version

    def _watch[T](self, ledger_id: LedgerId, as_kind: Callable[[EitherMetadata], T]) -> HubWatch[Versioned[T] | None]:
        self._open()

        async def load(previous: Versioned[EitherMetadata] | None) -> Versioned[EitherMetadata] | None:
            return await self._load_either(ledger_id, previous)

        def accept(found: Versioned[EitherMetadata] | None) -> Versioned[T] | None:
            return None if found is None else Versioned(as_kind(found.value), found.version)

        return self._hub.watch_as((Kind.LEDGER, ledger_key(ledger_id)), load, accept)

    async def _load_either(
        self, ledger_id: LedgerId, previous: Versioned[EitherMetadata] | None
    ) -> Versioned[EitherMetadata] | None:
        record = await self._open().read(Kind.LEDGER, ledger_key(ledger_id)) if 0 <= ledger_id <= ID_MAX else None
        if record is None:
            return None
        if previous is not None and previous.version == record.version:
            return previous
        return Versioned(self._streams.decoded(ledger_id, record.value), record.version)

    async def _ledger_conflict(self, ledger_id: LedgerId) -> NoSuchLedgerError | MetadataConflictError:
        if await self._open().read(Kind.LEDGER, ledger_key(ledger_id)) is None:
            return NoSuchLedgerError(f"ledger {ledger_id} does not exist, or has been deleted")
        return MetadataConflictError(f"ledger {ledger_id}: another client has changed its metadata")

    # --- bookies ---------------------------------------------------------------------------------------------------

    @measured
    async def register_bookie(self, registration: BookieRegistration, *, cookie: Version | None = None) -> HeldLease:
        self._open()
        bookie_id = registration.bookie_id
        unchanged = None if cookie is None else Unchanged(Kind.COOKIE, bookie_id, cookie)
        lease = await self._keeper.acquire(
            Kind.BOOKIE, bookie_id, encode_registration(registration), take_over=True, unchanged=unchanged
        )
        if lease is None and cookie is not None:
            found = await self._open().read(Kind.COOKIE, bookie_id)
            if found is None or found.version != cookie:
                raise MetadataConflictError(f"bookie {bookie_id}: its cookie has been changed or deleted meanwhile")
        if lease is None:  # a take-over is refused only when the session ended between two calls
            raise MetadataUnavailableError(f"bookie {bookie_id}: its registration did not last; register again")
        return lease

    @measured
    async def list_bookies(self) -> Mapping[BookieId, BookieRegistration]:
        self._open()
        return await self._bookies.load()

    async def _load_bookies(self) -> Mapping[BookieId, BookieRegistration]:
        bookies: dict[BookieId, BookieRegistration] = {}
        for record in await self._open().read_all(Kind.BOOKIE):
            bookie_id = BookieId(record.key)
            bookies[bookie_id] = decode_registration(bookie_id, record.value)
        return MappingProxyType(bookies)

    def watch_bookies(self) -> HubWatch[Mapping[BookieId, BookieRegistration]]:
        self._open()

        async def load(
            _previous: Mapping[BookieId, BookieRegistration] | None,
        ) -> Mapping[BookieId, BookieRegistration]:
            return await self._load_bookies()

        return self._hub.watch((Kind.BOOKIE, None), load)

    @measured
    async def list_known_bookies(self) -> list[KnownBookie]:
        # Read cookies first: a bookie that registers in between is then found registered, not missing.
        addresses = {cookie.value.bookie_id: cookie.value.address for cookie in await self.list_cookies()}
        live = await self.list_bookies()
        known = []
        for bookie_id in sorted({*addresses, *live}):
            registration = live.get(bookie_id)
            known.append(
                KnownBookie(
                    bookie_id=bookie_id,
                    address=addresses[bookie_id] if registration is None else registration.address,
                    state=BookieState.UNAVAILABLE if registration is None else registration.state,
                    registration=registration,
                )
            )
        return known

    async def create_cookie(self, cookie: Cookie) -> Version:
        version = await self._open().create(Kind.COOKIE, cookie.bookie_id, encode_cookie(cookie))
        if version is None:
            raise MetadataConflictError(f"bookie {cookie.bookie_id} already has a cookie")
        return version

    @measured
    async def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        record = await self._open().read(Kind.COOKIE, bookie_id)
        return None if record is None else Versioned(decode_cookie(bookie_id, record.value), record.version)

    async def compare_and_set_cookie(self, cookie: Cookie, expected: Version) -> Version:
        version = await self._open().compare_and_set(Kind.COOKIE, cookie.bookie_id, encode_cookie(cookie), expected)
        if version is None:
            raise MetadataConflictError(
                f"bookie {cookie.bookie_id}: its cookie has been changed or deleted by another process"
            )
        return version

    async def delete_cookie(self, bookie_id: BookieId, expected: Version) -> None:
        if not await self._open().delete(Kind.COOKIE, bookie_id, expected):
            raise MetadataConflictError(
                f"bookie {bookie_id}: its cookie has been changed or deleted by another process"
            )

    async def list_cookies(self) -> list[Versioned[Cookie]]:
        return [
            Versioned(decode_cookie(BookieId(record.key), record.value), record.version)
            for record in await self._open().read_all(Kind.COOKIE)
        ]

    # --- named documents -------------------------------------------------------------------------------------------

    @measured
    async def create_document(self, name: str, value: bytes) -> Version:
        _check_document(name, value)
        version = await self._open().create(Kind.DOCUMENT, name, value)
        if version is None:
            raise MetadataConflictError(f"document {name} already exists")
        return version

    @measured
    async def read_document(self, name: str) -> Versioned[bytes] | None:
        _check_name(name)
        record = await self._open().read(Kind.DOCUMENT, name)
        return None if record is None else Versioned(record.value, record.version)

    @measured
    async def compare_and_set_document(self, name: str, value: bytes, expected: Version) -> Version:
        _check_document(name, value)
        version = await self._open().compare_and_set(Kind.DOCUMENT, name, value, expected)
        if version is None:
            raise MetadataConflictError(f"document {name} has been changed or deleted by another client")
        return version

    @measured
    async def delete_document(self, name: str, expected: Version | None = None) -> None:
        _check_name(name)
        if not await self._open().delete(Kind.DOCUMENT, name, expected) and expected is not None:
            raise MetadataConflictError(f"document {name} has been changed or deleted by another client")

    async def list_documents(self, prefix: str = "") -> AsyncIterator[str]:
        if _PREFIX.fullmatch(prefix) is None:
            raise InvalidArgumentError(f"{prefix!r} cannot be the start of a document's name")
        async for key in self._keys(Kind.DOCUMENT, prefix):
            yield key

    def watch_document(self, name: str) -> HubWatch[Versioned[bytes] | None]:
        _check_name(name)
        self._open()

        async def load(_previous: Versioned[bytes] | None) -> Versioned[bytes] | None:
            return await self.read_document(name)

        return self._hub.watch((Kind.DOCUMENT, name), load)

    # --- locks and election ----------------------------------------------------------------------------------------

    async def try_lock(self, name: str, holder: str) -> HeldLease | None:
        _check_lock(name, holder)
        self._open()
        return None if await self._line.waiting(name) else await self._acquire(name, holder)

    async def lock(self, name: str, holder: str) -> HeldLease:
        _check_lock(name, holder)
        lease = await self.try_lock(name, holder) if await self.read_lock(name) is None else None
        if lease is not None:
            return lease
        place = await self._line.wait_turn(name, holder)
        while lease is None:
            try:
                lease = await self._acquire_in_turn(name, holder, place)
            finally:
                # Not waited for: the next client in the line finds the lock held.
                self._keeper.release_soon(place)
            if lease is None:
                place = await self._line.wait_turn(name, holder, again=True)
        return lease

    async def _acquire_in_turn(self, name: str, holder: str, place: HeldLease) -> HeldLease | None:
        """The lock, once it is free; None if the place in the line was lost meanwhile."""
        while True:
            # Every round needs a new watch: between "free" and our attempt the lock may be taken and freed again, and
            # a watch that has reported "free" need not report it a second time.
            async with self.watch_lock(name) as watch:
                async for present in watch:
                    if present is None:
                        break
            if place.lost:
                return None
            lease = await self._acquire(name, holder)
            if lease is not None:
                return lease

    async def _acquire(self, name: str, holder: str) -> HeldLease | None:
        return await self._keeper.acquire(Kind.LOCK, name, holder.encode(), take_over=False)

    async def read_lock(self, name: str) -> LockHolder | None:
        _check_name(name)
        record = await self._open().read(Kind.LOCK, name)
        return None if record is None else LockHolder(record.value.decode(), record.version)

    def watch_lock(self, name: str) -> HubWatch[LockHolder | None]:
        _check_name(name)
        self._open()

        async def load(_previous: LockHolder | None) -> LockHolder | None:
            return await self.read_lock(name)

        return self._hub.watch((Kind.LOCK, name), load)

    # --- shared ----------------------------------------------------------------------------------------------------

    def _open(self) -> RecordStore:
        if self._closed:
            forks.check_process(self._loop)
            raise ClientClosedError("the metadata store has been closed")
        return self._records

    async def _keys(self, kind: Kind, prefix: str, after: str = "") -> AsyncIterator[str]:
        while True:
            limit = self.list_page_records
            keys = await self._open().list_keys(kind, prefix=prefix, after=after, limit=limit)
            for key in keys:
                yield key
            if len(keys) < limit:
                return
            after = keys[-1]

    def _on_topic(self, topic: Hashable, active: bool) -> None:
        assert isinstance(topic, tuple)
        kind, key = topic
        self._records.watch_record(kind, key, active=active)

    def _on_change(self, kind: Kind | None, key: str | None) -> None:
        if kind is not None and key is not None:
            self._hub.changed_one((kind, key))
            self._hub.changed_one((kind, None))
        else:
            self._hub.changed(lambda watched: kind is None or _kind_of(watched) is kind)


def check_lease_seconds(lease_seconds: float) -> None:
    """Raise :class:`InvalidArgumentError` unless this is a possible length of a lease. Drivers check before they
    open."""
    if lease_seconds <= 0:
        raise InvalidArgumentError(f"a lease must last longer than 0 seconds, not {lease_seconds}")


def _kind_of(key: Hashable) -> Kind:
    assert isinstance(key, tuple)
    kind = key[0]
    assert isinstance(kind, Kind)
    return kind


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name!r} is not a valid name: it must be words of letters, digits and ._- joined by /, "
            "at most 512 characters"
        )


def _check_lock(name: str, holder: str) -> None:
    _check_name(name)
    if len(holder) > _HOLDER_CHARACTERS_MAX:
        raise InvalidArgumentError(f"the name of a lock's holder has at most {_HOLDER_CHARACTERS_MAX} characters")


def _check_document(name: str, value: bytes) -> None:
    _check_name(name)
    if len(value) > DOCUMENT_BYTES_MAX:
        raise InvalidArgumentError(f"document {name}: {len(value)} bytes exceed the limit of {DOCUMENT_BYTES_MAX}")
