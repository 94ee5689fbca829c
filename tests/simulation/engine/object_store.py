"""A simulated store of objects, with what real ones do: slow answers, storms of refusals, listings out of date,
answers that get lost after the change was made, answers that are cut off, and objects that are lost, damaged or older
than they were.

The objects belong to a :class:`SimulatedBucket`, which outlives every process; :class:`SimulatedStoreDriver` is what
one process uses. Time and waits are those of the running loop.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from octavo.bookie.archive.errors import ObjectMissingError, StoreAwayError, StoreRefusedError
from octavo.bookie.archive.store import ObjectFacts


@dataclass
class StoreFaults:
    """What goes wrong now. Chances are of one request."""

    delay_seconds_max: float = 0.0
    busy_chance: float = 0.0
    """503: nothing was done."""
    lost_answer_chance: float = 0.0
    """The request was carried out, and its answer does not come."""
    truncated_chance: float = 0.0
    """The answer to a range ends early."""
    listing_lag_seconds: float = 0.0
    """Listings show the objects as they were this long ago."""
    away: bool = False
    revoked: bool = False
    """The credentials are refused."""
    no_bucket: bool = False


@dataclass
class SimulatedBucket:
    """The objects of one bucket."""

    rng: random.Random
    faults: StoreFaults = field(default_factory=StoreFaults)
    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """Key -> bytes, and the time of the store in milliseconds."""
    _changes: list[tuple[float, str, bytes | None]] = field(default_factory=list)

    def put(self, key: str, data: bytes) -> None:
        self.objects[key] = (data, int(self._now() * 1000))
        self._changes.append((self._now(), key, data))

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self._changes.append((self._now(), key, None))

    def damage(self, key: str, at: int) -> None:
        """Flip a bit of an object."""
        data, modified = self.objects[key]
        self.objects[key] = (data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], modified)

    def listed(self) -> dict[str, bytes]:
        """The objects as a listing shows them."""
        shown: dict[str, bytes] = {}
        for at, key, data in self._changes:
            if at <= self._now() - self.faults.listing_lag_seconds:
                if data is None:
                    shown.pop(key, None)
                else:
                    shown[key] = data
        return shown

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


class SimulatedStoreDriver:
    """A driver for the simulator. ``prefix``: of the cluster."""

    def __init__(self, bucket: SimulatedBucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/"

    @property
    def url(self) -> str:
        return f"simulated://bucket/{self._prefix}"

    async def put(self, key: str, parts: AsyncIterator[bytes]) -> None:
        received = []
        async for part in parts:
            await self._request()
            received.append(part)
        await self._request(missing_bucket=True)
        self._bucket.put(self._prefix + key, b"".join(received))
        self._answer()

    async def get(self, key: str, start: int, stop: int) -> bytes:
        await self._request()
        data = self._object(key)[0][start:stop]
        self._answer()
        if data and self._chance(self._bucket.faults.truncated_chance):
            return data[: self._bucket.rng.randrange(len(data))]
        return data

    async def head(self, key: str) -> ObjectFacts:
        await self._request()
        data, modified = self._object(key)
        self._answer()
        return ObjectFacts(key, len(data), modified)

    async def delete(self, key: str) -> None:
        await self._request(missing_bucket=True)
        self._bucket.remove(self._prefix + key)
        self._answer()

    async def list(self, prefix: str) -> AsyncIterator[ObjectFacts]:
        await self._request(missing_bucket=True)
        below = self._prefix + (f"{prefix}/" if prefix else "")
        for key, data in self._bucket.listed().items():
            if key.startswith(below):
                _, modified = self._bucket.objects.get(key, (data, 0))
                yield ObjectFacts(key.removeprefix(self._prefix), len(data), modified)

    async def close(self) -> None: ...

    async def _request(self, *, missing_bucket: bool = False) -> None:
        faults = self._bucket.faults
        await asyncio.sleep(self._bucket.rng.uniform(0, faults.delay_seconds_max))
        if faults.away or self._chance(faults.busy_chance):
            raise StoreAwayError(f"{self.url}: busy (503)")
        if faults.revoked:
            raise StoreRefusedError(f"{self.url}: the credentials are refused (403)")
        if faults.no_bucket and missing_bucket:
            raise ObjectMissingError(f"{self.url}: there is no such bucket (404)")

    def _answer(self) -> None:
        if self._chance(self._bucket.faults.lost_answer_chance):
            raise StoreAwayError(f"{self.url}: no answer")

    def _object(self, key: str) -> tuple[bytes, int]:
        found = self._bucket.objects.get(self._prefix + key)
        if found is None or self._bucket.faults.no_bucket:
            raise ObjectMissingError(f"{self.url}{key}: not found (404)")
        return found

    def _chance(self, chance: float) -> bool:
        return chance > 0 and self._bucket.rng.random() < chance
