"""What is special about metadata in a file: opening it, damage, several processes, crashes."""

# ruff: noqa: ASYNC240 - the tests look at and damage files while nothing else runs in the loop

import asyncio
import shutil
import sqlite3
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
from octavo.metadata import Version
from octavo.metadata.clocks.boot_time import boot_time_seconds
from octavo.metadata.sqlite.database import Database
from octavo.metadata.sqlite.store import (
    POLL_SECONDS,
    open_sqlite_store,
    path_of_uri,
    read_boot_id,
)
from octavo.metadata.store.driver import Kind
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    LedgerExistsError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
)
from octavo.protocol.ids import LedgerId
from support.metadata.ledger_metadata import open_ledger
from support.metadata.write_ahead_log import commits_in_log
from support.waiting import WAIT_SECONDS

PATIENCE_SECONDS = WAIT_SECONDS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


async def refusal_of(path: Path, *, create: bool = False) -> OctavoError:
    with pytest.raises(OctavoError) as caught:
        await open_sqlite_store(path, create=create, busy_timeout_seconds=0.05)
    assert str(path) in caught.value.message
    assert "\n" not in caught.value.message
    return caught.value


# --- opening -------------------------------------------------------------------------------------------------------


async def test_missing_store_is_named_and_not_made(path: Path) -> None:
    error = await refusal_of(path)
    assert isinstance(error, MetadataUnavailableError)
    assert not error.may_have_happened
    assert not path.exists()


async def test_store_and_directories_are_made_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "metadata.db"
    async with await open_sqlite_store(path, create=True) as made:
        identity = await made.cluster_id()
    async with await open_sqlite_store(path) as found, await open_sqlite_store(path, create=True) as again:
        assert await found.cluster_id() == await again.cluster_id() == identity


async def test_file_left_empty_by_a_crash_while_it_was_made_is_made_on_the_next_try(path: Path) -> None:
    path.touch()
    assert isinstance(await refusal_of(path), MetadataUnavailableError)
    async with await open_sqlite_store(path, create=True) as store:
        assert await store.allocate_ledger_id() == 0


async def test_store_made_by_many_at_once_is_one_store(path: Path) -> None:
    async with AsyncExitStack() as stack:
        stores = await asyncio.gather(*(open_sqlite_store(path, create=True) for _ in range(6)))
        for store in stores:
            stack.push_async_callback(store.close)
        assert len({await store.cluster_id() for store in stores}) == 1
        assert sorted([await store.allocate_ledger_id() for store in stores]) == list(range(6))


@pytest.mark.parametrize("create", [False, True])
async def test_what_is_no_store_is_refused_and_left_as_it_is(tmp_path: Path, create: bool) -> None:
    text = tmp_path / "notes.txt"
    text.write_bytes(b"not a database, but longer than a header of one hundred bytes" * 20)
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as foreign:
        foreign.execute("CREATE TABLE mine (a)")
    for path in (text, tmp_path / "foreign.db"):
        before = path.read_bytes()
        error = await refusal_of(path, create=create)
        assert isinstance(error, MetadataError)
        assert "is not a" in error.message
        assert path.read_bytes() == before


async def test_newer_format_is_refused_and_says_what_to_do(path: Path) -> None:
    async with await open_sqlite_store(path, create=True):
        pass
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version=2")
    error = await refusal_of(path)
    assert isinstance(error, MetadataError)
    assert "format 2 is newer than 1" in error.message


async def test_path_that_cannot_be_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert isinstance(await refusal_of(tmp_path, create=True), MetadataUnavailableError)
    assert isinstance(await refusal_of(tmp_path / "file" / "metadata.db", create=True), MetadataUnavailableError)


async def test_cancelled_opening_lets_go_of_the_file(path: Path) -> None:
    opening = asyncio.create_task(open_sqlite_store(path, create=True))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with await open_sqlite_store(path, create=True) as store:
        assert await store.allocate_ledger_id() == 0


