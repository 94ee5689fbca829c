"""How a ledger with ``full_copies`` keeps its copies, as the core of its writer asks
(:class:`octavo.client.write.policies.Copies`): *recorded*, or *required* (rules G2 to G4).

Either kind with ``full_copies`` waits with closing until every entry has Qw copies. If they are *recorded*, for
``full_copies_patience_seconds``; what is missing then is written into the metadata with the end, as the debt of the
last fragment. If they are *required*, for as long as closing may take; then closing is refused
(:class:`UnderReplicatedError`), the ledger stays open, and the writer keeps what is missing and goes on sending it. The
room of an add is then given back when the entry has all of its copies, not when it is acknowledged.
"""

from collections.abc import Callable

from octavo.client.options import ClientOptions
from octavo.client.write.copies.copying import Copying
from octavo.client.write.part import Part
from octavo.client.write.policies import Lacking


class RecordedCopies:
    """A ledger that records which copies are missing. A roll and a renewal wait for nothing, because adds would; they
    record what is short."""

    hold_room = False

    def __init__(self, options: ClientOptions) -> None:
        self._patience_seconds = options.full_copies_patience_seconds
        self._copying: Copying | None = None
        """None before the first entry."""

    def new_part(self, *, on_room: Callable[[int, int], None]) -> Part:
        """As :meth:`Copies.new_part`. No room depends on the copies."""
        del on_room
        self._copying = copying = Copying(required=False, on_full=_ignore)
        return copying

    async def wait_before_end(self, seconds: float) -> None:
        """As :meth:`Copies.wait_before_end`: until all copies are made, if the patience allows it."""
        if self._copying is not None:
            await self._copying.wait_full(min(seconds, self._patience_seconds))

    def lacking(self) -> None:
        """As :meth:`Copies.lacking`: what is missing is recorded with the end."""

    def may_roll_above(self, first_entry_id: int) -> bool:
        """As :meth:`Copies.may_roll_above`: behind any."""
        del first_entry_id
        return True

    async def catch_up(self, patience_seconds: float) -> bool:
        """As :meth:`Copies.catch_up`: what is missing is recorded."""
        del patience_seconds
        return True

    def describe(self) -> str:
        """As :meth:`Copies.describe`."""
        return "" if self._copying is None else self._copying.describe_short()


class RequiredCopies:
    """A ledger that requires all copies. A roll begins at LAFR + 1. A renewal waits until everything that was sent has
    all of its copies."""

    hold_room = True

    def __init__(self) -> None:
        self._copying: Copying | None = None
        """None before the first entry."""

    def new_part(self, *, on_room: Callable[[int, int], None]) -> Part:
        """As :meth:`Copies.new_part`."""
        self._copying = copying = Copying(required=True, on_full=on_room)
        return copying

    async def wait_before_end(self, seconds: float) -> None:
        """As :meth:`Copies.wait_before_end`: until all copies are made."""
        if self._copying is not None:
            await self._copying.wait_full(seconds)

    def lacking(self) -> Lacking | None:
        """As :meth:`Copies.lacking`."""
        copying = self._copying
        if copying is None or copying.pipeline.is_full:
            return None
        return Lacking(copying.pipeline.first_not_full, copying.describe_short())

    def may_roll_above(self, first_entry_id: int) -> bool:
        """As :meth:`Copies.may_roll_above`: if it holds an entry that has all of its copies."""
        return self._copying is None or self._copying.pipeline.first_not_full > first_entry_id

    async def catch_up(self, patience_seconds: float) -> bool:
        """As :meth:`Copies.catch_up`: bookies that refuse the term for doubt are given what they lack."""
        copying = self._copying
        if copying is None or copying.pipeline.is_full:
            return True
        await copying.copy_to_doubtful()
        return await copying.wait_full(patience_seconds)

    def describe(self) -> str:
        """As :meth:`Copies.describe`."""
        return "" if self._copying is None else self._copying.describe_short()


def _ignore(_entries: int, _payload_bytes: int) -> None:
    """Nothing waits for copies."""
