"""``sqlite:///path``: metadata in a file, for any number of processes on one host. The shell around :class:`Database`.

All SQLite calls of a handle run one after another in one thread of its own, so that the event loop never waits for the
disk. Changes requested while the thread is busy wait and are then made together in one transaction, which costs one
sync: a client that creates many ledgers at a time is not limited to one ledger per sync. A caller gets its answer only
after that transaction is durable. Reads that are requested in one turn of the event loop are made together as well.

A handle notices changes by other processes by polling a counter in shared memory, once for all that is watched, and
only while something is watched. Then the change feed (:mod:`octavo.metadata.sqlite.change_feed`) says which records
have changed.
"""

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from octavo.metadata.clocks.boot_time import boot_time_seconds
from octavo.metadata.sqlite.database import Database
from octavo.metadata.sqlite.questions import ListOfKeys, Questions
from octavo.metadata.store.driver import ClusterOrigin, Kind, Listener, Record, RecordStore, Unchanged
from octavo.metadata.store.leases import LEASE_SECONDS_DEFAULT, check_lease_seconds
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import (
    ClientClosedError,
    InternalError,
    InvalidArgumentError,
    MetadataError,
    MetadataUnavailableError,
    OctavoError,
)
from octavo.protocol.ids import LedgerId
from octavo.security import forks

POLL_SECONDS: Final = 0.1
"""Interval between checks for changes by other processes. They are noticed within 200 ms, at about 0.2 % of a core."""

BUSY_TIMEOUT_SECONDS: Final = 5.0
"""How long to wait for another process's transaction. Transactions take milliseconds; a stopped process may hold one
for longer."""

TOGETHER_MAX: Final = 256
"""Changes in one transaction: bounds the time for which other processes and this handle's reads wait for it."""

_BOOT_ID_PATH: Final = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """The id of the current boot of this host."""
    return _BOOT_ID_PATH.read_text("ascii").strip()


type _Thing = tuple[Kind | None, str | None]
"""What a change reports: kind and key, as for a listener."""


class _Change(NamedTuple):
    """A change that waits for its transaction, or is in one."""

    thing: _Thing | None
    operation: Callable[[], object]
    made: asyncio.Future[Any]

    def settle(self, result: object) -> None:
        """Give the caller its result, or let it raise the error that is its result."""
        if isinstance(result, OctavoError):
            # A fresh instance: one error object raised in many tasks would collect all their tracebacks.
            self.fail(type(result)(result.message, may_have_happened=result.may_have_happened), result)
        elif not self.made.done():
            self.made.set_result(result)

    def fail(self, error: OctavoError, cause: BaseException | None = None) -> None:
        """Let the caller raise the error."""
        if not self.made.done():
            error.__cause__ = cause
            self.made.set_exception(error)


