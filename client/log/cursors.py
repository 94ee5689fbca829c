"""Cursors: how far each consumer of a log has got, stored beside the log.

All cursors of one log stand in one document. A handle writes at most once in ``cursor_flush_seconds``, whatever number
of its cursors have moved meanwhile, and once more when it is closed. A cursor only ever moves forward, by
compare-and-set, also when two processes move it at once: what stands there is the highest of what was asked (rule P11).
So after a crash a consumer may get again what it had already handled, and never misses anything.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from octavo.client.log.names import cursors_document
from octavo.client.log.update import read_document
from octavo.client.same_loop import check_loop
from octavo.metadata.encoding import FieldReader, decode_object, encode_object
from octavo.metadata.store import DOCUMENT_BYTES_MAX, MetadataStore, Version
from octavo.protocol.entries import EPOCH
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    MetadataConflictError,
    NoSuchLogError,
    OctavoError,
)

if TYPE_CHECKING:
    from octavo.client.log.entries import Gap, LogEntry

FORMAT: Final = 1

_BYTES_MAX: Final = DOCUMENT_BYTES_MAX * 7 // 8
"""Bytes of the document above which no cursor is made: those that there are need room for longer numbers."""

_ATTEMPTS_MAX: Final = 100

_CONFLICT_SECONDS: Final = 0.01
"""Longest pause after the first conflict with another process that stores cursors of the log: a few times what storing
them takes. It doubles with each conflict, so that hundreds of processes do not keep each other from storing anything.
"""

_CONFLICT_SECONDS_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class CursorState:
    """A cursor as it is stored."""

    position: int
    """The first position that the consumer has not handled."""
    touched_at_ms: int
    """When the consumer was last heard of, in milliseconds since 1970."""

    @property
    def touched_at(self) -> datetime:
        """When the consumer was last heard of."""
        return EPOCH + timedelta(milliseconds=self.touched_at_ms)


def encode_cursors(cursors: Mapping[str, CursorState]) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`)."""
    fields = {name: [cursor.position, cursor.touched_at_ms] for name, cursor in cursors.items()}
    return encode_object({"cursors": fields}, format_number=FORMAT)


def decode_cursors(value: bytes, what: str) -> dict[str, CursorState]:
    """The cursors by name. Raises :class:`MetadataError`."""
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    cursors: dict[str, CursorState] = {}
    for name, fields in reader.get("cursors", dict).items():
        if not (isinstance(fields, list) and len(fields) == 2 and all(type(n) is int and n >= 0 for n in fields)):
            raise reader.damaged(f"cursor {name} is not two numbers")
        cursors[name] = CursorState(*fields)
    return cursors


async def read_cursors(store: MetadataStore, log_id: str) -> dict[str, CursorState]:
    """All cursors of the log, by name."""
    found = await store.read_document(cursors_document(log_id))
    return {} if found is None else decode_cursors(found.value, f"cursors of log {log_id}")


