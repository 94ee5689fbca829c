"""The records of a session in a SQLite file, as renewals tell them: whatever others have done since the one before."""

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from octavo.metadata.sqlite.change_feed import CHANGES_KEPT
from octavo.metadata.sqlite.database import Database
from octavo.metadata.store.driver import Kind

LEASE_SECONDS = 10.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


def open_database(path: Path) -> Database:
    return Database(path, create=True, busy_timeout_seconds=0.05, clock=lambda: 0.0, boot_id="this-boot")


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with closing(open_database(path)) as opened:
        opened.begin_session("mine", LEASE_SECONDS)
        yield opened


@pytest.fixture
def other(path: Path, database: Database) -> Iterator[Database]:
    with closing(open_database(path)) as opened:
        opened.begin_session("theirs", LEASE_SECONDS)
        yield opened


def held(database: Database, session: str = "mine") -> set[tuple[Kind, str]] | None:
    return database.renew_session(session, LEASE_SECONDS)


def test_what_is_taken_and_released_between_renewals_is_told(database: Database, other: Database) -> None:
    assert held(database) == set()
    database.create(Kind.LOCK, "a", b"", "mine")
    other.create(Kind.LOCK, "b", b"", "theirs")
    assert held(database) == {(Kind.LOCK, "a")}
    assert held(database) == {(Kind.LOCK, "a")}
    database.create(Kind.WAITER, "c", b"", "mine")
    database.delete(Kind.LOCK, "a", session="mine")
    assert held(database) == {(Kind.WAITER, "c")}


def test_registration_that_another_takes_over_is_not_held_any_more(database: Database, other: Database) -> None:
    database.create(Kind.BOOKIE, "b1", b"", "mine")
    assert held(database) == {(Kind.BOOKIE, "b1")}
    other.create(Kind.BOOKIE, "b1", b"", "theirs", take_over=True)
    assert held(database) == set()
    database.create(Kind.BOOKIE, "b1", b"", "mine", take_over=True)
    assert held(database) == {(Kind.BOOKIE, "b1")}


def test_record_deleted_by_hand_is_not_held_any_more(path: Path, database: Database) -> None:
    database.create(Kind.LOCK, "a", b"", "mine")
    assert held(database) == {(Kind.LOCK, "a")}
    with closing(sqlite3.connect(path, isolation_level=None)) as by_hand:
        by_hand.execute("DELETE FROM records")
    assert held(database) == set()


def test_session_that_follows_holds_nothing_of_the_one_before(database: Database) -> None:
    database.create(Kind.LOCK, "a", b"", "mine")
    assert held(database) == {(Kind.LOCK, "a")}
    database.begin_session("next", LEASE_SECONDS)
    assert held(database, "next") == set()
    assert held(database) == {(Kind.LOCK, "a")}


def test_more_changes_than_are_kept_are_made_up_for(path: Path, database: Database) -> None:
    for name in ("a", "b"):
        database.create(Kind.LOCK, name, b"", "mine")
    assert len(held(database) or ()) == 2
    with closing(sqlite3.connect(path, isolation_level=None)) as by_hand:
        by_hand.execute("BEGIN")
        by_hand.execute("DELETE FROM records WHERE key = 'a'")
        create = "INSERT INTO records (kind, key, value, version) VALUES ('document', ?, x'', 1)"
        by_hand.executemany(create, ((f"d{number}",) for number in range(CHANGES_KEPT + 1000)))
        by_hand.execute("COMMIT")
    assert held(database) == {(Kind.LOCK, "b")}


@pytest.mark.parametrize("seed", range(10))
def test_each_renewal_tells_what_the_table_holds(path: Path, database: Database, other: Database, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        acting, session = rng.choice([(database, "mine"), (other, "theirs")])
        key = f"b{rng.randrange(5)}"
        if rng.random() < 0.5:
            acting.create(Kind.BOOKIE, key, b"", session, take_over=True)
        else:
            acting.delete(Kind.BOOKIE, key, session=session)
        if rng.random() < 0.3:
            with closing(sqlite3.connect(path)) as connection:
                rows = connection.execute("SELECT key FROM records WHERE session = 'mine'").fetchall()
            assert held(database) == {(Kind.BOOKIE, key) for (key,) in rows}
