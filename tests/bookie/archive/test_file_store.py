"""Objects in a folder: whole under their name or not there, and a folder that is missing is refused."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from octavo.bookie.archive.errors import ObjectMissingError, StoreAwayError, StoreRefusedError
from octavo.bookie.archive.file_store import UNFINISHED, FileStore
from octavo.bookie.archive.store import OwnedStore, single_part
from support.waiting import loop_turns


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[FileStore]:
    opened = FileStore(tmp_path, "cluster")
    yield opened
    await opened.close()


async def test_an_object_is_synced_before_it_has_its_name_and_its_folder_afterwards(
    driver: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "cluster" / "ledger" / "object"
    synced: list[tuple[str, bool]] = []
    sync = os.fsync

    def watched(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink().name.partition("-")[0], target.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    await driver.put("ledger/object", single_part(b"data"))
    assert synced == [
        (tmp_path.name.partition("-")[0], False),
        ("cluster", False),
        (UNFINISHED.removesuffix("-"), False),
        ("ledger", True),
    ]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StoreAwayError), (errno.EIO, StoreAwayError), (errno.EROFS, StoreRefusedError)]
)
async def test_a_sync_that_fails_leaves_no_object_and_no_file(
    driver: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    await driver.put("ledger/other", single_part(b"x"))

    def failing(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(kind, match=os.strerror(number)):
        await driver.put("ledger/object", single_part(b"data"))
    assert [path.name for path in (tmp_path / "cluster" / "ledger").iterdir()] == ["other"]


def open_below(folder: Path) -> list[str]:
    """The open files of this process below a folder."""
    targets = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [target for target in targets if target.startswith(str(folder))]


@pytest.mark.parametrize("turns", range(8))
async def test_a_put_that_is_cancelled_at_any_step_leaves_no_file_and_no_descriptor(
    driver: FileStore, tmp_path: Path, turns: int
) -> None:
    await driver.put("ledger/other", single_part(b"x"))
    putting = asyncio.ensure_future(driver.put("ledger/object", single_part(b"data")))
    await loop_turns(turns)
    putting.cancel()
    await asyncio.wait({putting})
    names = {facts.key async for facts in driver.list("")}
    assert names - {"ledger/object"} == {"ledger/other"}
    assert putting.cancelled() or "ledger/object" in names
    assert len(os.listdir(tmp_path / "cluster" / "ledger")) == len(names)
    assert open_below(tmp_path) == []


async def test_a_file_that_a_killed_process_left_is_not_listed(driver: FileStore, tmp_path: Path) -> None:
    await driver.put("ledger/object", single_part(b"data"))
    (tmp_path / "cluster" / "ledger" / f"{UNFINISHED}1").write_bytes(b"da")
    assert [facts.key async for facts in driver.list("")] == ["ledger/object"]


async def test_a_folder_that_is_missing_is_refused_and_not_made(tmp_path: Path) -> None:
    driver = FileStore(tmp_path / "mount", "cluster")
    store = OwnedStore(driver, b"owner 1")
    for ask in (store.claim(), store.put("key", single_part(b"x")), store.head("key"), store.get("key", 0, 1)):
        with pytest.raises(StoreRefusedError):
            await ask
    assert not (tmp_path / "mount").exists()
    await driver.close()


async def test_a_folder_in_which_nothing_is_mounted_is_refused(tmp_path: Path) -> None:
    driver = FileStore(tmp_path, "cluster")
    await OwnedStore(driver, b"owner 1").claim()
    (tmp_path / "cluster").rename(tmp_path.parent / "elsewhere")
    for ask in (driver.head("OWNER"), driver.get("OWNER", 0, 1)):
        with pytest.raises(ObjectMissingError):
            await ask
    with pytest.raises(StoreRefusedError, match="no document OWNER"):
        await OwnedStore(driver, b"owner 1").put("key", single_part(b"x"))
    assert not (tmp_path / "cluster").exists()
    await driver.close()


async def test_a_folder_in_the_place_of_an_object_is_refused(driver: FileStore, tmp_path: Path) -> None:
    (tmp_path / "cluster" / "object").mkdir(parents=True)
    with pytest.raises(StoreRefusedError):
        await driver.get("object", 0, 1)


async def test_messages_name_the_object_by_its_url(driver: FileStore, tmp_path: Path) -> None:
    with pytest.raises(ObjectMissingError, match=f"{tmp_path.as_uri()}/cluster/ledger/object"):
        await driver.head("ledger/object")
