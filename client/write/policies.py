"""The questions of a writer's core about the kind of its ledger: how it keeps copies, and when entries are durable.

The answers are in :mod:`octavo.client.write.copies.policy` and :mod:`octavo.client.write.deferred.policy`. A ledger
without either has :data:`NO_COPIES`, and None for its sync: what is acknowledged is durable then.
"""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol

from octavo.client.write.part import Part
from octavo.protocol.errors import OctavoError


class Lacking(NamedTuple):
    """The entries that lack copies which are required."""

    first: int
    """The id of the first entry that lacks some; it is acknowledged, and so are those behind it that count."""
    why: str
    """Each bookie that lacks copies, and its last answer."""


class Copies(Protocol):
    """The questions that a writer asks of its copies. One object serves one writer, also across renewals."""

    hold_room: bool
    """True: room is free when an entry has all of its copies; False: when it is acknowledged."""

    def new_part(self, *, on_room: Callable[[int, int], None]) -> Part | None:
        """The part that copies add to the replication that is set up now. ``on_room(entries, payload_bytes)`` is told
        what room is free, where they hold it."""

    async def wait_before_end(self, seconds: float) -> None:
        """Before the end: wait for copies, for this time at most."""

    def lacking(self) -> Lacking | None:
        """At the close: the entries that the end must wait for. None: it may be written."""

    def may_roll_above(self, first_entry_id: int) -> bool:
        """At a roll: whether a fragment can begin behind the one that begins with this id."""

    async def catch_up(self, patience_seconds: float) -> bool:
        """Before a term ends: make copies, for this time at most; whether none is missing."""

    def describe(self) -> str:
        """Each bookie that lacks copies, for an error message."""


class NoCopies:
    """A ledger without ``full_copies``."""

    hold_room = False

    def new_part(self, *, on_room: Callable[[int, int], None]) -> None:
        """As :meth:`Copies.new_part`: nothing."""

    async def wait_before_end(self, seconds: float) -> None:
        """As :meth:`Copies.wait_before_end`: nothing."""

    def lacking(self) -> None:
        """As :meth:`Copies.lacking`: nothing."""

    def may_roll_above(self, first_entry_id: int) -> bool:
        """As :meth:`Copies.may_roll_above`: behind any."""
        del first_entry_id
        return True

    async def catch_up(self, patience_seconds: float) -> bool:
        """As :meth:`Copies.catch_up`: nothing is missing."""
        del patience_seconds
        return True

    def describe(self) -> str:
        """As :meth:`Copies.describe`: none."""
        return ""


NO_COPIES: Final = NoCopies()


class Deferred(Protocol):
    """The questions of a writer about deferred sync (rule W10). One object serves one writer."""

    def new_part(self, *, on_room: Callable[[int, int], None], on_forced: Callable[[], None]) -> Part:
        """The part that forces add to the replication that is set up now. ``on_room(entries, payload_bytes)`` is told
        what room is free, ``on_forced`` that the LAC has risen."""

    def wait_forced(self, last: int) -> Awaitable[None]:
        """Ends when everything up to this id is durable. Call :meth:`force` then."""

    def force(self) -> None:
        """Have everything pushed so far forced."""

    def pushed(self, first: int) -> None:
        """A frame was pushed, from this id on."""

    def accepted(self, entries: int, payload_bytes: int) -> None:
        """Entries have been accepted: their room is free as soon as it may be."""

    def failed(self, error: OctavoError, *, in_doubt: bool) -> None:
        """The writer has failed: nothing more is forced."""
