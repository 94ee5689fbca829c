"""The change feed of SQLite files: every change of other processes, each once, and nothing else."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from octavo.metadata import Version
from octavo.metadata.sqlite.change_feed import CHANGES_KEPT, NO_CHANGES
from octavo.metadata.sqlite.database import Database
from octavo.metadata.store.driver import Kind
from octavo.protocol.errors import MetadataUnavailableError

LEASE_SECONDS = 10.0


class Process:
    """Opens a file as another process would. Time is that of the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 0.0

    def open(self) -> Database:
        return Database(self.path, create=True, busy_timeout_seconds=0.05, clock=lambda: self.now, boot_id="this-boot")

    @contextmanager
    def two(self) -> Iterator[tuple[Database, Database]]:
        """One that looks, and another one."""
        with closing(self.open()) as watcher, closing(self.open()) as other:
            yield watcher, other

    def earlier_version(self) -> sqlite3.Connection:
        """A process that knows the tables of the first release only."""
        return sqlite3.connect(self.path, isolation_level=None, timeout=0)


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path / "metadata.db")


def test_each_change_of_another_process_is_found_once_and_names_its_record(process: Process) -> None:
    with process.two() as (watcher, other):
        assert watcher.look_for_changes() == NO_CHANGES
        version = other.create(Kind.DOCUMENT, "a", b"")
        other.create(Kind.LEDGER, "7", b"")
        assert version is not None
        assert watcher.look_for_changes() == {(Kind.DOCUMENT, "a"), (Kind.LEDGER, "7")}
        assert watcher.look_for_changes() == NO_CHANGES
        other.compare_and_set(Kind.DOCUMENT, "a", b"x", version)
        assert watcher.look_for_changes() == {(Kind.DOCUMENT, "a")}
        other.delete(Kind.LEDGER, "7")
        assert watcher.look_for_changes() == {(Kind.LEDGER, "7")}
        assert watcher.look_for_changes() == NO_CHANGES


def test_renewals_and_changes_of_its_own_are_not_found(process: Process) -> None:
    with process.two() as (watcher, other):
        other.begin_session("s", LEASE_SECONDS)
        watcher.create(Kind.DOCUMENT, "mine", b"")
        other.renew_session("s", LEASE_SECONDS)
        watcher.together([partial(watcher.create, Kind.DOCUMENT, "mine, too", b""), watcher.allocate_ledger_id])
        other.create(Kind.DOCUMENT, "theirs", b"")
        watcher.delete(Kind.DOCUMENT, "mine")
        assert watcher.look_for_changes() == {(Kind.DOCUMENT, "theirs")}


def test_change_of_the_other_between_two_of_its_own_is_found(process: Process) -> None:
    with process.two() as (watcher, other):
        version = watcher.create(Kind.DOCUMENT, "d", b"0")
        assert version is not None
        version = other.compare_and_set(Kind.DOCUMENT, "d", b"1", version)
        assert version is not None
        assert watcher.compare_and_set(Kind.DOCUMENT, "d", b"2", version) is not None
        assert watcher.look_for_changes() == {(Kind.DOCUMENT, "d")}


def test_session_that_runs_out_names_its_records_although_nothing_is_written(process: Process) -> None:
    with process.two() as (watcher, other):
        other.begin_session("ends", LEASE_SECONDS)
        other.create(Kind.LOCK, "lock", b"", "ends")
        other.create(Kind.BOOKIE, "b1", b"", "ends")
        other.begin_session("stays", 2 * LEASE_SECONDS)
        other.create(Kind.LOCK, "another", b"", "stays")
        assert len(watcher.look_for_changes() or ()) == 3
        process.now = LEASE_SECONDS - 0.001
        assert watcher.look_for_changes() == NO_CHANGES
        process.now = LEASE_SECONDS
        assert watcher.look_for_changes() == {(Kind.LOCK, "lock"), (Kind.BOOKIE, "b1")}
        assert watcher.look_for_changes() == NO_CHANGES


@pytest.mark.parametrize("cleaned_by", ["watcher", "other"])
def test_records_that_a_new_session_cleans_up_are_named(process: Process, cleaned_by: str) -> None:
    with process.two() as (watcher, other):
        other.begin_session("ends", LEASE_SECONDS)
        other.create(Kind.LOCK, "lock", b"", "ends")
        watcher.look_for_changes()
        process.now = LEASE_SECONDS
        {"watcher": watcher, "other": other}[cleaned_by].begin_session("next", LEASE_SECONDS)
        assert watcher.look_for_changes() == {(Kind.LOCK, "lock")}


def test_session_that_ends_itself_names_its_records(process: Process) -> None:
    with process.two() as (watcher, other):
        other.begin_session("s", LEASE_SECONDS)
        other.create(Kind.LOCK, "lock", b"", "s")
        watcher.look_for_changes()
        other.end_session("s")
        assert watcher.look_for_changes() == {(Kind.LOCK, "lock")}