class CursorKeeper:
    """The cursors of one log that one client moves."""

    def __init__(
        self,
        store: MetadataStore,
        log_name: str,
        log_id: str,
        clock_ms: Callable[[], int],
        flush_seconds: float,
        *,
        uniform: Callable[[float, float], float],
    ) -> None:
        """``uniform`` draws pauses."""
        self._uniform = uniform
        self._store = store
        self._log_name = log_name
        self._log_id = log_id
        self._clock_ms = clock_ms
        self._flush_seconds = flush_seconds
        self._moved: dict[str, CursorState] = {}
        """What is not stored yet."""
        self._flushing: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._turns = asyncio.Lock()
        self._closed = False
        self._failure: OctavoError | None = None

    async def open(self, name: str, first_position: int) -> CursorState:
        """The cursor as it is stored; a new one stands at the log's first position. Raises
        :class:`InvalidArgumentError` when the log has as many cursors as there is room for,
        :class:`NoSuchLogError` when it has been deleted with its cursors."""
        made = CursorState(first_position, self._clock_ms())
        stored = await self._update({name: made}, create_only=True)
        return stored[name]

    async def delete(self, name: str) -> None:
        """Forget the cursor; nothing happens when there is none."""
        check_loop(self._loop)
        self._moved.pop(name, None)
        async with self._turns:
            for attempt in range(_ATTEMPTS_MAX):
                cursors, version = await self._read()
                if version is None or name not in cursors:
                    return
                del cursors[name]
                if await self._write(cursors, version):
                    return
                await self._pause(attempt)
        raise self._changed_in_a_loop()

    def move(self, name: str, position: int) -> None:
        """Note a new position, to be stored with the next write."""
        check_loop(self._loop)
        if self._closed:
            raise ClientClosedError("the log's handle is closed")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._moved[name] = CursorState(position, self._clock_ms())
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush_later(), name="octavo cursors")

    def touch(self, name: str, position: int) -> None:
        """Note that the consumer at this position is alive. What an earlier write failed with stays for the next
        :meth:`move` to tell."""
        if self._failure is None:
            self.move(name, position)

    async def flush(self) -> None:
        """Store what has moved, now. Raises :class:`NoSuchLogError` when the log has been deleted with its cursors."""
        check_loop(self._loop)
        moved, self._moved = self._moved, {}
        if moved:
            try:
                await self._update(moved, create_only=False)
            except NoSuchLogError:
                raise
            except BaseException:
                # Not lost: the next write takes it along.
                self._moved = {**moved, **self._moved}
                raise

    async def close(self) -> None:
        """Store what has moved, and end. Raises why it could not be stored."""
        self._closed = True
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.wait([self._flushing])
        await self.flush()

    async def _flush_later(self) -> None:
        try:
            await asyncio.sleep(self._flush_seconds)
            await self.flush()
        except OctavoError as error:
            self._failure = error
        finally:
            self._flushing = None
            if self._moved and not self._closed and self._failure is None:
                self._flushing = asyncio.get_running_loop().create_task(self._flush_later(), name="octavo cursors")

    async def _update(self, moved: Mapping[str, CursorState], *, create_only: bool) -> dict[str, CursorState]:
        async with self._turns:
            for attempt in range(_ATTEMPTS_MAX):
                cursors, version = await self._read()
                merged = dict(cursors)
                for name, cursor in moved.items():
                    present = cursors.get(name)
                    if present is None:
                        merged[name] = cursor
                    elif not create_only:
                        merged[name] = CursorState(
                            max(present.position, cursor.position), max(present.touched_at_ms, cursor.touched_at_ms)
                        )
                if create_only and len(merged) > len(cursors) and len(encode_cursors(merged)) > _BYTES_MAX:
                    raise InvalidArgumentError(
                        f"log {self._log_name} has {len(cursors)} cursors, and there is no room for another one; "
                        "delete those that no consumer uses any more (`octavo log cursors "
                        f"{self._log_name} --delete CURSOR`)"
                    )
                if merged == cursors or await self._write(merged, version):
                    return merged
                await self._pause(attempt)
        raise self._changed_in_a_loop()

    async def _pause(self, conflicts_before: int) -> None:
        longest = _CONFLICT_SECONDS * 2.0 ** min(conflicts_before, 16)
        await asyncio.sleep(self._uniform(0, min(longest, _CONFLICT_SECONDS_MAX)))

    def _changed_in_a_loop(self) -> MetadataConflictError:
        return MetadataConflictError(f"the cursors of log {self._log_name} are being changed in a loop")

    async def _read(self) -> tuple[dict[str, CursorState], Version | None]:
        found = await self._store.read_document(cursors_document(self._log_id))
        if found is None:
            return {}, None
        return decode_cursors(found.value, f"cursors of log {self._log_id}"), found.version

    async def _write(self, cursors: Mapping[str, CursorState], version: Version | None) -> bool:
        document = cursors_document(self._log_id)
        try:
            await self._store.put_document(document, encode_cursors(cursors), version)
        except MetadataConflictError:
            return False
        if version is None:
            await self._check_log(document)
        return True

    async def _check_log(self, document: str) -> None:
        """Take the document back if it was made after the log was deleted: no other client would. A deletion that
        begins after this look finds it."""
        try:
            await read_document(self._store, self._log_name, log_id=self._log_id)
        except NoSuchLogError:
            await self._store.delete_document(document)
            raise


class Cursor:
    """A consumer's stored position in a log. Made by ``log.cursor(name)``."""

    def __init__(
        self,
        name: str,
        state: CursorState,
        keeper: CursorKeeper,
        *,
        follow: "Callable[..., AsyncGenerator[Any]]",
        end: Callable[[], int],
        refresh: Callable[[], Awaitable[Any]],
        touch_seconds: float,
    ) -> None:
        self._name = name
        self._position = state.position
        self._keeper = keeper
        self._follow = follow
        self._end = end
        self._refresh = refresh
        self._touch_seconds = touch_seconds

    def __repr__(self) -> str:
        return f"<octavo.Cursor {self._name} at {self._position}>"

    @property
    def name(self) -> str:
        """The cursor's name, unique in its log."""
        return self._name

    @property
    def position(self) -> int:
        """The first position that is not handled yet, as this handle knows it."""
        return self._position

    def follow(self, *, on_truncated: str = "raise") -> "AsyncGenerator[LogEntry | Gap]":
        """Follow the log from the cursor's position on; see ``Log.follow``. It does not move the cursor."""
        return self._follow_and_touch(on_truncated)

    async def _follow_and_touch(self, on_truncated: str) -> "AsyncGenerator[LogEntry | Gap]":
        """A consumer that follows is not idle, however long it takes over an entry, and however long it waits for the
        next one before it advances."""
        touching = asyncio.get_running_loop().create_task(self._touch(), name=f"octavo cursor {self._name}")
        try:
            async with aclosing(self._follow(first=self._position, on_truncated=on_truncated)) as entries:
                async for entry in entries:
                    yield entry
        finally:
            touching.cancel()

    async def _touch(self) -> None:
        while True:
            await asyncio.sleep(self._touch_seconds)
            with contextlib.suppress(ClientClosedError):
                self._keeper.touch(self._name, self._position)

    async def advance(self, position: int) -> None:
        """Everything below ``position`` has been handled. Stored within ``cursor_flush_seconds``, or when the log's
        handle is closed; :meth:`flush` stores it now.

        Raises :class:`InvalidArgumentError` for a step back or beyond the end of the log; what an earlier write
        failed with, if it did.
        """
        if type(position) is not int or position < self._position:
            raise InvalidArgumentError(
                f"cursor {self._name} stands at {self._position} and does not go back to {position!r}"
            )
        if position > self._end():
            await self._refresh()
            if position > self._end():
                raise InvalidArgumentError(
                    f"cursor {self._name}: {position} is beyond the end of the log, {self._end()}"
                )
        self._keeper.move(self._name, position)
        self._position = position

    async def flush(self) -> None:
        """Return once the position is stored. Raises :class:`NoSuchLogError` when the log has been deleted."""
        await self._keeper.flush()

    async def delete(self) -> None:
        """Forget the cursor."""
        await self._keeper.delete(self._name)
