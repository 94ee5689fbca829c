"""When entries become durable, for a ledger with deferred sync (rule W10). With immediate sync there is nothing to ask:
what is acknowledged is durable.

An add returns when Qa bookies have accepted its entry: it is in their memory, and on its way to their disks. A force
returns when everything before it is durable. The writer keeps the entries that are not forced, and sends them again to
bookies that restart or take another's place. So an entry that has been accepted is lost only if the writer ends before
the entry is forced, and no bookie that recovery asks has kept it.

Room in the window is given back when an add is accepted, but not while more than ``unforced_bytes_max`` bytes are
unforced: adds beyond that wait for the force that is under way then.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from octavo.client.write.deferred.forces import Forces
from octavo.client.write.front.adds import EMPTY_DEQUE, reject
from octavo.protocol.errors import OctavoError


class DeferredSync:
    """See the module. What is said elsewhere of acknowledged adds holds for forced ones: ``last_add_confirmed`` and
    ``length`` count these only, and readers see no others. Closing forces first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._forces: Forces | None = None
        """None before the first entry."""
        self._on_room: Callable[[int, int], None]
        self._on_forced: Callable[[], None]
        self._room_owed_entries = 0
        """Entries that have been accepted and still take room in the window."""
        self._room_owed_bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = EMPTY_DEQUE
        """Last id that each caller of :meth:`wait_forced` waits for."""

    def new_part(self, *, on_room: Callable[[int, int], None], on_forced: Callable[[], None]) -> Forces:
        """The part that forces add to the replication that is set up now. ``on_room(entries, payload_bytes)`` is told
        what room is free, ``on_forced`` that the LAC has risen."""
        self._on_room, self._on_forced = on_room, on_forced
        self._forces = forces = Forces(self._forced)
        return forces

    def wait_forced(self, last: int) -> asyncio.Future[None]:
        """A future that is done once everything up to this id is durable. Call :meth:`force` then."""
        forced: asyncio.Future[None] = self._loop.create_future()
        if self._waiters is EMPTY_DEQUE:
            self._waiters = deque()
        self._waiters.append((last, forced))
        return forced

    def force(self) -> None:
        """Have everything pushed so far forced."""
        if self._forces is not None:
            self._forces.force()

    def pushed(self, first: int) -> None:
        """A frame was pushed, from this id on."""
        if self._waiters and self._waiters[-1][0] >= first:
            self.force()  # these adds waited for room when their force was asked for

    def accepted(self, entries: int, payload_bytes: int) -> None:
        """Entries have been accepted."""
        self._room_owed_entries += entries
        self._room_owed_bytes += payload_bytes
        self._give_room()

    def _forced(self, last: int) -> None:
        """The LAC has risen."""
        self._give_room()
        while self._waiters and self._waiters[0][0] <= last:
            forced = self._waiters.popleft()[1]
            if not forced.done():
                forced.set_result(None)
        self._on_forced()

    def _give_room(self) -> None:
        """Give back the room of accepted entries, unless too many bytes are unforced."""
        assert self._forces is not None, "only what was pushed is accepted"
        if self._room_owed_entries and not self._forces.pipeline.is_full:
            entries, payload_bytes = self._room_owed_entries, self._room_owed_bytes
            self._room_owed_entries = self._room_owed_bytes = 0
            self._on_room(entries, payload_bytes)

    def failed(self, error: OctavoError, *, in_doubt: bool) -> None:
        """The writer has failed: nothing more is forced."""
        waiters, self._waiters = self._waiters, EMPTY_DEQUE
        for _, forced in waiters:
            reject(forced, error, may_have_happened=in_doubt)
