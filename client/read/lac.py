"""Asks bookies for the last add confirmed of a ledger without disturbing its writer (rule R3).

Bookies are believed only what the writer sealed: an explicit LAC, or an entry with the LAC in its header.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from octavo.client.read.range_read import ReplicaReader
from octavo.metadata.ledger.term import Term
from octavo.protocol.entries import Entry, Opener
from octavo.protocol.errors import (
    BookieUnavailableError,
    DigestMismatchError,
    OctavoError,
    QuorumLostError,
    TasksCancelledError,
    UnauthorizedError,
)
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.limits import FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.messages import LacAnswer, ReadFlag, ReadLac
from octavo.protocol.quorums import Quorums


class Polled(NamedTuple):
    """The result of one long poll."""

    lac_advanced: bool
    """The bookie knows a LAC above the one asked about."""
    fenced: bool
    """The ledger is being recovered, or has been; the metadata say more. So it is when the bookie knows of a later
    term (rule V1)."""
    entries: list[Entry]
    """The first entries above the one asked about, verified, ids consecutive; empty if they were not asked for or are
    not held there."""


class LacFacts(Protocol):
    """Is told what was learnt of a ledger: a reader's view, or a feed for all of its readers."""

    @property
    def term(self) -> Term:
        """The term by the latest metadata seen."""

    def counts(self, last_add_confirmed: int | None) -> bool:
        """Whether this LAC says anything of what can be read here (rule V1)."""

    def is_of_later_term(self, last_add_confirmed: int | None) -> bool:
        """Whether this LAC tells that the term is over, or never counted (rule V1)."""

    def on_entries(self, entries: Sequence[Entry]) -> bool:
        """Verified entries arrived, ids ascending. Gives whether the LAC moved."""

    def on_last_add_confirmed(self, last_add_confirmed: EntryId | None, length: int | None) -> bool:
        """A verified LAC arrived, with the length up to there if it is known. Gives whether the LAC moved."""


class LacAsker:
    """Asks for one ledger, and tells its view what was learnt. ``on_change`` is called when the LAC moved."""

    def __init__(
        self,
        *,
        replicas: ReplicaReader,
        opener: Opener,
        view: LacFacts,
        quorums: Quorums,
        on_change: Callable[[], None],
    ) -> None:
        self._replicas = replicas
        self._opener = opener
        self._view = view
        self._quorums = quorums
        self._on_change = on_change
        self.heard_of_later_term = False
        """A bookie has told a LAC of a later term: the metadata must be read again (rule V1)."""

    async def ask_ensemble(self) -> None:
        """Ask every bookie of the last fragment; return once the answers cover every write set or no bookie is left
        to ask.

        Raises :class:`QuorumLostError`, naming each bookie and its answer, if no bookie answered. With fewer answers
        than coverage the LAC may be lower than another reader's, and is still one: entries up to it are acknowledged.
        """
        bookies = self._view.term.bookies
        failures: dict[BookieId, str] = {}
        answered_mask = 0
        tasks: list[asyncio.Task[None]] = []
        denials: list[bool] = []
        cancelled: list[TasksCancelledError] = []

        async def ask_one(position: int) -> None:
            nonlocal answered_mask
            try:
                await self.ask(bookies[position])
            except OctavoError as error:
                if isinstance(error, TasksCancelledError):  # as of every bookie
                    cancelled.append(error)
                failures[bookies[position]] = error.message or type(error).__name__
                denials.append(isinstance(error, UnauthorizedError))
                self._replicas.blame.blame(bookies[position])
                return
            answered_mask |= 1 << position
            if self._quorums.covers_every_write_set(answered_mask):
                for task in tasks:
                    task.cancel()

        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(ask_one(position)) for position in range(len(bookies)))
        if cancelled and not answered_mask:
            raise cancelled[0]
        if not answered_mask:
            answers = "; ".join(f"bookie {bookie_id}: {failures.get(bookie_id, 'no answer')}" for bookie_id in bookies)
            kind = UnauthorizedError if denials and all(denials) else QuorumLostError
            raise kind(
                f"ledger {self._view.term.ledger_id}: none of its bookies tells the last add confirmed: {answers}",
                may_have_happened=False,
            )

    async def ask(self, bookie_id: BookieId) -> None:
        """Ask one bookie what it knows now. Raises :class:`OctavoError`."""
        answer = await self._request(bookie_id, above=None, wait_seconds=0.0, entries_max=0)
        if self._absorb(answer, bookie_id)[1]:
            self._on_change()

    async def poll(self, bookie_id: BookieId, *, above: int, wait_seconds: float, entries_max: int) -> Polled:
        """Let one bookie answer once it knows a LAC over ``above`` (-1 for none), or the ledger is fenced, or the time
        is over; with up to ``entries_max`` entries from ``above + 1`` on.

        The view learns of it at once, ``on_change`` is left to the caller. Raises :class:`OctavoError`.
        """
        answer = await self._request(bookie_id, above=above, wait_seconds=wait_seconds, entries_max=entries_max)
        entries: list[Entry] = []
        if answer.entries:
            entries = _from_on(self._replicas.open_entries(answer.entries)[0], above + 1)
        self.heard_of_later_term = False
        highest, _ = self._absorb(answer, bookie_id)
        return Polled(highest > above, answer.fenced or self.heard_of_later_term, entries)

    async def _request(
        self, bookie_id: BookieId, *, above: int | None, wait_seconds: float, entries_max: int
    ) -> LacAnswer:
        options = self._replicas.options
        request = ReadLac(
            self._view.term.ledger_id,
            self._replicas.read_key,
            ReadFlag.NONE,
            self._view.term.number,
            None if above is None or above < 0 else above,
            int(wait_seconds * 1000),
            entries_max,
            FRAME_PAYLOAD_BYTES_TARGET if entries_max else 0,
        )
        connection = self._replicas.pool.get(bookie_id)
        answer = await connection.request(request, timeout_seconds=wait_seconds + options.request_timeout_seconds)
        if not isinstance(answer, LacAnswer):
            raise BookieUnavailableError(
                f"bookie {bookie_id} answered {type(answer).__name__} to a question for its LAC"
            )
        return answer

    def _absorb(self, answer: LacAnswer, bookie_id: BookieId) -> tuple[int, bool]:
        """Tell the view what the answer vouches for; gives the highest LAC in it, -1 for none, and whether the view's
        has moved."""
        highest = -1
        moved = False
        try:
            if answer.explicit is not None:
                confirmed, length = self._opener.open_last_add_confirmed(answer.explicit)
                moved |= self._view.on_last_add_confirmed(confirmed, length)
                highest = max(highest, self._counted(confirmed))
            if answer.entry is not None:
                entry = self._opener.open(answer.entry)
                moved |= self._view.on_entries([entry])
                highest = max(highest, self._counted(entry.last_add_confirmed))
        except DigestMismatchError:
            self._replicas.blame.blame(bookie_id)
        return highest, moved

    def _counted(self, last_add_confirmed: EntryId | None) -> int:
        """The LAC if it says anything of what is read, else -1."""
        if self._view.is_of_later_term(last_add_confirmed):
            self.heard_of_later_term = True
        if last_add_confirmed is None or not self._view.counts(last_add_confirmed):
            return -1
        return last_add_confirmed


def _from_on(entries: list[Entry], first: int) -> list[Entry]:
    """The consecutive entries that begin with ``first``."""
    if not entries or entries[0].entry_id != first:
        return []
    if entries[-1].entry_id - first == len(entries) - 1:
        return entries
    return [entry for at, entry in enumerate(entries) if entry.entry_id == first + at]