class SqliteRecordStore(RecordStore):
    """One handle on a file, made by :func:`open_sqlite_store`, which opens ``database`` in the executor's single
    thread."""

    def __init__(self, uri: str, database: Database, executor: ThreadPoolExecutor, poll_seconds: float) -> None:
        self._uri = uri
        self._database = database
        self._executor = executor
        self._poll_seconds = poll_seconds
        self._loop = asyncio.get_running_loop()
        forks.hold(self)
        self._listener: Listener | None = None
        self._polling: asyncio.Task[None] | None = None
        self._closed = False
        self._waiting: deque[_Change] = deque()
        """Changes that no transaction contains yet."""
        self._under_way = False
        """Whether the next transaction is scheduled or being made."""
        self._urgent: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        """What the thread does before anything else."""
        self._reads = Questions[tuple[Kind, str], Record | None](
            database.read_many, in_thread=self._in_thread, is_closed=lambda: self._closed, together_max=TOGETHER_MAX
        )
        self._lists = Questions[ListOfKeys, list[str]](
            database.list_many, in_thread=self._in_thread, is_closed=lambda: self._closed, together_max=TOGETHER_MAX
        )
        self._ledger_ids_allocated = 0
        """All ids below this are known to have been allocated."""

    @property
    def uri(self) -> str:
        return self._uri

    def start(self, listener: Listener) -> None:
        self._listener = listener

    def watching(self, active: bool) -> None:
        if self._polling is not None:
            self._polling.cancel()
            self._polling = None
        if active:
            self._begin_polling()

    def watch_record(self, kind: Kind, key: str | None, *, active: bool) -> None:
        if active and self._polling is None:
            self._begin_polling()

    def _begin_polling(self) -> None:
        polling = self._polling = asyncio.create_task(self._poll(), name=f"watch {self._uri}")
        polling.add_done_callback(self._polling_ended)

    def _polling_ended(self, polling: asyncio.Task[None]) -> None:
        if self._polling is polling:
            # Not by `watching`: the program has cancelled it, with the watches of this handle. The next one polls.
            self._polling = None

    def on_forked(self) -> None:
        """In a forked child (rule H1) there is no thread that would answer."""
        self._closed = True

    async def look_for_changes(self) -> None:
        """Check now for changes by other processes, without waiting for the next interval."""
        changes = await self._run(self._database.look_for_changes)
        if changes is None:
            self._report(None, None)
        else:
            for kind, key in changes:
                self._report(kind, key)

    async def close(self) -> None:
        self.watching(False)
        for change in self._waiting:
            change.fail(ClientClosedError("the metadata store has been closed"))
        self._waiting.clear()
        closing = self._loop.run_in_executor(self._executor, self._database.close)
        self._closed = True
        self._executor.shutdown(wait=False)
        await closing

    async def cluster_id(self) -> str:
        return await self._run(self._database.cluster_id)

    async def time_ms(self) -> int:
        # The store belongs to this host, and has no other clock.
        return time.time_ns() // 1_000_000

    async def allocate_ledger_id(self) -> LedgerId:
        ledger_id = await self._change(None, self._database.allocate_ledger_id)
        self._ledger_ids_allocated = max(self._ledger_ids_allocated, ledger_id + 1)
        return ledger_id

    async def is_allocated(self, ledger_id: LedgerId) -> bool:
        if ledger_id >= self._ledger_ids_allocated:
            self._ledger_ids_allocated = await self.ledger_ids_stop()
        return ledger_id < self._ledger_ids_allocated

    async def ledger_ids_stop(self) -> LedgerId:
        return await self._run(self._database.ledger_ids_stop)

    async def confirm_absent(self, kind: Kind, keys: Sequence[str]) -> list[str]:
        return await self._run(lambda: self._database.confirm_absent(kind, keys))

    async def create(self, kind: Kind, key: str, value: bytes) -> Version | None:
        return await self._change((kind, key), lambda: self._database.create(kind, key, value))

    async def create_in_session(
        self,
        kind: Kind,
        key: str,
        value: bytes,
        session: str,
        *,
        take_over: bool,
        unchanged: Unchanged | None = None,
    ) -> Version | None:
        return await self._change(
            (kind, key),
            lambda: self._database.create(kind, key, value, session, take_over=take_over, unchanged=unchanged),
        )

    async def read(self, kind: Kind, key: str) -> Record | None:
        self._check_open()
        return await self._reads.ask((kind, key))

    async def read_many(self, kind: Kind, keys: Sequence[str]) -> list[Record | None]:
        found: list[Record | None] = []
        for start in range(0, len(keys), TOGETHER_MAX):
            wanted = [(kind, key) for key in keys[start : start + TOGETHER_MAX]]
            found += await self._run(partial(self._database.read_many, wanted))
        return found

    async def compare_and_set(self, kind: Kind, key: str, value: bytes, expected: Version) -> Version | None:
        return await self._change((kind, key), lambda: self._database.compare_and_set(kind, key, value, expected))

    async def compare_and_set_many(
        self, kind: Kind, changes: Sequence[tuple[str, bytes, Version]]
    ) -> list[Version | None]:
        # Changes that are requested together are made in one transaction, up to TOGETHER_MAX of them.
        made = await asyncio.gather(
            *(self.compare_and_set(kind, key, value, expected) for key, value, expected in changes),
            return_exceptions=True,
        )
        for outcome in made:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in made if not isinstance(outcome, BaseException)]

    async def set_in_session(self, kind: Kind, key: str, value: bytes, session: str) -> Version | None:
        return await self._change((kind, key), lambda: self._database.set_in_session(kind, key, value, session))

    async def delete(self, kind: Kind, key: str, expected: Version | None) -> bool:
        return await self._change((kind, key), lambda: self._database.delete(kind, key, expected))

    async def delete_in_session(self, kind: Kind, key: str, session: str) -> bool:
        return await self._change((kind, key), lambda: self._database.delete(kind, key, session=session))

    async def list_keys(self, kind: Kind, *, prefix: str, after: str, limit: int) -> list[str]:
        self._check_open()
        return await self._lists.ask(ListOfKeys(kind, prefix, after, limit))

    async def read_all(self, kind: Kind) -> list[Record]:
        return await self._run(lambda: self._database.read_all(kind))

    async def begin_session(self, session: str, lease_seconds: float) -> None:
        await self._run(lambda: self._database.begin_session(session, lease_seconds))

    async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        return await self._run_first(lambda: self._database.renew_session(session, lease_seconds))

    async def end_session(self, session: str) -> None:
        await self._change((None, None), lambda: self._database.end_session(session))

    async def _poll(self) -> None:
        while True:
            try:
                await self.look_for_changes()
            except MetadataUnavailableError:
                pass  # the next check finds what this one missed
            except MetadataError:
                # The file is damaged: the loads of the watches run into it and report it.
                self._report(None, None)
            await asyncio.sleep(self._poll_seconds)

    async def _change[T](self, thing: _Thing | None, operation: Callable[[], T]) -> T:
        """Make a change together with others that are requested now; ``thing`` is reported afterwards."""
        self._check_open()
        made: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append(_Change(thing, operation, made))
        if not self._under_way:
            self._under_way = True
            self._loop.call_soon(self._make_waiting)
        return await made

    def _make_waiting(self) -> None:
        # A change whose caller has been cancelled is left out; what the caller does next comes after it in any case.
        changes: list[_Change] = []
        while self._waiting and len(changes) < TOGETHER_MAX:
            change = self._waiting.popleft()
            if not change.made.done():
                changes.append(change)
        if not changes or self._closed:
            self._under_way = False
            return
        making = self._in_thread(partial(self._database.together, [change.operation for change in changes]))
        making.add_done_callback(lambda made: self._made(changes, made))

    def _made(self, changes: Sequence[_Change], made: asyncio.Future[list[object]]) -> None:
        failure = None if made.cancelled() else made.exception()
        for at, change in enumerate(changes):
            if change.thing is not None:
                # Also when the caller has been cancelled meanwhile: the change has been made.
                self._report(*change.thing)
            if made.cancelled() or failure is not None:
                change.fail(InternalError(f"changing {self._uri} failed: {failure!r}"), failure)
            else:
                change.settle(made.result()[at])
        self._make_waiting()

    async def _run[T](self, operation: Callable[[], T]) -> T:
        self._check_open()
        return await self._in_thread(operation)

    async def _run_first[T](self, operation: Callable[[], T]) -> T:
        """As :meth:`_run`, before all that waits for the thread: leases must not run out because a thousand logs are
        created."""
        self._check_open()
        made: Future[T] = Future()
        self._urgent.append((operation, made))
        self._in_thread(_nothing)
        return await asyncio.wrap_future(made)

    def _in_thread[T](self, operation: Callable[[], T]) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._executor, self._do, operation)

    def _do[T](self, operation: Callable[[], T]) -> T:
        """In the thread: what is urgent, then the operation."""
        while self._urgent:
            urgent, made = self._urgent.popleft()
            if made.set_running_or_notify_cancel():
                try:
                    made.set_result(urgent())
                except BaseException as error:
                    made.set_exception(error)
        return operation()

    def _check_open(self) -> None:
        if self._closed:
            forks.check_process(self._loop)
            raise ClientClosedError("the metadata store has been closed")

    def _report(self, kind: Kind | None, key: str | None) -> None:
        if self._listener is not None:
            self._listener(kind, key)


