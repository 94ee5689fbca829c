"""Stores the cursors of a log for one client: reads and writes the document that all cursors of the log stand in.

All handles of a client on one log share a *keeper*, with one cell for each cursor (:mod:`.cursor_states`). A keeper
writes at most once in ``cursor_flush_seconds``, whatever number of its cursors have moved meanwhile. What could not be
stored is stored later, for as long as the client lives (rule P15): until it is, a consumer that crashes gets again what
it had already handled, and after a long time retention would take it for idle.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from octavo.client.log.cursors.reading import read_cursors_document
from octavo.client.log.cursors.states import CursorCell
from octavo.client.log.documents.cursors import CursorsDocument, CursorState, encode_cursors
from octavo.client.log.documents.names import cursors_document
from octavo.client.log.documents.reading import read_document
from octavo.client.same_loop import check_loop
from octavo.metadata.store.documents import DOCUMENT_BYTES_MAX
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import (
    ClientClosedError,
    CursorDeletedError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchLogError,
    OctavoError,
)

log = logging.getLogger("octavo.client")

CURSORS_BYTES_MAX: Final = DOCUMENT_BYTES_MAX * 7 // 8
"""Bytes of the document above which no cursor is made: those that there are need room for longer numbers."""

_ATTEMPTS_MAX: Final = 100

_CONFLICT_SECONDS: Final = 0.01
"""Longest pause after the first conflict with another process that stores cursors of the log: a few times what storing
them takes. It doubles with each conflict, so that hundreds of processes do not keep each other from storing anything.
"""

_CONFLICT_SECONDS_MAX: Final = 1.0

_RETRY_SECONDS_MIN: Final = 0.25
"""Longest pause after the first write that failed; it doubles with each further one."""

_RETRY_SECONDS_MAX: Final = 30.0
"""Longest pause between writes that fail: a store that comes back is not asked by all clients at once, and a consumer
is not taken for idle because of it, which takes days."""


class CursorKeeper:
    """See the module. Of one log and one client."""

    def __init__(
        self,
        store: MetadataStore,
        log_name: str,
        log_id: str,
        clock_ms: Callable[[], int],
        flush_seconds: float,
        *,
        uniform: Callable[[float, float], float],
        on_failure: Callable[[], object],
    ) -> None:
        """``uniform`` draws pauses. ``on_failure`` is called for each write that failed."""
        self._uniform = uniform
        self._store = store
        self._log_name = log_name
        self._log_id = log_id
        self._clock_ms = clock_ms
        self._flush_seconds = flush_seconds
        self._on_failure = on_failure
        self._cells: dict[str, CursorCell] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Until the next write in the background."""
        self._writing: asyncio.Task[None] | None = None
        """The write in the background that is under way."""
        self._failures = 0
        """Writes that failed since the last one that did not."""
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Lock()
        self._stopped = False

    @property
    def is_moved(self) -> bool:
        """Whether there is something to be stored."""
        return any(cell.is_moved for cell in self._cells.values())

    # --- what consumers ask -------------------------------------------------------------------------------------------

    async def open(self, name: str, beginning: Callable[[], Awaitable[int]]) -> CursorCell:
        """The cursor; one that does not exist is made, where the log begins: ``beginning`` asks the metadata for that.
        Raises :class:`InvalidArgumentError` when the log has as many cursors as there is room for,
        :class:`NoSuchLogError` when it has been deleted with its cursors."""
        self._check()
        async with self._turns:
            found, is_new = await self._made(name, beginning)
            if is_new:
                self._end(name, self._deleted(name))  # another client has deleted it since
            cell = self._cells.get(name)
            if cell is None:
                cell = self._cells[name] = CursorCell(name, found)
            cell.learn(found)
            return cell

    def advance(self, cell: CursorCell, position: int) -> None:
        """Note a new position, to be stored with the next write. Raises why the cursor has ended."""
        self._check()
        cell.advance(position, self._clock_ms())
        self._write_soon()

    def touch(self, cell: CursorCell) -> None:
        """Note that a consumer is alive, to be stored with the next write."""
        if not self._stopped:
            cell.touch(self._clock_ms())
            self._write_soon()

    async def flush(self) -> None:
        """Return once everything is stored that had moved before, by whatever write. Raises why it could not be, after
        which it is still tried in the background; :class:`NoSuchLogError` when the log has been deleted with its
        cursors."""
        check_loop(self._loop)
        await self._write_moved()

    async def delete(self, cell: CursorCell) -> None:
        """Forget the cursor; nothing happens when there is none. What was moved before is not stored any more."""
        self._check()
        self._end(cell.name, self._deleted(cell.name))
        cell.end(self._deleted(cell.name))
        async with self._turns:
            for attempt in range(_ATTEMPTS_MAX):
                known = await read_cursors_document(self._store, self._log_id)
                if known is None or cell.name not in known.value.cursors:
                    break
                kept = {name: state for name, state in known.value.cursors.items() if name != cell.name}
                if await self._put(known.value.with_cursors(kept), known.version):
                    break
                await self._pause(attempt)
            else:
                raise self._changed_in_a_loop()
            # One that was opened meanwhile found what is deleted by now.
            self._end(cell.name, self._deleted(cell.name))

    async def stop(self) -> None:
        """End. What is not stored by now is not stored any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait([self._writing])

    def _check(self) -> None:
        check_loop(self._loop)
        if self._stopped:
            raise ClientClosedError(f"log {self._log_name}: the handle or its client is closed")

    def _end(self, name: str, failure: OctavoError) -> None:
        cell = self._cells.pop(name, None)
        if cell is not None:
            cell.end(failure)

    # --- in the background --------------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        """Write when it is time, if something has moved. A timer begins the write: a program that cancels all tasks of
        its loop ends a write, and not those after it."""
        if self._timer is None and self._writing is None and not self._stopped and self.is_moved:
            self._timer = self._loop.call_later(self._pause_before_write(), self._begin_write)

    def _pause_before_write(self) -> float:
        if not self._failures:
            return self._flush_seconds
        longest = min(_RETRY_SECONDS_MIN * 2.0 ** min(self._failures, 16), _RETRY_SECONDS_MAX)
        return max(self._flush_seconds, self._uniform(longest / 2, longest))

    def _begin_write(self) -> None:
        self._timer = None
        self._writing = self._loop.create_task(self._write_moved(), name="octavo cursors")
        self._writing.add_done_callback(self._written)

    def _written(self, writing: asyncio.Task[None]) -> None:
        self._writing = None
        if not writing.cancelled():
            # Told already, or to be told: by `flush`, and of a log that was deleted by each cursor.
            error = writing.exception()
            if error is not None and not isinstance(error, OctavoError):
                log.error("log %s: a defect of Octavo keeps cursors from being stored", self._log_name, exc_info=error)
        self._write_soon()

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _write_moved(self) -> None:
        """Store what has moved, after the write that is under way."""
        async with self._turns:
            taken = {cell: state for cell in self._cells.values() if (state := cell.take()) is not None}
            if not taken:
                return
            try:
                found = await self._stored({cell.name: state for cell, state in taken.items()})
            except NoSuchLogError as error:
                for cell in list(self._cells.values()):
                    self._end(cell.name, error)
                raise
            except BaseException as error:
                for cell in taken:
                    cell.not_stored()
                if isinstance(error, Exception):
                    self._note_failure(error)
                self._write_soon()
                raise
            self._note_success()
            for cell in taken:
                state = found.get(cell.name)
                if state is not None:
                    cell.stored(state)
                elif self._cells.get(cell.name) is cell:
                    self._end(cell.name, self._deleted(cell.name))

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._on_failure()
        if self._failures == 1:
            log.warning(
                "log %s: positions of cursors could not be stored, and it is tried again and again: %s",
                self._log_name,
                error,
            )

    def _note_success(self) -> None:
        if self._failures:
            log.info("log %s: positions of cursors are stored again", self._log_name)
        self._failures = 0

    async def _stored(self, moved: Mapping[str, CursorState]) -> Mapping[str, CursorState]:
        """Store these where that does not take them back. Gives what then stands there; a cursor that does not stand
        there was deleted, and is not made again."""
        for attempt in range(_ATTEMPTS_MAX):
            known = await read_cursors_document(self._store, self._log_id)
            if known is None:
                await read_document(self._store, self._log_name, log_id=self._log_id)
                return {}
            present = known.value.cursors
            raised = {name: present[name].raised_to(state) for name, state in moved.items() if name in present}
            merged = {**present, **raised}
            if merged == present or await self._put(known.value.with_cursors(merged), known.version):
                return merged
            await self._pause(attempt)
        raise self._changed_in_a_loop()

    async def _made(self, name: str, beginning: Callable[[], Awaitable[int]]) -> tuple[CursorState, bool]:
        """The cursor as it stands in the store, and whether it was made now. Not below the floor, which retention has
        written before it passes it (rule P20)."""
        for attempt in range(_ATTEMPTS_MAX):
            known = await read_cursors_document(self._store, self._log_id)
            document = CursorsDocument() if known is None else known.value
            if name in document.cursors:
                return document.cursors[name], False
            made = CursorState(max(await beginning(), document.floor), self._clock_ms())
            grown = document.with_cursors({**document.cursors, name: made})
            if len(encode_cursors(grown)) > CURSORS_BYTES_MAX:
                raise InvalidArgumentError(
                    f"log {self._log_name} has {len(document.cursors)} cursors, and there is no room for another one; "
                    f"delete those that no consumer uses any more (`octavo log cursors {self._log_name} --delete "
                    "CURSOR`)"
                )
            if await self._put(grown, None if known is None else known.version):
                return made, True
            await self._pause(attempt)
        raise self._changed_in_a_loop()

    async def _put(self, document: CursorsDocument, version: Version | None) -> bool:
        name = cursors_document(self._log_id)
        try:
            await self._store.put_document(name, encode_cursors(document), version)
        except MetadataConflictError:
            return False
        if version is None:
            await self._check_log(name)
        return True

    async def _check_log(self, document: str) -> None:
        """Take the document back if it was made after the log was deleted: no other client would. A deletion that
        begins after this look finds it."""
        try:
            await read_document(self._store, self._log_name, log_id=self._log_id)
        except NoSuchLogError:
            await self._store.delete_document(document)
            raise

    async def _pause(self, conflicts_before: int) -> None:
        longest = _CONFLICT_SECONDS * 2.0 ** min(conflicts_before, 16)
        await asyncio.sleep(self._uniform(0, min(longest, _CONFLICT_SECONDS_MAX)))

    def _changed_in_a_loop(self) -> MetadataConflictError:
        return MetadataConflictError(f"the cursors of log {self._log_name} are being changed in a loop")

    def _deleted(self, name: str) -> CursorDeletedError:
        return CursorDeletedError(
            f"cursor {name} of log {self._log_name} has been deleted; `log.cursor({name!r})` makes it again, at the "
            "beginning of the log"
        )


class CursorKeepers:
    """The keepers of one client, by log: handles on one log share one."""

    def __init__(self, made: Callable[[str, str], CursorKeeper]) -> None:
        """``made`` makes the keeper of a log, by name and id."""
        self._made = made
        self._keepers: dict[str, CursorKeeper] = {}
        self._users: dict[str, int] = {}

    def join(self, log_name: str, log_id: str) -> CursorKeeper:
        """The keeper of a log, for one more handle."""
        keeper = self._keepers.get(log_id)
        if keeper is None:
            keeper = self._keepers[log_id] = self._made(log_name, log_id)
        self._users[log_id] = self._users.get(log_id, 0) + 1
        return keeper

    async def leave(self, log_id: str) -> None:
        """A handle is closed: store what has moved. Raises why it could not be; then the keeper goes on trying."""
        self._users[log_id] -= 1
        keeper = self._keepers[log_id]
        try:
            await keeper.flush()
        finally:
            if not self._users.get(log_id) and not keeper.is_moved and self._keepers.get(log_id) is keeper:
                del self._keepers[log_id], self._users[log_id]
                await keeper.stop()

    async def flush_left(self) -> None:
        """Store what handles that are closed could not store. Raises why it cannot be stored now either."""
        for log_id, keeper in list(self._keepers.items()):
            if not self._users[log_id]:
                await keeper.flush()

    async def stop(self) -> None:
        """End, after all handles: the client is closed."""
        for keeper in self._keepers.values():
            await keeper.stop()
        self._keepers.clear()
        self._users.clear()
