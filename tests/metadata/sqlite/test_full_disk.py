"""Leases in a SQLite file whose disk is full: a renewal uses space that the write-ahead log has already."""

import sqlite3
from pathlib import Path

import pytest
from octavo.metadata.sqlite.database import Database
from octavo.metadata.store.driver import Kind
from octavo.protocol.errors import MetadataUnavailableError

LEASE_SECONDS = 10.0


class FullDisk(Database):
    """As SQLite on a full disk, once ``is_full``: a change finds no room at the end of the write-ahead log. It does at
    the beginning, where the log begins again after a complete checkpoint (rule P18)."""

    is_full = False
    has_room_at_beginning = False
    needs_space = False
    """The checkpoint would extend the file."""

    def _execute(self, statement: str, values: tuple[object, ...] | dict[str, str | float] = ()) -> sqlite3.Cursor:
        if self.is_full and statement.startswith("PRAGMA wal_checkpoint"):
            if self.needs_space:
                raise _full()
            self.has_room_at_beginning = True
        if self.is_full and statement.startswith(("UPDATE", "INSERT", "DELETE")) and not self.has_room_at_beginning:
            raise _full()
        return super()._execute(statement, values)


def _full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


@pytest.fixture
def database(tmp_path: Path) -> FullDisk:
    path = tmp_path / "metadata.db"
    made = FullDisk(path, create=True, busy_timeout_seconds=1.0, clock=lambda: 100.0, boot_id="this-boot")
    made.begin_session("one", LEASE_SECONDS)
    assert made.create(Kind.LOCK, "leader", b"me", "one") is not None
    return made


def test_a_session_is_renewed_on_a_full_disk(database: FullDisk) -> None:
    database.is_full = True
    with pytest.raises(MetadataUnavailableError, match="the disk is full"):
        database.create(Kind.DOCUMENT, "other", b"x" * 10_000)
    assert database.renew_session("one", LEASE_SECONDS) == {(Kind.LOCK, "leader")}
    database.close()


def test_a_session_that_cannot_be_renewed_says_that_the_disk_is_full(database: FullDisk) -> None:
    database.is_full = database.needs_space = True
    with pytest.raises(MetadataUnavailableError, match="the disk is full"):
        database.renew_session("one", LEASE_SECONDS)
    database.is_full = False
    assert database.renew_session("one", LEASE_SECONDS) == {(Kind.LOCK, "leader")}
    database.close()


def test_renewals_on_a_full_disk_let_the_log_begin_again(tmp_path: Path, database: FullDisk) -> None:
    """They do not make the file of the log longer."""
    for number in range(20):
        database.create(Kind.DOCUMENT, f"d{number}", b"x" * 1000)
    before = (tmp_path / "metadata.db-wal").stat().st_size
    database.is_full = True
    for _ in range(5):
        assert database.renew_session("one", LEASE_SECONDS) is not None
    assert (tmp_path / "metadata.db-wal").stat().st_size == before
    database.close()
