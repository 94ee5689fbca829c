"""Room for unacknowledged adds, and the adds of the current turn of the event loop.

Two windows bound the adds of a writer that are not acknowledged, one by their number and one by their bytes. What finds
room is collected until the turn of the loop ends, and is then sent together. The writer of a ledger and the front of a
log's writer are such windows; each has a queue of its own kind for what finds no room.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from octavo.client.options import ClientOptions

type Futures = list[asyncio.Future[Any] | None]
"""One item per entry; None for an entry without a future of its own (all but the last of an ``add_many``)."""


class AddWindow:
    """See the module. A subclass sends what a turn has collected (:meth:`_end_turn`).

    ``add`` of a subclass has a path of its own for an add that finds room. The lines of :meth:`_put_into_window` are
    written out there, because no other path's cost counts for every single entry.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._create_future: Callable[[], asyncio.Future[Any]] = self._loop.create_future
        self._skips_queue = True
        """Whether an add that finds room may skip the queue: the queue is empty, and the writer takes adds as they
        come. Derived; checked for every add."""
        self._free_entries = options.window_entries
        self._free_bytes = options.window_bytes
        self._payloads: list[bytes] = []
        self._futures: Futures = []
        self._turn_scheduled = False

    def _end_turn(self) -> None:
        """Send the adds of this turn of the loop."""
        raise NotImplementedError

    def _has_room(self, size: int) -> bool:
        """Whether the windows have room. A payload larger than the whole window of bytes is let in when no other add is
        unacknowledged."""
        return self._free_entries > 0 and (
            size <= self._free_bytes or self._free_entries == self._options.window_entries
        )

    def _put_into_window(self, payload: bytes, future: asyncio.Future[Any] | None) -> None:
        """Add to the adds of this turn; the caller has checked that there is room."""
        self._free_entries -= 1
        self._free_bytes -= len(payload)
        self._payloads.append(payload)
        self._futures.append(future)
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._end_turn)
