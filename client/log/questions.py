"""The questions that a handle answers about adds: what became of one that failed, and where an entry with a key is."""

from collections.abc import Awaitable, Callable

from octavo.client.log.key_reader import KeyReader
from octavo.client.log.read.outcomes import count_added, doubt_of
from octavo.client.log.seam.view import LogView
from octavo.protocol.errors import OctavoError


class LogQuestions:
    """The methods of a log that are about adds of the past."""

    _view: LogView
    _keys: KeyReader
    read: Callable[[int, int], Awaitable[object]]
    refresh: Callable[[], Awaitable[int]]

    async def position_of(self, key: str) -> int | None:
        """The position of the entry that was added with this key; None where there is none.

        Of a log that was created with ``keys``, within its window, whichever client added the entry (rule P21). The
        first call reads the window, later ones what was added since. None also where the entry has been truncated, and
        while the add is under way.

        Examples:
            >>> async with client.create_log("bills", keys=octavo.KeyWindow()) as bills, bills.lead() as leader:
            ...     await leader.add(b"100 EUR", key="invoice-17")
            ...     await bills.position_of("invoice-17"), await bills.position_of("invoice-18")
            0
            (0, None)

        Raises:
            InvalidArgumentError: The log was created without ``keys``, or this can be no key.
            QuorumLostError: An entry of the window cannot be had from any bookie now.
        """
        self._view.check_open()
        return await self._keys.position_of(key, await self.refresh())

    async def outcome(self, error: OctavoError) -> bool | None:
        """Whether the add that failed with ``error`` is in the log.

        True; False, once no writer can add it any more, or its position was given up; None while that is not known
        (rule P6). Of an ``add_many``: whether all of it is; ``added()`` tells how much. May be asked of any handle of
        the log, in any client.

        Examples:
            >>> writer = await log.lead()
            >>> async with log.take_over():
            ...     try:
            ...         await writer.add(b"fourth")
            ...     except octavo.NotLeaderError as error:
            ...         await log.outcome(error)
            False
            >>> await writer.close()

        Raises:
            InvalidArgumentError: The error is not of an add to this log.
            LogDamagedError: Another ledger's entry is in its place; or, of an ``add_many``, the middle was given up.
            QuorumLostError: The entry at its position cannot be had from any bookie now.
        """
        added, doubt = await self.added(error), error.doubt
        if added is None or doubt is None:
            return None if added is None else False
        return added == doubt.sent + doubt.unsent

    async def added(self, error: OctavoError) -> int | None:
        """How many payloads of the add that failed with ``error`` are in the log, counted from its beginning.

        None while that is not known (rule P6). The others will not get there: add them again.

        Examples:
            >>> writer = await log.lead()
            >>> async with log.take_over():
            ...     try:
            ...         await writer.add_many([b"fourth", b"fifth"])
            ...     except octavo.NotLeaderError as error:
            ...         await log.added(error)
            0
            >>> await writer.close()

        Raises:
            InvalidArgumentError: The error is not of an add to this log.
            LogDamagedError: Another ledger's entry is in its place; or, of an ``add_many``, the middle was given up.
            QuorumLostError: The entry at its position cannot be had from any bookie now.
        """
        self._view.check_loop()
        doubt = doubt_of(error, self._view)
        return 0 if doubt is None else await count_added(self._view, doubt, self.read)