def test_changes_of_an_earlier_version_are_found(process: Process) -> None:
    """It executes these statements and knows nothing of the feed."""
    with closing(process.open()) as watcher, closing(process.earlier_version()) as earlier:
        make = (
            "INSERT OR REPLACE INTO records (kind, key, value, version, session) VALUES ('document', 'd', ?, ?, NULL)"
        )
        for statement, values in (
            (make, (b"made", 1)),
            (make, (b"replaced", 2)),
            ("UPDATE records SET value = ?, version = ? WHERE kind = 'document' AND key = 'd'", (b"changed", 3)),
            ("DELETE FROM records WHERE kind = 'document' AND key = 'd'", ()),
        ):
            earlier.execute(statement, values)
            assert watcher.look_for_changes() == {(Kind.DOCUMENT, "d")}, statement
        earlier.execute(make, (b"of a kind of a later version", 4))
        earlier.execute("UPDATE records SET kind = 'later'")
        assert watcher.look_for_changes() == {(Kind.DOCUMENT, "d")}


def test_file_of_an_earlier_version_gets_the_feed_while_the_other_uses_it(process: Process) -> None:
    with closing(process.open()) as database:
        database.create(Kind.DOCUMENT, "before", b"")
    with closing(process.earlier_version()) as earlier:
        for trigger in ("changes_trimmed", "record_made", "record_changed", "record_deleted"):
            earlier.execute(f"DROP TRIGGER {trigger}")
        earlier.execute("DROP TABLE changes")
        insert = "INSERT INTO records (kind, key, value, version, session) VALUES ('document', ?, x'', 9, NULL)"
        earlier.execute(insert, ("first",))
        with process.two() as (watcher, other):
            assert watcher.look_for_changes() == NO_CHANGES
            earlier.execute(insert, ("second",))
            other.create(Kind.DOCUMENT, "third", b"")
            assert watcher.look_for_changes() == {(Kind.DOCUMENT, "second"), (Kind.DOCUMENT, "third")}


def test_process_that_was_stopped_for_long_takes_everything_for_changed(process: Process) -> None:
    with process.two() as (watcher, other):
        create = "INSERT INTO records (kind, key, value, version) VALUES ('document', ?, x'', 1)"
        with closing(process.earlier_version()) as connection:
            connection.execute("BEGIN")
            connection.executemany(create, ((f"d{number}",) for number in range(CHANGES_KEPT + 1000)))
            connection.execute("COMMIT")
            (kept,) = connection.execute("SELECT count(*) FROM changes").fetchone()
            assert CHANGES_KEPT <= kept < CHANGES_KEPT + 1000
        assert watcher.look_for_changes() is None
        assert watcher.look_for_changes() == NO_CHANGES
        other.create(Kind.DOCUMENT, "later", b"")
        assert watcher.look_for_changes() == {(Kind.DOCUMENT, "later")}


def test_as_many_changes_as_are_kept_are_found_one_by_one(process: Process) -> None:
    with process.two() as (watcher, other):
        for _ in range(3):
            other.together([partial(other.create, Kind.DOCUMENT, f"{n}", b"", take_over=True) for n in range(5000)])
            assert len(watcher.look_for_changes() or ()) == 5000


def test_changes_found_while_the_file_is_away_are_found_again(process: Process) -> None:
    with process.two() as (watcher, other):
        other.create(Kind.DOCUMENT, "d", b"")
        away = process.path.with_name("away.db")
        process.path.rename(away)
        with pytest.raises(MetadataUnavailableError, match="deleted or replaced"):
            watcher.look_for_changes()
        away.rename(process.path)
        assert watcher.look_for_changes() == {(Kind.DOCUMENT, "d")}


@pytest.mark.parametrize("seed", range(20))
def test_what_is_found_is_what_others_have_changed(process: Process, seed: int) -> None:
    """Any order of changes by three processes, and of looks by each."""
    rng = random.Random(seed)
    databases = [process.open() for _ in range(3)]
    unseen: list[set[tuple[Kind, str]]] = [set() for _ in databases]
    versions: dict[str, Version] = {}
    for _ in range(300):
        at = rng.randrange(len(databases))
        database, key = databases[at], f"d{rng.randrange(6)}"
        if rng.random() < 0.4:
            assert database.look_for_changes() == unseen[at]
            unseen[at].clear()
            continue
        if key not in versions:
            version = database.create(Kind.DOCUMENT, key, b"")
        elif rng.random() < 0.3:
            assert database.delete(Kind.DOCUMENT, key, versions.pop(key))
            version = None
        else:
            version = database.compare_and_set(Kind.DOCUMENT, key, b"", versions[key])
        if version is not None:
            versions[key] = version
        for other in range(len(databases)):
            if other != at:
                unseen[other].add((Kind.DOCUMENT, key))
    for database in databases:
        database.close()
