"""One suite for all stores of objects: simulated, a folder, and servers that speak the protocol of S3 (rule J3).

moto runs with every test run; SeaweedFS runs with `make soak`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from octavo.bookie.archive.errors import (
    ObjectDamagedError,
    ObjectMissingError,
    StoreRefusedError,
    WrongEntryError,
)
from octavo.bookie.archive.file_store import FileStore
from octavo.bookie.archive.store import OWNER_KEY, OwnedStore, StoreDriver, single_part
from simulation.engine.object_store import SimulatedBucket, SimulatedStoreDriver
from support.archive.store_servers import BUCKET, StoreServer, moto_server, seaweed_server
from support.waiting import loop_turns

KEY = "0000000000000009/0000000000000000-0000000000000005-000102030405060708090a0b0c0d0e0f"
OTHER_KEY = "0000000000000009/0000000000000006-0000000000000007-000102030405060708090a0b0c0d0e0f"
THIRD_KEY = "0000000000000010/0000000000000000-0000000000000000-000102030405060708090a0b0c0d0e0f"

type Drivers = Callable[[str], StoreDriver]
"""Gives the driver of a prefix; all of one store."""


def with_bucket(server: StoreServer) -> StoreServer:
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id="octavo",
        aws_secret_access_key="octavo-secret",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)
    client.close()
    return server


@pytest.fixture(scope="module")
def moto(module_folder: Path) -> Iterator[StoreServer]:
    with moto_server(module_folder) as server:
        yield with_bucket(server)


@pytest.fixture(scope="module")
def seaweed(module_folder: Path) -> Iterator[StoreServer]:
    with seaweed_server(module_folder) as server:
        yield with_bucket(server)


@pytest.fixture(params=["simulated", "file", "moto", "seaweed"])
async def drivers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Drivers]:
    opened: list[StoreDriver] = []
    bucket = SimulatedBucket(random.Random(1))
    of_this_test = uuid4().hex

    def driver(prefix: str) -> StoreDriver:
        if request.param == "simulated":
            opened.append(SimulatedStoreDriver(bucket, prefix))
        elif request.param == "file":
            opened.append(FileStore(tmp_path, prefix))
        else:
            server: StoreServer = request.getfixturevalue(request.param)
            opened.append(server.store(f"{of_this_test}/{prefix}"))
        return opened[-1]

    yield driver
    for one in opened:
        await one.close()


@pytest.fixture
async def store(drivers: Drivers) -> OwnedStore:
    owned = OwnedStore(drivers("cluster"), b"owner 1")
    await owned.claim()
    return owned


async def parts_of(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def listed(store: OwnedStore, prefix: str = "") -> dict[str, int]:
    return {facts.key: facts.size async for facts in store.list(prefix)}


async def test_an_object_comes_back_byte_for_byte(store: OwnedStore) -> None:
    parts = [random.Random(number).randbytes(size) for number, size in enumerate((1, 5 * 1024 * 1024, 700_000, 3))]
    data = b"".join(parts)
    await store.put(KEY, parts_of(*parts))
    facts = await store.head(KEY)
    assert (facts.key, facts.size) == (KEY, len(data))
    for start, stop in ((0, 1), (0, len(data)), (5 * 1024 * 1024 - 5, 5 * 1024 * 1024 + 5), (len(data) - 1, len(data))):
        assert await store.get(KEY, start, stop) == data[start:stop]


async def test_times_are_those_of_the_store_and_go_forward(store: OwnedStore) -> None:
    await store.put(KEY, single_part(b"one"))
    await store.put(OTHER_KEY, single_part(b"two"))
    first, second = await store.head(KEY), await store.head(OTHER_KEY)
    assert first.modified_at_ms <= second.modified_at_ms


async def test_a_range_beyond_the_end_is_damage(store: OwnedStore) -> None:
    await store.put(KEY, single_part(b"0123456789"))
    for start, stop in ((0, 11), (9, 12), (10, 11), (50, 60)):
        with pytest.raises(ObjectDamagedError):
            await store.get(KEY, start, stop)


async def test_a_missing_object_is_missing_and_deleting_it_is_no_error(store: OwnedStore) -> None:
    for read in (store.head(KEY), store.get(KEY, 0, 1)):
        with pytest.raises(ObjectMissingError):
            await read
    await store.delete(KEY)
    await store.put(KEY, single_part(b"x"))
    await store.delete(KEY)
    with pytest.raises(ObjectMissingError):
        await store.head(KEY)


async def test_objects_are_listed_below_their_ledger_without_the_owner(store: OwnedStore) -> None:
    assert await listed(store) == {}
    for key in (KEY, OTHER_KEY, THIRD_KEY):
        await store.put(key, single_part(key[:18].encode()))
    assert await listed(store) == {KEY: 18, OTHER_KEY: 18, THIRD_KEY: 18}
    assert await listed(store, "0000000000000009") == {KEY: 18, OTHER_KEY: 18}
    assert await listed(store, "000000000000001") == {}
    assert await listed(store, "0000000000000011") == {}


async def test_clusters_do_not_see_each_other(drivers: Drivers, store: OwnedStore) -> None:
    other = OwnedStore(drivers("cluster-2"), b"owner 1")
    await other.claim()
    await store.put(KEY, single_part(b"x"))
    assert await listed(other) == {}
    with pytest.raises(ObjectMissingError):
        await other.head(KEY)


async def test_a_put_whose_parts_fail_leaves_no_object(store: OwnedStore) -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield bytes(6 * 1024 * 1024)
        yield bytes(6 * 1024 * 1024)
        raise WrongEntryError("a damaged entry")

    with pytest.raises(WrongEntryError, match="a damaged entry"):
        await store.put(KEY, failing())
    with pytest.raises(ObjectMissingError):
        await store.head(KEY)
    assert await listed(store) == {}


async def test_a_put_that_is_cancelled_leaves_no_object(store: OwnedStore) -> None:
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield bytes(6 * 1024 * 1024)
        waiting.set()
        await asyncio.Event().wait()

    putting = asyncio.ensure_future(store.put(KEY, endless()))
    await asyncio.wait({putting, asyncio.ensure_future(waiting.wait())}, return_when=asyncio.FIRST_COMPLETED)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    await loop_turns()
    with pytest.raises(ObjectMissingError):
        await store.head(KEY)
    assert await listed(store) == {}


async def test_several_objects_are_put_and_read_at_once(store: OwnedStore) -> None:
    keys = [f"{number:016x}/x" for number in range(10)]
    await asyncio.gather(*(store.put(key, parts_of(key.encode(), b"-", key.encode())) for key in keys))
    found = await asyncio.gather(*(store.get(key, 0, 37) for key in keys))
    assert found == [f"{key}-{key}".encode()[:37] for key in keys]


# --- the owner (rule J3) --------------------------------------------------------------------------------------------


async def test_a_store_without_an_owner_is_refused_and_no_object_missing(drivers: Drivers) -> None:
    """A bucket that was deleted, or a folder in which nothing is mounted, looks like one without objects."""
    unclaimed = OwnedStore(drivers("cluster"), b"owner 1")
    for ask in (unclaimed.head(KEY), unclaimed.get(KEY, 0, 1), unclaimed.put(KEY, single_part(b"x"))):
        with pytest.raises(StoreRefusedError, match="no document OWNER"):
            await ask
    for change in (unclaimed.delete(KEY), unclaimed.check_owner(), listed(unclaimed)):
        with pytest.raises(StoreRefusedError, match="no document OWNER"):
            await change


async def test_another_owner_reads_and_changes_nothing_until_it_claims(drivers: Drivers, store: OwnedStore) -> None:
    await store.put(KEY, single_part(b"x"))
    restored = OwnedStore(drivers("cluster"), b"owner 2")
    assert await restored.get(KEY, 0, 1) == b"x"
    assert (await restored.head(KEY)).size == 1
    with pytest.raises(ObjectMissingError):
        await restored.head(OTHER_KEY)
    for change in (restored.claim(), restored.put(OTHER_KEY, single_part(b"y")), restored.delete(KEY)):
        with pytest.raises(StoreRefusedError, match="another cluster"):
            await change
    with pytest.raises(StoreRefusedError, match="another cluster"):
        await listed(restored)
    assert await listed(store) == {KEY: 1}

    await restored.claim(from_another=True)
    await restored.delete(KEY)
    with pytest.raises(StoreRefusedError, match="another cluster"):
        await store.put(KEY, single_part(b"x"))


async def test_claiming_twice_changes_nothing(store: OwnedStore) -> None:
    before = await store.head(OWNER_KEY)
    await store.claim()
    assert await store.head(OWNER_KEY) == before


async def test_a_document_of_another_program_is_no_owner(drivers: Drivers) -> None:
    driver = drivers("cluster")
    await driver.put(OWNER_KEY, single_part(bytes(5000)))
    with pytest.raises(StoreRefusedError, match="5000 bytes"):
        await OwnedStore(driver, b"owner 1").claim()
