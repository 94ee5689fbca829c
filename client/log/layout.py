"""The common interface of the two layouts of a log: the seam between the face of a log and the way it is stored.

A log is a *chain* of ledgers (:mod:`octavo.client.log.chain.layout`), or a *stream*
(:mod:`octavo.client.log.stream.layout`). The face, :class:`octavo.client.log.log.Log`, is written against
:class:`LogLayout` and its :class:`~octavo.client.log.seam.view.LogView`, and asks nowhere which layout it has.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from octavo.client.log.documents.chain import Retention
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.seam.entries import Gap
from octavo.client.log.seam.status import SegmentStatus
from octavo.client.log.seam.view import LogView
from octavo.client.log.writer.lock import LogLock
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError
from octavo.protocol.quorums import Quorums

if TYPE_CHECKING:
    from octavo.client.log.writer.writer import LogWriter


class LayoutStatus(NamedTuple):
    """The part of a log's status that its layout gives."""

    layout: str
    retention: Retention
    drops_below: int
    segments: tuple[SegmentStatus, ...]
    paged_segments: int
    bytes: int
    idle_cursors: frozenset[str]
    gaps: tuple[tuple[int, int], ...]
    quorums: Quorums
    full_copies: str | None = None
    clocks: str = ""


class LogLayout(Protocol):
    """The operations of one handle on its log besides reading."""

    @property
    def view(self) -> LogView:
        """The view of the handle."""

    def get_ready(self) -> None:
        """Load what taking over needs. Done before a candidate waits: when its turn comes, nothing is to be loaded."""

    async def take_over(self, lease: LogLock | None, on_close: Callable[["LogWriter"], object]) -> "LogWriter":
        """Take the log over at once, and give its writer, which holds ``lease``, if any, and calls ``on_close`` when it
        is closed. Raises as ``Log.lead``, and :class:`LeaseLostError` where the lease ended before it led: then another
        client that leads has not been disturbed (rule P3)."""

    async def truncate(self, before: int) -> None:
        """Remove the entries below ``before``. Not by the end that the handle remembers: an operator may have accepted
        the loss of what lies before it, and a leader may add there now. Raises as ``Log.truncate``."""

    async def retain(self) -> None:
        """Apply the retention now."""

    async def set_retention(self, retention: Retention) -> None:
        """Change what retention drops."""

    async def would_drop(self, retention: Retention) -> int:
        """The position below which this retention would let entries go now. Ages are counted as for the log's own."""

    async def seal(self) -> None:
        """Let no client add anything any more. Raises :class:`InvalidArgumentError` for a chain."""

    async def give_up(self, ledger_id: int, last: int | None) -> Gap:
        """Skip a part that was lost. Raises :class:`InvalidArgumentError`."""

    async def status(self, cursors: dict[str, CursorState]) -> LayoutStatus:
        """The status of the layout in the metadata; the view has read them just now."""


def check_not_beyond(name: str, before: int, end: int) -> None:
    """Raise :class:`InvalidArgumentError` for a truncation above the end."""
    if before > end:
        raise InvalidArgumentError(f"log {name}: {before} is beyond its end, {end}")


def changed_in_a_loop(name: str) -> MetadataConflictError:
    """The error of a client that can never finish what it is about."""
    return MetadataConflictError(f"log {name} is being changed in a loop", may_have_happened=False)
