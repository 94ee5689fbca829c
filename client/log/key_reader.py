"""Reads the keys of a log from its entries: for the leader that begins, and for programs that ask (rule P21)."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from octavo.client.log.documents.key_window import KeyWindow, encoded_key
from octavo.client.log.keys.known_keys import KnownKeys
from octavo.client.log.read.iteration import EntryIteration
from octavo.client.log.seam.view import LogView
from octavo.protocol.errors import InvalidArgumentError, LogDamagedError, NoSuchEntryError, TruncatedError


class KeyReader:
    """See the module. Of one handle."""

    def __init__(self, view: LogView, iteration: EntryIteration, clock_ms: Callable[[], int]) -> None:
        self._view = view
        self._iteration = iteration
        self._clock_ms = clock_ms
        self._asked: KnownKeys | None = None
        """What was read for earlier questions."""
        self._turns = asyncio.Lock()

    async def for_leader(self, end: int) -> KnownKeys | None:
        """The keys of the log, which ends there, for its new leader; None if its entries have none."""
        window = self._view.keys
        if window is None:
            return None
        known = KnownKeys(window, end=0)
        await self._read(known, end)
        return known

    async def position_of(self, key: str, end: int) -> int | None:
        """The position below ``end`` of the entry with this key; None where the window has none."""
        encoded_key(key)
        window = self._checked_window()
        async with self._turns:
            known = self._asked = self._asked or KnownKeys(window, end=0)
            await self._read(known, end)
            found = known.find(key, self._clock_ms())
            if not isinstance(found, int) or found < self._view.first_position:
                return None
            if await self._key_at(found) == key:
                return found
            # What was read is not there any more: an operator has accepted a loss (rule O4).
            known = self._asked = KnownKeys(window, end=0)
            await self._read(known, await self._view.end_now(end))
            found = known.find(key, self._clock_ms())
            return found if isinstance(found, int) else None

    def _checked_window(self) -> KeyWindow:
        if self._view.keys is None:
            raise InvalidArgumentError(f"log {self._view.name} was created without keys: octavo.KeyWindow")
        return self._view.keys

    async def _read(self, known: KnownKeys, end: int) -> None:
        """Let ``known`` know the log up to ``end``: what it has not read, as far as the window goes back."""
        if end <= known.end:
            return
        read_until, first = known.end, max(known.end, end - self._checked_window().entries)
        while first < end:
            first = max(first, self._view.first_position)
            try:
                async with aclosing(self._iteration.entries(first, end - 1)) as entries:
                    async for entry in entries:
                        first = entry.position + 1
                        known.entry(entry.position, entry.key, entry.sealed_at_ms)
            except TruncatedError:
                assert self._view.first_position > first, "the view knows where the log begins now"
        assert known.end >= read_until, "the end does not go back"
        known.entries_until(end)

    async def _key_at(self, position: int) -> str | None:
        """The key of this entry; None if it is not there."""
        try:
            async with aclosing(self._iteration.entries(position, position)) as entries:
                async for entry in entries:
                    return entry.key
        except (TruncatedError, LogDamagedError, NoSuchEntryError):
            return None
        return None