@pytest.mark.parametrize(
    "uri", ["sqlite://", "sqlite:///", "sqlite://host/path", "sqlite:///dir/", "sqlite:///:memory:"]
)
def test_uri_without_a_file_is_refused(uri: str) -> None:
    with pytest.raises(InvalidArgumentError):
        path_of_uri(uri)


def test_three_slashes_are_relative_and_four_absolute() -> None:
    assert path_of_uri("sqlite:///data/metadata.db") == Path("data/metadata.db")
    assert path_of_uri("sqlite:////var/metadata.db") == Path("/var/metadata.db")


# --- durability and damage -----------------------------------------------------------------------------------------


def make_database(path: Path, *, now: list[float] | None = None, boot_id: str = "boot") -> Database:
    clock = boot_time_seconds if now is None else lambda: now[0]
    return Database(path, create=True, busy_timeout_seconds=0.05, clock=clock, boot_id=boot_id)


def rows_of(path: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    """What another program gets for a statement; committed."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as connection:
        return connection.execute(statement, values).fetchall()


@pytest.mark.parametrize("again", [False, True])
def test_every_commit_is_synced(path: Path, again: bool) -> None:
    with closing(make_database(path)) as database:
        synchronous = database.pragma("synchronous")
    if again:
        with closing(make_database(path)) as database:
            synchronous = database.pragma("synchronous")
    assert synchronous == 2
    assert rows_of(path, "PRAGMA journal_mode") == [("wal",)]


def test_what_a_killed_process_left_in_the_log_is_durable_once_it_can_be_seen(tmp_path: Path) -> None:
    """Its last commit may stand in the page cache alone: opening has to sync it, which a checkpoint does first."""
    paths = [tmp_path / name / "metadata.db" for name in ("killed", "opened", "power-cut")]
    for other in paths[1:]:
        other.parent.mkdir()
    with closing(make_database(paths[0])) as killed:
        version = killed.create(Kind.DOCUMENT, "seen", b"value")
        for suffix in ("", "-wal"):
            shutil.copy(f"{paths[0]}{suffix}", f"{paths[1]}{suffix}")
    with closing(make_database(paths[1])) as opened:
        (seen,) = opened.read_many([(Kind.DOCUMENT, "seen")])
        assert seen is not None
        assert seen.version == version
        shutil.copy(paths[1], paths[2])  # without the log: a checkpoint syncs it before it writes the file
    with closing(make_database(paths[2])) as again:
        assert again.read_many([(Kind.DOCUMENT, "seen")]) == [seen]


def test_records_that_are_read_together_come_in_the_order_in_which_they_were_asked_for(path: Path) -> None:
    """Of any kinds, one name in two of them, one name twice, and names of nothing in between."""
    with closing(make_database(path)) as database:
        for kind, key, value in ((Kind.DOCUMENT, "a", b"1"), (Kind.LOCK, "a", b"2"), (Kind.DOCUMENT, "b", b"3")):
            database.create(kind, key, value)
        wanted = [
            (Kind.DOCUMENT, "b"),
            (Kind.LOCK, "b"),
            (Kind.LOCK, "a"),
            (Kind.DOCUMENT, "a"),
            (Kind.COOKIE, "a"),
            (Kind.DOCUMENT, "b"),
        ]
        found = database.read_many(wanted)
        assert [record and record.value for record in found] == [b"3", None, b"2", b"1", None, b"3"]
        assert found == [record for thing in wanted for record in database.read_many([thing])]
        assert database.read_many([]) == []


async def test_damaged_file_is_reported_with_its_path(path: Path) -> None:
    async with await open_sqlite_store(path, create=True) as store:
        for _ in range(50):
            ledger_id = await store.allocate_ledger_id()
            await store.create_ledger(open_ledger(ledger_id))
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 64] = b"\xa5" * 64
    path.write_bytes(content)
    with pytest.raises(MetadataError, match="damaged") as caught:
        async with await open_sqlite_store(path) as store:
            await store.read_ledger(LedgerId(30))
    assert str(path) in caught.value.message


async def test_store_locked_for_long_is_unavailable_and_nothing_happened(path: Path) -> None:
    async with await open_sqlite_store(path, create=True, busy_timeout_seconds=0.05) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as stopped_process:
            stopped_process.execute("BEGIN IMMEDIATE")
            with pytest.raises(MetadataUnavailableError, match="locked") as caught:
                await store.allocate_ledger_id()
            assert not caught.value.may_have_happened
            assert str(path) in caught.value.message
            assert await store.cluster_id()  # reading goes on
            stopped_process.execute("ROLLBACK")
        assert await store.allocate_ledger_id() == 0


async def test_operation_that_failed_leaves_no_transaction_open(path: Path) -> None:
    with closing(make_database(path)) as database:
        rows_of(path, "DROP TABLE sessions")
        with pytest.raises(MetadataUnavailableError):
            database.begin_session("s", 10)
        rows_of(path, "BEGIN IMMEDIATE")  # the failed transaction holds no lock


READS: dict[str, Callable[[MetadataStore], Awaitable[object]]] = {
    "cluster_id": lambda store: store.cluster_id(),
    "read_ledger": lambda store: store.read_ledger(LedgerId(0)),
    "list_ledgers": lambda store: anext(aiter(store.list_ledgers())),
    "list_bookies": lambda store: store.list_bookies(),
    "list_cookies": lambda store: store.list_cookies(),
    "read_document": lambda store: store.read_document("document"),
    "ledger_ids_stop": lambda store: store.ledger_ids_stop(),
    "confirm_absent": lambda store: store.confirm_absent([LedgerId(0)]),
}


@pytest.mark.parametrize("read", READS)
async def test_file_replaced_while_in_use_is_reported_by_every_read(path: Path, read: str) -> None:
    """A bookie that reads an older copy, or the deleted file, would take ledgers for deleted that exist (rule B5)."""
    async with await open_sqlite_store(path, create=True) as store:
        await store.create_ledger(open_ledger(await store.allocate_ledger_id()))
        await READS[read](store)
        copy = path.with_name("copy.db")
        shutil.copyfile(path, copy)
        copy.replace(path)
        with pytest.raises(MetadataUnavailableError, match="deleted or replaced"):
            await READS[read](store)


CHANGES: dict[str, Callable[[MetadataStore], Awaitable[object]]] = {
    "allocate_ledger_id": lambda store: store.allocate_ledger_id(),
    "create_document": lambda store: store.create_document("another", b""),
    "lock": lambda store: store.lock("lock", "owner"),
}


@pytest.mark.parametrize("use", [*READS, *CHANGES])
async def test_file_restored_in_place_while_in_use_is_of_no_use(path: Path, use: str) -> None:
    """A leader that goes on where the older list does not name its segment would acknowledge what no reader finds."""
    operation = (READS | CHANGES)[use]
    async with await open_sqlite_store(path, create=True) as store, await open_sqlite_store(path) as other:
        await store.create_ledger(open_ledger(await store.allocate_ledger_id()))
        with closing(sqlite3.connect(path)) as live, closing(sqlite3.connect(path.with_name("backup.db"))) as backup:
            live.backup(backup)
            await store.create_document("document", b"")
            await READS["cluster_id"](store)
            backup.backup(live)
        with pytest.raises(MetadataError, match=r"metadata\.db is older than what this process has already read"):
            await operation(store)
        for number in range(3):
            await other.create_document(f"later-{number}", b"")
        with pytest.raises(MetadataError, match=r"metadata\.db is older than what this process has already read"):
            await operation(store)
        await operation(other)  # it had seen nothing that is gone


@pytest.mark.parametrize("replaced", [False, True])
async def test_file_deleted_or_replaced_while_in_use_is_reported_by_every_change(path: Path, replaced: bool) -> None:
    async with await open_sqlite_store(path, create=True) as store:
        await store.create_ledger(open_ledger(await store.allocate_ledger_id()))
        for file in path.parent.iterdir():
            file.rename(file.with_name("old-" + file.name))
        if replaced:
            async with await open_sqlite_store(path, create=True):
                pass
        for change in (store.allocate_ledger_id(), store.delete_ledger(LedgerId(0))):
            with pytest.raises(MetadataUnavailableError, match="deleted or replaced") as caught:
                await change
            assert str(path) in caught.value.message
            assert not caught.value.may_have_happened
        if not replaced:
            for file in list(path.parent.iterdir()):
                file.rename(file.with_name(file.name.removeprefix("old-")))
            assert await store.allocate_ledger_id() == 1


def test_last_ledger_id_is_refused_when_all_are_used(path: Path) -> None:
    with closing(make_database(path)) as database:
        rows_of(path, "UPDATE settings SET value = ? WHERE name = 'next_ledger_id'", 2**63 - 2)
        assert database.allocate_ledger_id() == 2**63 - 2
        with pytest.raises(MetadataUnavailableError, match="all ledger ids"):
            database.allocate_ledger_id()


# --- changes that are made together --------------------------------------------------------------------------------


async def make_ledger(store: MetadataStore) -> LedgerId:
    ledger_id = await store.allocate_ledger_id()
    await store.create_ledger(open_ledger(ledger_id))
    return ledger_id


async def test_ledgers_created_at_the_same_time_share_transactions(path: Path) -> None:
    async with await open_sqlite_store(path, create=True) as store, await open_sqlite_store(path) as other:
        before = commits_in_log(path)
        made = await asyncio.gather(*(make_ledger(store) for _ in range(100)))
        assert sorted(made) == list(range(100))
        assert commits_in_log(path) - before <= 10
        # What has been answered is there for every process.
        assert [ledger_id async for ledger_id in other.list_ledgers()] == sorted(made)
        before = commits_in_log(path)
        for _ in range(5):
            await make_ledger(store)
        assert commits_in_log(path) - before == 10


async def test_creation_that_is_refused_spoils_no_other_of_its_transaction(path: Path) -> None:
    async with await open_sqlite_store(path, create=True) as store:
        ids = [await store.allocate_ledger_id() for _ in range(10)]
        await store.create_ledger(open_ledger(ids[3], writer_token="first"))
        creations = (store.create_ledger(open_ledger(ledger_id)) for ledger_id in [*ids, ids[5]])
        outcomes = await asyncio.gather(*creations, return_exceptions=True)
        assert [at for at, outcome in enumerate(outcomes) if isinstance(outcome, LedgerExistsError)] == [3, 10]
        assert sum(isinstance(outcome, int) for outcome in outcomes) == 9
        assert (await store.read_ledger(ids[3])).value.writer_token == "first"


async def test_change_that_fails_is_undone_and_the_others_are_made_without_it(path: Path) -> None:
    async with await open_sqlite_store(path, create=True) as store:
        rows_of(path, "UPDATE settings SET value = ? WHERE name = 'next_ledger_id'", 2**63 - 4)
        changes = [
            *(store.allocate_ledger_id() for _ in range(5)),
            store.create_document("beside", b"made"),
        ]
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        assert outcomes[:3] == [2**63 - 4, 2**63 - 3, 2**63 - 2]
        assert all(isinstance(outcome, MetadataUnavailableError) for outcome in outcomes[3:5])
        assert len({id(outcome) for outcome in outcomes}) == 6
        assert await store.read_document("beside") == (b"made", outcomes[5])


async def test_changes_asked_for_while_the_file_is_locked_fail_together_and_soon(path: Path) -> None:
    async with await open_sqlite_store(path, create=True, busy_timeout_seconds=0.05) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as stopped_process:
            stopped_process.execute("BEGIN IMMEDIATE")
            async with asyncio.timeout(PATIENCE_SECONDS):
                outcomes = await asyncio.gather(
                    *(store.allocate_ledger_id() for _ in range(2000)), return_exceptions=True
                )
            for outcome in outcomes:
                assert isinstance(outcome, MetadataUnavailableError)
                assert not outcome.may_have_happened
        assert await store.allocate_ledger_id() == 0


async def test_change_whose_caller_is_cancelled_before_its_turn_is_not_made(path: Path) -> None:
    async with await open_sqlite_store(path, create=True) as store:
        ids = [await store.allocate_ledger_id() for _ in range(3)]
        tasks = [asyncio.create_task(store.create_ledger(open_ledger(ledger_id))) for ledger_id in ids]
        await asyncio.sleep(0)  # all three have asked, and no transaction has begun
        tasks[1].cancel()
        # Whatever its caller does next comes after it.
        with pytest.raises(NoSuchLedgerError):
            await store.delete_ledger(ids[1])
        await asyncio.gather(tasks[0], tasks[2])
        assert [ledger_id async for ledger_id in store.list_ledgers()] == [ids[0], ids[2]]


async def test_closing_ends_changes_that_wait_for_their_turn(path: Path) -> None:
    store = await open_sqlite_store(path, create=True)
    tasks = [asyncio.create_task(store.allocate_ledger_id()) for _ in range(1000)]
    await asyncio.sleep(0)
    await store.close()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, int | ClientClosedError) for outcome in outcomes)
    assert any(isinstance(outcome, ClientClosedError) for outcome in outcomes)


# --- leases and notices --------------------------------------------------------------------------------------------


def test_leases_end_with_the_boot(path: Path) -> None:
    """Boot time starts again from 0: what was promised until second 5000 of the last boot is over."""
    now = [4990.0]
    with closing(make_database(path, now=now, boot_id="first")) as before:
        before.begin_session("session", 10.0)
        before.create(Kind.BOOKIE, "b1", b"", "session")
        assert len(before.read_all(Kind.BOOKIE)) == 1
    now[0] = 30.0
    with closing(make_database(path, now=now, boot_id="second")) as after:
        assert after.read_all(Kind.BOOKIE) == []
        assert after.renew_session("session", 10.0) is None
        after.begin_session("another", 10.0)
        assert rows_of(path, "SELECT count(*) FROM records") == [(0,)]
        assert rows_of(path, "SELECT session FROM sessions") == [("another",)]


def test_refused_changes_write_nothing(path: Path) -> None:
    with closing(make_database(path)) as watcher, closing(make_database(path)) as other:
        other.create(Kind.DOCUMENT, "d", b"")
        watcher.look_for_changes()
        before = watcher.pragma("data_version")
        assert other.create(Kind.DOCUMENT, "d", b"x") is None
        assert other.compare_and_set(Kind.DOCUMENT, "d", b"x", Version(99)) is None
        assert other.set_in_session(Kind.BOOKIE, "b", b"x", "none") is None
        assert other.delete(Kind.DOCUMENT, "e") is False
        assert watcher.pragma("data_version") == before


async def test_file_is_polled_only_while_something_is_watched(path: Path) -> None:
    def polling() -> bool:
        return f"watch sqlite:///{path}" in {task.get_name() for task in asyncio.all_tasks() if not task.cancelling()}

    async with await open_sqlite_store(path, create=True) as store:
        assert not polling()
        async with store.watch_bookies():
            assert polling()
        assert not polling()
    assert POLL_SECONDS <= 0.1  # changes by other processes are to be noticed within 200 ms


async def test_change_between_two_times_of_watching_is_noticed(path: Path) -> None:
    async with (
        await open_sqlite_store(path, create=True, poll_seconds=1000) as store,
        await open_sqlite_store(path) as other,
    ):
        async with store.watch_document("d") as watch:
            assert await anext(watch) is None
        await other.create_document("d", b"x")
        async with asyncio.timeout(PATIENCE_SECONDS), store.watch_document("d") as watch:
            found = await anext(watch)
            assert found is not None


async def test_change_whose_caller_was_cancelled_is_noticed_all_the_same(path: Path) -> None:
    """Cancelled while the change is being made in the thread: the clock that it asks holds it there."""
    entered, leave = threading.Event(), threading.Event()
    leave.set()

    def clock() -> float:
        entered.set()
        leave.wait(PATIENCE_SECONDS)
        return 0.0

    async with (
        await open_sqlite_store(path, create=True, poll_seconds=1000, clock=clock) as store,
        store.watch_document("d") as watch,
    ):
        assert await anext(watch) is None
        await store.read_document("d")  # the first look for others' changes is over, too
        entered.clear()
        leave.clear()
        creating = asyncio.create_task(store.create_document("d", b"x"))
        await asyncio.to_thread(entered.wait, PATIENCE_SECONDS)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating
        leave.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            found = await anext(watch)
        assert found is not None
        assert found.value == b"x"


async def test_operation_begun_before_close_ends_in_one_way_or_the_other(path: Path) -> None:
    store = await open_sqlite_store(path, create=True)
    running = [asyncio.create_task(store.allocate_ledger_id()) for _ in range(5)]
    await asyncio.sleep(0)
    await store.close()
    for outcome in await asyncio.gather(*running, return_exceptions=True):
        assert isinstance(outcome, int | ClientClosedError)


# --- processes -----------------------------------------------------------------------------------------------------

CHILD = """
import asyncio, sys
from pathlib import Path
from octavo.metadata.sqlite.store import open_sqlite_store
from octavo.metadata import BookieRegistration, BookieState

async def main() -> None:
    async with await open_sqlite_store(Path(sys.argv[1])) as store:
        await store.register_bookie(
            BookieRegistration(
                bookie_id="child", address="h:1", state=BookieState.WRITABLE, version="1", boot_id="b"
            )
        )
        print("ready", flush=True)
        async with store.watch_document("question") as questions:
            async for question in questions:
                if question is not None:
                    break
        await store.create_document("answer", question.value + b"!")
        number = 0
        while True:
            ledger_id = await store.allocate_ledger_id()
            await store.create_document(f"own/{ledger_id}", b"%d" % number)
            print(ledger_id, flush=True)
            number += 1

asyncio.run(main())
"""


@asynccontextmanager
async def child_process(path: Path) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-W", "error", "-c", CHILD, str(path), stdout=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        assert process.stdout is not None
        await process.stdout.read()
        await process.wait()


async def test_processes_see_each_other_and_survive_each_others_death(path: Path) -> None:
    skew = [0.0]
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        await open_sqlite_store(path, create=True, clock=lambda: boot_time_seconds() + skew[0]) as store,
        child_process(path) as child,
    ):
        assert child.stdout is not None
        async with store.watch_bookies() as bookies:
            async for present in bookies:
                if "child" in present:
                    break
            # Others' changes reach us, ours reach them.
            assert await child.stdout.readline() == b"ready\n"
            async with store.watch_document("answer") as answers:
                assert await anext(answers) is None
                await store.create_document("question", b"who")
                answer = await anext(answers)
                assert answer is not None
                assert answer.value == b"who!"
            ours, theirs = [], []
            for _ in range(20):
                ours.append(await store.allocate_ledger_id())
                theirs.append(int(await child.stdout.readline()))
            child.kill()
            theirs += [int(line) for line in (await child.stdout.read()).splitlines()]
            await child.wait()
            # Nothing that was reported is lost, no id was given twice.
            assert len(set(ours + theirs)) == len(ours) + len(theirs)
            for ledger_id in theirs:
                assert await store.read_document(f"own/{ledger_id}") is not None
            assert await store.allocate_ledger_id() not in {*ours, *theirs}
            # It is missed when its lease is over, and not before.
            assert "child" in await store.list_bookies()
            skew[0] = 20.0
            assert await anext(bookies) == {}


async def test_real_clock_and_boot_id_are_those_of_the_host() -> None:
    assert boot_time_seconds() > 0
    assert len(read_boot_id()) == len("8e4a7a2e-0d1c-4f5e-9a55-7e2f64b7a3c1")
