"""A SQLite file that is open when the process forks is not for the child: SQLite's locks would not hold (rule H1)."""

import gc
from functools import partial
from pathlib import Path

import pytest
from octavo.metadata.clocks.boot_time import boot_time_seconds
from octavo.metadata.sqlite.database import Database
from octavo.metadata.sqlite.store import open_sqlite_store, read_boot_id
from support.forks import in_child, open_files_below, run_in_child


def opened(path: Path) -> Database:
    return Database(
        path, create=True, busy_timeout_seconds=1.0, clock=boot_time_seconds, boot_id=read_boot_id()
    )  # fmt: skip


def open_and_ask(path: Path) -> str:
    return opened(path).cluster_id()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


def test_child_does_not_open_a_file_that_was_open_under_whatever_name(path: Path, tmp_path: Path) -> None:
    database = opened(path)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    for name in (path, link):
        told = in_child(partial(open_and_ask, name))
        assert told.startswith(f"ForkedError: {name} was open")
    assert in_child(lambda: opened(tmp_path / "other.db").allocate_ledger_id()) == 0
    database.close()


def test_child_does_not_open_a_file_that_was_moved_while_it_was_open(path: Path, tmp_path: Path) -> None:
    database = opened(path)
    moved = path.rename(tmp_path / "moved.db")
    assert in_child(partial(open_and_ask, moved)).startswith(f"ForkedError: {moved} was open")
    database.close()


def test_child_opens_a_file_that_was_closed_before_the_fork(path: Path) -> None:
    database = opened(path)
    cluster_id = database.cluster_id()
    database.close()
    assert in_child(lambda: opened(path).cluster_id()) == cluster_id


def test_child_never_closes_a_connection_that_it_inherited(path: Path, tmp_path: Path) -> None:
    kept = [opened(path)]

    def drop() -> list[str]:
        kept.clear()
        gc.collect()
        return open_files_below(tmp_path)

    assert str(path) in in_child(drop)
    kept.pop().close()
    assert open_files_below(tmp_path) == []


async def test_handle_is_refused_in_the_child_and_serves_on_in_the_parent(path: Path) -> None:
    store = await open_sqlite_store(path, create=True)
    lock = await store.try_lock("leader", "parent")
    assert lock is not None
    for use in (store.allocate_ledger_id, store.renew_leases, store.list_bookies, store.close):
        assert run_in_child(use).startswith("ForkedError: ")
    assert in_child(lambda: lock.lost) is True
    assert run_in_child(lock.release) is None, "what is lost is not released"

    await store.renew_leases()
    assert not lock.lost
    assert (await store.read_lock("leader")) is not None
    assert await store.allocate_ledger_id() == 0
    await store.close()
