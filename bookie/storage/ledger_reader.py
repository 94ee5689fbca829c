"""Answers questions about the ledgers of a bookie: their entries, their ids, and how far they are confirmed.

The state of a ledger decides first (deleted, in doubt, trimmed, its highest id); ``reads`` then looks the entries up.
"""

import asyncio
from collections.abc import Callable, Sequence

from octavo.bookie.storage.admission import Health
from octavo.bookie.storage.damage import ID_LAST
from octavo.bookie.storage.ledger_state import Follower, LedgerState
from octavo.bookie.storage.ledgers import LedgerTable, add_follower, add_waiter, is_known, is_over, remove_follower
from octavo.bookie.storage.reads import Amount, EntryReader, ReadResult
from octavo.bookie.storage.settings import LacView
from octavo.protocol.entries import header_of
from octavo.protocol.errors import BookieInDoubtError, BookieStorageError, NoSuchLedgerError
from octavo.protocol.held_entries import Holdings
from octavo.protocol.ids import LedgerId
from octavo.protocol.places import last_place, place


class LedgerReader:
    """All methods but :meth:`last_add_confirmed` raise :class:`NoSuchLedgerError` for a deleted ledger."""

    def __init__(self, ledgers: LedgerTable, entries: EntryReader, health: Health) -> None:
        self._ledgers = ledgers
        self._entries = entries
        self._health = health
        self.may_deny: Callable[[], bool] = _always
        """Whether anything may be called absent now (rule B10)."""

    async def read(
        self,
        ledger_id: LedgerId,
        first: int,
        last: int,
        *,
        stripe: tuple[int, Sequence[int]] = (1, (0,)),
        entries_max: int,
        bytes_max: int,
    ) -> ReadResult:
        """Entries of ``first..last`` whose id modulo ``stripe[0]`` is among ``stripe[1]``, up to either limit, but
        one at least if one is found. Ids that damage or an I/O error hides are unknown, never absent (rule R2), and
        so is every missing id of which a bookie in doubt is unsure (rules B4 and D2), that it has dropped (rule C8) or
        given up (rule C11), or that it has trimmed (rule U5)."""
        ledger = self._not_deleted(ledger_id)
        kept = max(first, ledger.first_kept)
        if kept > last:
            return ReadResult(first, last, [], [(first, last)])
        if ledger.dropped:
            unknown = [part for unsure in self._not_denied(ledger) for part in _common((kept, last), unsure)]
            result = ReadResult(kept, last, [], unknown)
        else:
            result = await self._entries.read(
                ledger_id, kept, last, highest=_highest(ledger), stripe=stripe,
                entries_max=entries_max, bytes_max=bytes_max,
                unsure=lambda: self._not_denied(self._not_deleted(ledger_id)),
            )  # fmt: skip
        return _read_from(result, first, self.first_kept(ledger_id))

    async def list_entries(
        self, ledger_id: LedgerId, first: int = 0, last: int = ID_LAST, *, ranges_max: int | None = None
    ) -> list[tuple[int, int]]:
        """The ids of ``first..last`` that are held, as intervals; with ``ranges_max``, not all if there are more than
        that. Raises :class:`BookieStorageError` where damage hides
        them, and for ids that have been trimmed; :class:`BookieInDoubtError` for a ledger in doubt. The ids left out
        would be negatives."""
        ledger = self._not_deleted(ledger_id)
        self._check_lists(ledger, first)
        highest = _highest(ledger)
        found: list[tuple[int, int]] = []
        if highest is not None:
            found = await self._entries.ranges(ledger_id, first, min(last, highest), ranges_max=ranges_max)
        self._check_lists(self._not_deleted(ledger_id), first)  # something may have been given up meanwhile
        first_kept = self.first_kept(ledger_id)
        if first < first_kept:
            raise BookieStorageError(
                f"ledger {ledger_id}: this bookie has trimmed the entries below {first_kept}, and cannot list those "
                "that it held",
                may_have_happened=False,
            )
        return found

    def _check_lists(self, ledger: LedgerState, first: int) -> None:
        """Raises :class:`BookieInDoubtError` if a list from ``first`` on would deny what the bookie must not deny."""
        if first < ledger.relieved_below:
            raise BookieInDoubtError(
                f"ledger {ledger.ledger_id}: this bookie has given up entries below {ledger.relieved_below} that other "
                "bookies hold, so it cannot list those it holds",
                may_have_happened=False,
            )
        if not self.may_deny() or self._unsure(ledger) is not None:
            raise BookieInDoubtError(
                f"ledger {ledger.ledger_id}: this bookie may have lost entries of it, so it cannot list those it holds",
                may_have_happened=False,
            )

    async def missing(
        self, ledger_id: LedgerId, first: int, last: int, *, stripe: tuple[int, Sequence[int]] = (1, (0,))
    ) -> Holdings:
        """Which ids of ``first..last`` in the stripe are not held, by the index; what may have been lost here, was
        dropped or was given up, is unknown (rules R2, D2, C8 and C11)."""
        holdings = await self.not_held(ledger_id, first, last, stripe=stripe)
        for unsure in self._not_denied(self._not_deleted(ledger_id)):
            holdings = _with_doubt(holdings, *unsure)
        return holdings

    async def not_held(
        self, ledger_id: LedgerId, first: int, last: int, *, stripe: tuple[int, Sequence[int]] = (1, (0,))
    ) -> Holdings:
        """As :meth:`missing`, for the bookie itself: what is not held is missing, whatever the reason; but for what has
        been trimmed, of which nothing is missing (rule U5)."""
        ledger = self._not_deleted(ledger_id)
        kept = max(first, ledger.first_kept)
        if kept > last:
            return Holdings(last, (), ())
        holdings = await self._entries.missing(ledger_id, kept, last, highest=_highest(ledger), stripe=stripe)
        return _holdings_from(holdings, self.first_kept(ledger_id))

    async def verified(
        self, ledger_id: LedgerId, first: int, last: int, *, stripe: tuple[int, Sequence[int]] = (1, (0,))
    ) -> Holdings:
        """As :meth:`not_held`, but every entry is read back, and one that does not verify is unknown (rule C3). Covers
        a few MiB at a time."""
        ledger = self._not_deleted(ledger_id)
        kept = max(first, ledger.first_kept)
        if kept > last:
            return Holdings(last, (), ())
        holdings = await self._entries.verified(ledger_id, kept, last, highest=_highest(ledger), stripe=stripe)
        return _holdings_from(holdings, self.first_kept(ledger_id))

    async def holds_any(self, ledger_id: LedgerId, first: int, last: int) -> bool:
        """Whether one of these ids may be held, by the index."""
        ledger = self._not_deleted(ledger_id)
        highest = _highest(ledger)
        first = max(first, ledger.first_kept)
        return highest is not None and first <= highest and await self._entries.holds_any(ledger_id, first, last)

    async def amount_below(self, ledger_id: LedgerId, stop: int) -> Amount:
        """How much a trim to ``stop`` would leave nothing of: what is held below it and was not trimmed before."""
        return await self._entries.amount(ledger_id, self.first_kept(ledger_id), stop - 1)

    def first_kept(self, ledger_id: LedgerId) -> int:
        """The first id of which the bookie has trimmed nothing (rule U5). As it is now: since a look-up began, the
        ledger may have been trimmed, and what lies below removed."""
        return self._ledgers.get(ledger_id).first_kept

    def last_add_confirmed(self, ledger_id: LedgerId, term: int = 0) -> LacView:
        """The known end of the ledger, from entries and explicit LACs; *fenced* if ``term`` is over (rule T7),
        *in doubt* if something of it may have been lost here (rule T12)."""
        ledger = self._ledgers.get(ledger_id)
        unsure = self._unsure(ledger)
        in_doubt = unsure is not None and (term == 0 or place(term, 0) <= unsure[1])
        return LacView(
            is_known(ledger), is_over(ledger, term), ledger.last_add_confirmed, ledger.explicit_lac, in_doubt
        )

    async def last_add_confirmed_entry(self, ledger_id: LedgerId) -> bytes | None:
        """The sealed entry that vouches for the highest LAC: the intact one with the highest id. None when none is
        held."""
        ledger = self._not_deleted(ledger_id)
        return await self._entries.highest_entry(ledger_id, _highest(ledger), lowest=ledger.first_kept)

    def wait_lac(self, ledger_id: LedgerId, above: int | None, term: int = 0) -> asyncio.Future[None]:
        """Done once a LAC above ``above`` is known or ``term`` is over (rule T7); cancel it to stop waiting. Raises as
        :meth:`Health.check_usable`."""
        self._health.check_usable()
        return add_waiter(self._not_deleted(ledger_id), above, term)

    def follow(self, ledger_id: LedgerId, follower: Follower) -> None:
        """Tell the follower of each change from now on, until :meth:`unfollow`."""
        add_follower(self._not_deleted(ledger_id), follower)

    def unfollow(self, ledger_id: LedgerId, follower: Follower) -> None:
        """Tell it no more. For a deleted ledger, too."""
        remove_follower(self._ledgers.get(ledger_id), follower)

    def highest(self, ledger_id: LedgerId, term: int) -> int | None:
        """No entry that is held has a higher id, none of ``term`` where it is above 0; None when there is none."""
        highest = _highest(self._not_deleted(ledger_id))
        return highest if highest is None or not term else min(highest, last_place(term))

    def latest(
        self, ledger_id: LedgerId, first: int, last: int, *, entries_max: int, bytes_max: int
    ) -> list[bytes] | None:
        """Entries from ``first`` on, as many as fit, but one at least; None unless all of ``first..last`` are in
        memory. The usual case of a follower, without a step in the index."""
        if first < self._not_deleted(ledger_id).first_kept:
            return None
        return self._entries.latest(ledger_id, first, last, entries_max=entries_max, bytes_max=bytes_max)

    def private_key(self, ledger_id: LedgerId) -> tuple[bool, bytes | None]:
        """Whether the ledger is private, and the key pinned here, which its reads need then; None: none is pinned, as
        all that is held was copied from other bookies (rule S3). Raises :class:`NoSuchLedgerError`."""
        ledger = self._not_deleted(ledger_id)
        return ledger.private, ledger.ledger_key

    def privacy_is_lost(self, ledger_id: LedgerId) -> bool:
        """Whether the metadata must be asked whether the ledger is private (rule S3). Raises
        :class:`NoSuchLedgerError`."""
        return self._ledgers.privacy_is_lost(self._not_deleted(ledger_id))

    def _not_denied(self, ledger: LedgerState) -> list[tuple[int, int]]:
        """The intervals of ids of which this bookie denies none, in order and apart: what it is unsure of, what it may
        have given up (rule C11), every id while it may deny none."""
        if not self.may_deny():
            return [(0, ID_LAST)]
        unsure, below = self._unsure(ledger), ledger.relieved_below
        if not below:
            return [] if unsure is None else [unsure]
        if unsure is None:
            return [(0, below - 1)]
        return [(0, max(below - 1, unsure[1]))] if unsure[0] <= below else [(0, below - 1), unsure]

    def _unsure(self, ledger: LedgerState) -> tuple[int, int] | None:
        """The interval of ids of which this bookie denies none, because it may have held them (rules D2 and C8); None:
        it may deny every id. It has never held an id above the highest of what it has dropped."""
        unsure_from = self._ledgers.unsure_from(ledger)
        if not ledger.dropped:
            last = self._ledgers.last_unsure(ledger)
            return None if unsure_from is None or unsure_from > last else (unsure_from, last)
        if unsure_from is not None:
            return 0, ID_LAST
        return None if ledger.highest is None else (0, ledger.highest)

    def _not_deleted(self, ledger_id: LedgerId) -> LedgerState:
        ledger = self._ledgers.get(ledger_id)
        if ledger.deleted:
            raise _deleted(ledger_id)
        return ledger