def _nothing() -> None:
    """An operation that only lets the thread do what is urgent."""


async def open_sqlite_store(
    path: Path,
    *,
    create: bool = False,
    lease_seconds: float = LEASE_SECONDS_DEFAULT,
    busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
    poll_seconds: float = POLL_SECONDS,
    clock: Callable[[], float] = boot_time_seconds,
    boot_id: str | None = None,
    rng: random.Random | None = None,
    origin: ClusterOrigin | None = None,
) -> MetadataStore:
    """A handle on the store in the file ``path``; with ``create``, a missing store and its directories are created.
    A store that is created continues the cluster ``origin`` if there is one.

    ``clock`` gives boot time in seconds. Raises :class:`MetadataUnavailableError` when there is no store or it cannot
    be opened, :class:`MetadataError` when the file is not a store, damaged, or of a newer format. Both name the path.
    """
    check_lease_seconds(lease_seconds)
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-metadata")
    opening = executor.submit(
        lambda: Database(
            path,
            create=create,
            busy_timeout_seconds=busy_timeout_seconds,
            clock=clock,
            boot_id=read_boot_id() if boot_id is None else boot_id,
            origin=origin,
        )
    )
    try:
        database = await asyncio.shield(asyncio.wrap_future(opening))
    except asyncio.CancelledError:
        # Closed by the same thread, right after opening, even if the event loop ends before.
        executor.submit(_close_unwanted, opening)
        executor.shutdown(wait=False)
        raise
    except (OctavoError, OSError):
        executor.shutdown(wait=False)
        raise
    records = SqliteRecordStore(_uri_of(path), database, executor, poll_seconds)
    return MetadataStore(records, lease_seconds=lease_seconds, clock=clock, rng=rng or random.SystemRandom())


def path_of_uri(uri: str) -> Path:
    """The path in ``sqlite:///relative`` or ``sqlite:////absolute``. Raises :class:`InvalidArgumentError`."""
    path = uri.removeprefix("sqlite:///")
    if path == uri or not path or path.endswith("/") or "\0" in path:
        raise InvalidArgumentError(
            f"{uri!r} does not name a file: write sqlite:///relative/metadata.db or sqlite:////absolute/metadata.db"
        )
    if path == ":memory:":
        raise InvalidArgumentError(f"{uri!r}: the processes of a cluster share its metadata in a file; write its path")
    return Path(path)


def _uri_of(path: Path) -> str:
    return f"sqlite:///{path}"


def _close_unwanted(opening: Future[Database]) -> None:
    if opening.exception() is None:
        opening.result().close()
