"""Bookies: their registrations, which end with their leases, and their cookies, which stay."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

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
from octavo.metadata.store.driver import Kind, Unchanged
from octavo.metadata.store.handle import Handle
from octavo.metadata.store.leases import HeldLease
from octavo.metadata.store.shared_load import SharedLoad
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.store.watch import HubWatch
from octavo.protocol.errors import MetadataConflictError, MetadataUnavailableError
from octavo.protocol.ids import BookieId


class BookieRecords:
    """The registrations and cookies, as one handle sees them. :class:`MetadataStore` says what each method
    guarantees."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._registered = SharedLoad(self._load_registered)

    async def close(self) -> None:
        """Fail those who wait for the list of bookies."""
        await self._registered.close()

    async def register(self, registration: BookieRegistration, cookie: Version | None) -> HeldLease:
        self._handle.records()
        bookie_id = registration.bookie_id
        unchanged = None if cookie is None else Unchanged(Kind.COOKIE, bookie_id, cookie)
        lease = await self._handle.keeper.acquire(
            Kind.BOOKIE, bookie_id, encode_registration(registration), take_over=True, unchanged=unchanged
        )
        if lease is None and cookie is not None:
            found = await self._handle.records().read(Kind.COOKIE, bookie_id)
            if found is None or found.version != cookie:
                raise MetadataConflictError(f"bookie {bookie_id}: its cookie has been changed or deleted meanwhile")
        if lease is None:  # a take-over is refused only when the session ended between two calls
            raise MetadataUnavailableError(f"bookie {bookie_id}: its registration did not last; register again")
        return lease

    async def list_registered(self) -> Mapping[BookieId, BookieRegistration]:
        self._handle.records()
        return await self._registered.load()

    def watch_registered(self) -> HubWatch[Mapping[BookieId, BookieRegistration]]:
        self._handle.records()

        async def load(
            _previous: Mapping[BookieId, BookieRegistration] | None,
        ) -> Mapping[BookieId, BookieRegistration]:
            return await self._load_registered()

        return self._handle.hub.watch((Kind.BOOKIE, None), load)

    async def _load_registered(self) -> Mapping[BookieId, BookieRegistration]:
        bookies: dict[BookieId, BookieRegistration] = {}
        for record in await self._handle.records().read_all(Kind.BOOKIE):
            bookie_id = BookieId(record.key)
            bookies[bookie_id] = decode_registration(bookie_id, record.value)
        return MappingProxyType(bookies)

    async def create_cookie(self, cookie: Cookie) -> Version:
        version = await self._handle.records().create(Kind.COOKIE, cookie.bookie_id, encode_cookie(cookie))
        if version is None:
            raise MetadataConflictError(f"bookie {cookie.bookie_id} already has a cookie")
        return version

    async def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        record = await self._handle.records().read(Kind.COOKIE, bookie_id)
        return None if record is None else Versioned(decode_cookie(bookie_id, record.value), record.version)

    async def compare_and_set_cookie(self, cookie: Cookie, expected: Version) -> Version:
        bookie_id = cookie.bookie_id
        version = await self._handle.records().compare_and_set(Kind.COOKIE, bookie_id, encode_cookie(cookie), expected)
        if version is None:
            raise _cookie_conflict(bookie_id)
        return version

    async def delete_cookie(self, bookie_id: BookieId, expected: Version) -> None:
        if not await self._handle.records().delete(Kind.COOKIE, bookie_id, expected):
            raise _cookie_conflict(bookie_id)

    async def list_cookies(self) -> list[Versioned[Cookie]]:
        return [
            Versioned(decode_cookie(BookieId(record.key), record.value), record.version)
            for record in await self._handle.records().read_all(Kind.COOKIE)
        ]


def known_bookies(
    cookies: Iterable[Versioned[Cookie]], registered: Mapping[BookieId, BookieRegistration]
) -> list[KnownBookie]:
    """The bookies with a cookie or a registration, in order of ids. Read the cookies first: a bookie that registers in
    between is then found registered, not missing."""
    addresses = {cookie.value.bookie_id: cookie.value.address for cookie in cookies}
    known = []
    for bookie_id in sorted({*addresses, *registered}):
        registration = registered.get(bookie_id)
        known.append(
            KnownBookie(
                bookie_id=bookie_id,
                address=addresses[bookie_id] if registration is None else registration.address,
                state=BookieState.UNAVAILABLE if registration is None else registration.state,
                registration=registration,
            )
        )
    return known


def _cookie_conflict(bookie_id: BookieId) -> MetadataConflictError:
    return MetadataConflictError(f"bookie {bookie_id}: its cookie has been changed or deleted by another process")
