"""The face of a store of objects, and the part of it that belongs to one cluster.

A driver (:class:`StoreDriver`) moves bytes and translates errors. It cannot tell a missing object from a missing
bucket, or from a folder in which nothing is mounted: both are answered with "not found". :class:`OwnedStore` can. The
document ``OWNER`` is there before any object is, and where it is missing, too, the store is refused, not the object
missing (rule J3). It names the owner: a cluster that is restored from a dump gets another name, and may read, but
neither put, list nor delete until it claims the store.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple, Protocol

from octavo.bookie.archive.errors import Damage, ObjectDamagedError, ObjectMissingError, StoreRefusedError

OWNER_KEY = "OWNER"
OWNER_BYTES_MAX = 1024


class ObjectFacts(NamedTuple):
    """An object as the store describes it."""

    key: str
    size: int
    modified_at_ms: int
    """By the store's clock, in milliseconds since 1970."""


class StoreDriver(Protocol):
    """One kind of store. Every method raises only the errors of ``errors.py``, besides those of the caller's parts.

    What a driver guarantees, ``tests/bookie/archive/test_stores.py`` checks for each.
    """

    @property
    def url(self) -> str:
        """The store and the cluster's prefix, for messages. Without credentials."""

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> None:
        """Store the parts as one object, durably: afterwards it is there whole. Where this raises or is cancelled,
        also because ``parts`` raises, no object is there, or the whole one (StoreAwayError)."""

    async def get(self, key: str, start: int, stop: int) -> bytes:
        """The bytes of a range; fewer than ``stop - start`` where the object is shorter. A store that ignores ranges is
        refused."""

    async def head(self, key: str) -> ObjectFacts:
        """Facts about one object."""

    async def delete(self, key: str) -> None:
        """The object is gone afterwards; one that is missing is no error."""

    def list(self, prefix: str) -> AsyncIterator[ObjectFacts]:
        """The objects below a folder, or all with "", in no order. May be out of date."""

    async def close(self) -> None: ...


class OwnedStore:
    """The objects of one cluster in one store."""

    def __init__(self, driver: StoreDriver, owner: bytes) -> None:
        assert 0 < len(owner) <= OWNER_BYTES_MAX
        self._driver = driver
        self._owner = owner

    @property
    def url(self) -> str:
        return self._driver.url

    async def claim(self, *, from_another: bool = False) -> None:
        """Become the owner, durably. ``from_another``: also of a store that another owner has claimed.

        Raises:
            StoreRefusedError: the store cannot be written, or has another owner.
            StoreAwayError: the store does not answer; the claim may have been made.
        """
        try:
            found = await self._read_owner()
        except ObjectMissingError:
            await self._write_owner()
            found = await self._read_owner()  # a store that cannot be read is not claimed
        if found != self._owner:
            if not from_another:
                raise self._another_owner()
            await self._write_owner()

    async def check_owner(self) -> None:
        """Raise StoreRefusedError unless this owner's document is in the store, StoreAwayError without an answer."""
        try:
            found = await self._read_owner()
        except ObjectMissingError as error:
            raise self._unclaimed() from error
        if found != self._owner:
            raise self._another_owner()

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> None:
        """Store an object, whole and durable, or not at all. A key is never put twice: it contains a random token.

        Raises:
            StoreRefusedError: also where the store has another owner, or none.
            StoreAwayError: the object may be there, whole.
        """
        await self.check_owner()
        try:
            await self._driver.put(key, parts)
        except ObjectMissingError as error:
            raise self._unclaimed() from error

    async def get(self, key: str, start: int, stop: int) -> bytes:
        """The bytes of a range of an object, unverified, but all of them.

        Raises:
            ObjectMissingError: the store is the cluster's, and has no such object.
            ObjectDamagedError: another number of bytes came.
            StoreRefusedError: also where the store has no owner.
            StoreAwayError: no answer.
        """
        assert 0 <= start < stop
        try:
            data = await self._driver.get(key, start, stop)
        except ObjectMissingError:
            await self._check_claimed()
            raise
        if len(data) != stop - start:
            raise ObjectDamagedError(
                Damage.LENGTH,
                f"{self.url}: bytes {start} to {stop} of object {key} were asked for, {len(data)} bytes came",
            )
        return data

    async def head(self, key: str) -> ObjectFacts:
        """Facts about one object. Raises as :meth:`get` does."""
        try:
            return await self._driver.head(key)
        except ObjectMissingError:
            await self._check_claimed()
            raise

    async def delete(self, key: str) -> None:
        """The object is gone afterwards, also where it was missing.

        Raises:
            StoreRefusedError: also where the store has another owner, or none.
            StoreAwayError: the object may be gone.
        """
        await self.check_owner()
        await self._driver.delete(key)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectFacts]:
        """The objects below a folder; the owner's document is left out. May be out of date, so it proposes and never
        decides. Raises as :meth:`delete` does."""
        await self.check_owner()
        async for facts in self._driver.list(prefix):
            if facts.key != OWNER_KEY:
                yield facts

    async def close(self) -> None:
        await self._driver.close()

    async def _read_owner(self) -> bytes:
        size = (await self._driver.head(OWNER_KEY)).size
        if not 0 < size <= OWNER_BYTES_MAX:
            raise StoreRefusedError(f"{self.url}: the document {OWNER_KEY} has {size} bytes: it is no owner's")
        return await self._driver.get(OWNER_KEY, 0, size)

    async def _check_claimed(self) -> None:
        try:
            await self._driver.head(OWNER_KEY)
        except ObjectMissingError as error:
            raise self._unclaimed() from error

    async def _write_owner(self) -> None:
        try:
            await self._driver.put(OWNER_KEY, single_part(self._owner))
        except ObjectMissingError as error:
            raise StoreRefusedError(f"{self.url}: there is no such bucket or folder") from error

    def _unclaimed(self) -> StoreRefusedError:
        return StoreRefusedError(
            f"{self.url}: there is no document {OWNER_KEY}: the bucket or folder is missing, or is not this cluster's"
        )

    def _another_owner(self) -> StoreRefusedError:
        return StoreRefusedError(f"{self.url}: another cluster, or an older state of this one, owns the store")


async def single_part(data: bytes) -> AsyncIterator[bytes]:
    """The parts of a small object."""
    yield data
