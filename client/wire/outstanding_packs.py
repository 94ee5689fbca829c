"""The packs of one connection that are sent and not answered in full: which of their requests wait for an outcome."""

from collections.abc import Callable, Sequence

from octavo.protocol.errors import OctavoError
from octavo.protocol.messages import Reply
from octavo.protocol.packs import USUAL

type Settle = tuple[Callable[[Reply | OctavoError], None], Reply | OctavoError]
"""What is to be called, and with which outcome."""

type Waiting = tuple[bytes, Callable[[Reply | OctavoError], None]]
"""The tail of a request, and what gets its outcome."""


class OutstandingPack:
    """One pack: the request at index ``i`` has the id ``first_id + i``. ``left``: how many have no outcome yet."""

    __slots__ = ("_waiting", "first_id", "left", "stop_id")

    def __init__(self, first_id: int, requests: Sequence[Waiting]) -> None:
        self.first_id = first_id
        self.stop_id = first_id + len(requests)
        self.left = len(requests)
        # The tails are not kept: a bookie that is slow would hold the memory of all that it was sent.
        self._waiting: list[tuple[Callable[[Reply | OctavoError], None], Reply] | None] = [
            (on_outcome, USUAL[tail[1]]) for tail, on_outcome in requests
        ]

    def succeeded(self, first_id: int, last_id: int) -> list[Settle]:
        """These requests have succeeded, those of them that still wait. All are of this pack."""
        if not self.left:
            return []  # handling an outcome has closed the wire
        start, stop = first_id - self.first_id, last_id + 1 - self.first_id
        settled: list[Settle] = [one for one in self._waiting[start:stop] if one is not None]
        self._waiting[start:stop] = [None] * (stop - start)
        self.left -= len(settled)
        return settled

    def refused(self, request_id: int, outcome: Reply | OctavoError) -> list[Settle]:
        """One request has an outcome of its own."""
        one = self._waiting[request_id - self.first_id]
        if one is None:
            return []
        self._waiting[request_id - self.first_id] = None
        self.left -= 1
        return [(one[0], outcome)]

    def failed(self, make_error: Callable[[], OctavoError]) -> list[Settle]:
        """None that still waits will be answered. One instance of the error for each: an exception collects the
        traceback of whatever raises it."""
        settled: list[Settle] = [(one[0], make_error()) for one in self._waiting if one is not None]
        self._waiting.clear()
        self.left = 0
        return settled


class OutstandingPacks:
    """All packs of a connection."""

    __slots__ = ("_packs",)

    def __init__(self) -> None:
        self._packs: dict[int, OutstandingPack] = {}
        """By first id, in the order in which they were sent."""

    def __len__(self) -> int:
        return len(self._packs)

    @property
    def requests(self) -> int:
        """Requests without an outcome."""
        return sum(pack.left for pack in self._packs.values())

    def add(self, pack: OutstandingPack) -> None:
        """The pack has been sent."""
        self._packs[pack.first_id] = pack

    def remove(self, first_id: int) -> OutstandingPack | None:
        """The pack is over. None if there is none that begins with this id."""
        return self._packs.pop(first_id, None)

    def of(self, request_id: int) -> OutstandingPack | None:
        """The pack with this request."""
        pack = self._packs.get(request_id)
        if pack is not None:
            return pack
        for pack in self._packs.values():
            if pack.first_id <= request_id < pack.stop_id:
                return pack
        return None

    def parts(self, first_id: int, last_id: int) -> list[tuple[OutstandingPack, int, int]]:
        """The packs with requests of this run, each with the first and last of them that are its own. Ids of packs that
        are over are left out: their requests have timed out."""
        pack = self._packs.get(first_id)
        if pack is not None and last_id < pack.stop_id:
            return [(pack, first_id, last_id)]
        return [
            (pack, max(first_id, pack.first_id), min(last_id, pack.stop_id - 1))
            for pack in list(self._packs.values())
            if pack.first_id <= last_id and first_id < pack.stop_id
        ]
