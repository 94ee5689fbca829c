"""A log as readers see it, whatever its layout.

To readers a chain of ledgers is a row of *stretches*, and so is a stream: consecutive positions within one ledger,
whose entries one reader gives.
"""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from octavo.client.log.documents.key_window import KeyWindow
from octavo.client.read.reader import LedgerReader
from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.ids import ID_MAX, LedgerId


class Place(Protocol):
    """Where a position is, or will be: in a run of neighbouring positions that one reader gives."""

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger, or the stream."""

    @property
    def base(self) -> int:
        """The number that is added to an entry id to get its position. Below 0 for streams, whose ids are larger."""

    @property
    def stop(self) -> int | None:
        """The position after the run's last one; None while it may grow."""

    @property
    def term(self) -> int:
        """Of the leader that added the entries."""

    @property
    def made_at_ms(self) -> int:
        """When the ledger was made: no entry of it was sealed before."""


def last_of(place: Place) -> int:
    """The last position that the stretch has, or can ever have: ids of a stream's entries are larger than positions."""
    return ID_MAX + min(place.base, 0) if place.stop is None else place.stop - 1


class Reach(NamedTuple):
    """How far a writer of this handle has got in a ledger."""

    entries: int
    """Those that are acknowledged, from the first one on."""
    is_final: bool
    """It has written no more, and will not."""


class LogView(Protocol):
    """A log as one handle sees it: where positions are, how far the log can be read, and whether that has changed.

    Reading disturbs no leader (rule P3).
    """

    layout: str
    """Of the log, for people and programs."""
    keys: KeyWindow | None
    """The window within which the keys of entries are known; None: they have none (rule P21)."""
    closed: bool
    end: int
    """The position after the last that can be read, as this handle knows it. Never goes back, and is not below the
    first position."""
    changes: int
    """Rises with each change of what is known of the log's metadata."""

    @property
    def name(self) -> str:
        """The log's name."""

    @property
    def log_id(self) -> str:
        """Unique for ever."""

    @property
    def first_position(self) -> int:
        """The first position that can be read. Never goes back."""

    @property
    def term(self) -> int:
        """The highest term given to a leader; 0 before the first."""

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The positions that were given up and not truncated since, in order; each both inclusive."""

    @property
    def is_sealed(self) -> bool:
        """Whether nothing can be added any more, by any client."""

    async def read_metadata(self) -> None:
        """Read the metadata as they stand now. Raises :class:`NoSuchLogError`."""

    async def read_beginning(self) -> None:
        """Read where the log begins now: what truncation changes first. Raises :class:`NoSuchLogError`."""

    def begin_at(self, position: int) -> None:
        """This client has heard that the log begins there, or above."""

    async def learn_end(self) -> None:
        """Ask how far the log can be read now. Raises :class:`QuorumLostError` when none of the bookies that would know
        answers."""

    async def end_now(self, enough: int) -> int:
        """The end by the metadata and bookies of now, which may be below :attr:`end`: an operator may have accepted the
        loss of entries that this handle remembers (rule O4). Where the metadata tell of ``enough``, no bookie is asked.
        Raises as :meth:`read_metadata` and :meth:`learn_end`."""

    def saw_end(self, end: int) -> None:
        """Everything below ``end`` can be read."""

    def watch(self) -> None:
        """Keep the metadata fresh from now on."""

    async def wait_change(self, seen: int) -> None:
        """Return once :attr:`changes` is not ``seen``. Raises why the metadata are not watched any more:
        :class:`NoSuchLogError` when the log is deleted."""

    async def close(self) -> None:
        """End the watch and the readers."""

    def check_loop(self) -> None:
        """Raise :class:`InvalidArgumentError` in another event loop."""

    def check_open(self) -> None:
        """Raise :class:`ClientClosedError` once the handle is closed."""

    def check_truncated(self, position: int) -> None:
        """Raise :class:`TruncatedError` for a position before the beginning."""

    def gap_at(self, position: int) -> tuple[int, int] | None:
        """The positions around this one that were given up, both inclusive; None where it was not."""

    async def locate(self, position: int) -> Place | None:
        """Where ``position`` is or will be, as far as the metadata tell; None when they do not tell yet. Raises
        :class:`NoSuchLedgerError` where what held it is gone."""

    def reading(self, place: Place) -> AbstractAsyncContextManager[LedgerReader]:
        """A reader of the stretch, which disturbs no writer. It may be shared. Raises :class:`NoSuchLedgerError`."""

    async def explain_missing(self, position: int, error: NoSuchLedgerError) -> None:
        """The ledger or page that held ``position`` is gone. Return if the metadata have changed, so that reading can
        go on or be refused. Raises :class:`LogDamagedError` if not, and :class:`NoSuchLogError`."""

    def sealed_bounds(self, wanted_ms: int) -> tuple[int, int]:
        """Two positions, as close as the metadata alone can tell: all entries below the first were sealed before this
        time, and the first one sealed then or later is not above the second."""

    async def end_of_term(self, term: int) -> int | None:
        """The position after the last entry of ``term``; None while the term is not over, or not known any more."""


async def end_of_new(view: LogView, enough: int) -> int:
    """Finds the end with a fresh view, then closes the view. Where the metadata show ``enough``, no bookie is asked.
    Raises as :meth:`LogView.learn_end`."""
    try:
        if view.end < enough:
            await view.learn_end()
        return view.end
    finally:
        await view.close()
