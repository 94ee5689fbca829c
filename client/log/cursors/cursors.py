"""Cursors as consumers hold them: how far each consumer of a log has got, stored beside the log.

A cursor only ever moves forward, also when two processes move it at once: what stands in the store is the highest of
what was asked (rule P11). So after a crash a consumer may get again what it had already handled, and never misses
anything. Consumers of one client that open a cursor of one name share what is known of it.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal, overload

from octavo.client.arguments import check_position
from octavo.client.log.cursors.keeper import CursorKeeper
from octavo.client.log.cursors.states import CursorCell
from octavo.client.log.seam.entries import OnTruncated
from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from octavo.client.log.seam.entries import Gap, LogEntry


class Cursor:
    """A consumer's stored position in a log. Made by ``log.cursor(name)``.

    A cursor only ever moves forward, also when two processes move it at once (rule P11).

    Examples:
        >>> async for entry in cursor.follow():
        ...     await cursor.advance(entry.position + 1)
        ...     if entry.position == 2:
        ...         break
        >>> cursor.position
        3

    Raises:
        ClientClosedError: By every method, once the log's handle or the client is closed.
        NoSuchLogError: By every method, when the log has been deleted.
        CursorDeletedError: By every method, once it is known that the cursor has been deleted.
    """

    def __init__(
        self,
        cell: CursorCell,
        keeper: CursorKeeper,
        *,
        follow: "Callable[..., AsyncGenerator[Any]]",
        end: Callable[[], int],
        refresh: Callable[[], Awaitable[Any]],
        check_open: Callable[[], None],
        touch_seconds: float,
    ) -> None:
        self._cell = cell
        self._keeper = keeper
        self._follow = follow
        self._end = end
        self._refresh = refresh
        self._check_open = check_open
        self._touch_seconds = touch_seconds
        self._told = cell.position
        """The highest position that this object was told: it is not told a lower one."""

    def __repr__(self) -> str:
        return f"<octavo.Cursor {self.name} at {self.position}>"

    @property
    def name(self) -> str:
        """The cursor's name, unique in its log."""
        return self._cell.name

    @property
    def position(self) -> int:
        """The first position that is not handled yet, as this client knows it."""
        return self._cell.position

    @overload
    def follow(self, *, on_truncated: Literal["raise"] = "raise") -> "AsyncGenerator[LogEntry]": ...

    @overload
    def follow(self, *, on_truncated: OnTruncated) -> "AsyncGenerator[LogEntry | Gap]": ...

    def follow(self, *, on_truncated: OnTruncated = "raise") -> "AsyncGenerator[LogEntry | Gap]":
        """Follow the log from the cursor's position on; see ``Log.follow``. It does not move the cursor.

        Examples:
            >>> async for entry in cursor.follow():
            ...     print(entry.payload)
            ...     await cursor.advance(entry.position + 1)
            ...     if cursor.position == 3:
            ...         break
            b'first'
            b'second'
            b'third'

        Raises:
            TruncatedError: The log begins behind the cursor; with ``on_truncated="skip"`` a ``Gap`` is given
                instead.
            LogDamagedError: An entry is lost, or was given up; of the latter there is a ``Gap`` too.
            QuorumLostError: An entry cannot be had from any bookie now.
        """
        return self._follow_and_touch(on_truncated)

    async def _follow_and_touch(self, on_truncated: OnTruncated) -> "AsyncGenerator[LogEntry | Gap]":
        """A consumer that follows is not idle, however long it takes over an entry, and however long it waits for the
        next one before it advances."""
        touching = _Repeating(self._touch_seconds, lambda: self._keeper.touch(self._cell))
        try:
            async with aclosing(self._follow(first=self.position, on_truncated=on_truncated)) as entries:
                async for entry in entries:
                    yield entry
        finally:
            touching.stop()

    async def advance(self, position: int) -> None:
        """Everything below ``position`` has been handled.

        Stored within ``cursor_flush_seconds``, or when the log's handle is closed; ``flush()`` stores it now. What
        cannot be stored is stored later, as long as the client lives.

        Examples:
            >>> await cursor.advance(2)
            >>> cursor.position
            2

        Raises:
            InvalidArgumentError: That is a step back, or beyond the end of the log.
        """
        self._check_open()
        self._check_forward(position)
        if position > self._end():
            await self._refresh()
            self._check_open()
            self._check_forward(position)  # another task may have moved it on meanwhile
            if position > self._end():
                raise InvalidArgumentError(
                    f"cursor {self.name}: {position} is beyond the end of the log, {self._end()}"
                )
        self._keeper.advance(self._cell, position)
        self._told = position

    def _check_forward(self, position: int) -> None:
        check_position(position)
        if position < self._told:
            raise InvalidArgumentError(
                f"cursor {self.name} stands at {self._told} and does not go back to {position!r}"
            )

    async def flush(self) -> None:
        """Return once the position is stored.

        Examples:
            >>> await cursor.advance(2)
            >>> await cursor.flush()
            >>> (await log.cursors())["billing"].position
            2

        Raises:
            MetadataUnavailableError: It could not be stored; it is still tried in the background.
        """
        await self._keeper.flush()
        self._cell.check()

    async def delete(self) -> None:
        """Forget the cursor: no consumer of it is heard any more. Nothing happens when it is gone already.

        Examples:
            >>> await cursor.delete()
            >>> await log.cursors()
            {}
        """
        self._check_open()
        await self._keeper.delete(self._cell)


class _Repeating:
    """Calls something again and again, by a timer of the loop: a program that cancels all tasks does not end it."""

    def __init__(self, seconds: float, call: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._call = call
        self._timer = self._loop.call_later(seconds, self._due)

    def _due(self) -> None:
        self._timer = self._loop.call_later(self._seconds, self._due)
        self._call()

    def stop(self) -> None:
        """Call it no more."""
        self._timer.cancel()