def _always() -> bool:
    return True


def _highest(ledger: LedgerState) -> int | None:
    """No entry that may be read has a higher id; None when there is none: also where all have been dropped."""
    return None if ledger.dropped else ledger.highest


def _read_from(result: ReadResult, first: int, first_kept: int) -> ReadResult:
    """The same, as the answer for the ids from ``first`` on, of which those below ``first_kept`` are unknown: some of
    them may not have been looked up, and some have been removed meanwhile."""
    if first >= first_kept:
        return result
    trimmed = (first, min(first_kept - 1, result.last_covered))
    entries = [sealed for sealed in result.entries if header_of(sealed).entry_id >= first_kept]
    unknown = [part for interval in result.unknown for part in _common(interval, (first_kept, ID_LAST))]
    return ReadResult(first, result.last_covered, entries, [trimmed, *unknown])


def _holdings_from(holdings: Holdings, first_kept: int) -> Holdings:
    """The same without what has been trimmed. The last id covered stays: nothing is missing up to it."""
    kept = (first_kept, ID_LAST)
    missing, unknown = (
        tuple(part for interval in runs for part in _common(interval, kept))
        for runs in (holdings.missing, holdings.unknown)
    )
    return Holdings(holdings.last_covered, missing, unknown)


def _with_doubt(holdings: Holdings, first_unsure: int, last_unsure: int) -> Holdings:
    """The same, with what is missing of these ids as unknown."""
    missing: list[tuple[int, int]] = []
    doubtful: list[tuple[int, int]] = []
    for interval in holdings.missing:
        missing += [*_common(interval, (0, first_unsure - 1)), *_common(interval, (last_unsure + 1, ID_LAST))]
        doubtful += _common(interval, (first_unsure, last_unsure))
    return Holdings(holdings.last_covered, tuple(missing), tuple(sorted([*holdings.unknown, *doubtful])))


def _common(one: tuple[int, int], other: tuple[int, int]) -> list[tuple[int, int]]:
    """The common part of two intervals: an interval, or nothing."""
    low, high = max(one[0], other[0]), min(one[1], other[1])
    return [(low, high)] if low <= high else []


def _deleted(ledger_id: LedgerId) -> NoSuchLedgerError:
    return NoSuchLedgerError(f"ledger {ledger_id} has been deleted", may_have_happened=False)
