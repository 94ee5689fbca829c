"""Ends the doubt of this bookie, ledger by ledger, and mends damage that was found here (rules D3 to D5, O1 and T12).

A bookie in doubt works it off by itself: it reads the metadata of every ledger below its doubt, in a scan that begins
after the doubt did (rule D4), copies what it should hold, and then knows of which ids it is sure
(:mod:`octavo.repair.doubt.certainty`). What it cannot be sure of is kept as an exception with a reason, shown by
``octavo repair status``, and tried again later. Of a stream the same scan learns the term up to which the bookie is in
doubt.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import structlog
from octavo.metadata.ledger.stored import StoredKind
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.errors import (
    MetadataConflictError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
)
from octavo.protocol.held_entries import TERM_FLOORS_MAX, Doubt
from octavo.protocol.ids import LedgerId
from octavo.repair.base.documents import BLOCKED_MAX, blocked_name, encode_blocked
from octavo.repair.base.local_bookie import LocalBookie
from octavo.repair.base.planning import Blocked, BlockedClass
from octavo.repair.base.settings import RepairSettings
from octavo.repair.copy.jobs import Jobs
from octavo.repair.copy.puller import LOCAL_FAILURES
from octavo.repair.doubt.certainty import UNSURE_OF_ALL, first_unsure_id

log = structlog.get_logger("octavo.repair")

EXCEPTIONS_MAX: Final = 4096
"""Ledgers that may stay unsure one by one; the storage keeps no more of them."""

LEDGERS_AT_ONCE: Final = 64
"""Ledgers of a scan that are worked on at a time, and marked together: one write to the disk for all of them."""

DAMAGE_MAX: Final = 10_000
"""Damaged places remembered: more than that is a disk to be replaced, and the checks of the auditor find the rest."""

PAUSE_SECONDS: Final = 1.0
"""Pause after the metadata store or the own storage has failed."""


_REASONS: Final = {
    StoredKind.LEDGER: "{bookie} is in doubt and in the last fragment of a ledger that is {state}: the doubt ends when "
    "the ledger is closed or the bookie is replaced in it",
    StoredKind.STREAM: "{bookie} is in doubt about the current term of a stream that is {state}: the doubt ends with "
    "that term",
}
"""Why a bookie that holds all that it should stays in doubt."""


class _MayBeOlderError(Exception):
    """The metadata may be older than the data: nothing becomes sure by them."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Refill:
    """See the module."""

    def __init__(self, bookie: LocalBookie, jobs: Jobs, settings: RepairSettings) -> None:
        self._me = bookie.bookie_id
        self._check_metadata = bookie.check_metadata
        self._copies = bookie.copies
        self._store: MetadataStore = bookie.store
        self._jobs = jobs
        self._settings = settings
        self._damage: deque[tuple[LedgerId, int, int]] = deque(maxlen=DAMAGE_MAX)
        self._damaged = asyncio.Event()
        self._reasons: dict[LedgerId, Blocked] = {}
        self._unmended: dict[tuple[LedgerId, int, int], Blocked] = {}
        self._stored: tuple[Blocked, ...] | None = None
        """What the store holds; None: not known."""
        self._storing = asyncio.Lock()
        self._stored_version: Version | None = None
        self._term_floors: dict[LedgerId, int] = {}
        """Terms of streams, as this scan has read them."""
        self._again = asyncio.Event()
        self.waits_because: str | None = None
        """Why the metadata may be older than the data, while doubt waits for that to end (rule D5)."""
        bookie.copies.listen_for_damage(self._note_damage)

    def try_again(self) -> None:
        """Something has changed that may help: a bookie has registered."""
        self._again.set()

    # --- doubt --------------------------------------------------------------------------------------------------------

    async def work_off_doubt(self) -> None:
        """Work until cancelled."""
        pause = self._settings.retry_seconds_min
        while True:
            try:
                moved = await self._scan()
                await self._store_blocked()
            except _MayBeOlderError as error:
                if self.waits_because != error.message:
                    log.warning("no doubt ends while the metadata may be too old", reason=error.message)
                self.waits_because = error.message
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            except (MetadataUnavailableError, MetadataConflictError, *LOCAL_FAILURES) as error:
                log.warning("the doubt of this bookie could not be worked off; trying again", reason=error.message)
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            self.waits_because = None
            pause = self._settings.retry_seconds_min if moved else min(2 * pause, self._settings.retry_seconds_max)
            in_doubt = self._copies.doubt is not None
            # Doubt may begin while the bookie runs; that is rare, and looking costs nothing.
            self._again.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause if in_doubt else self._settings.poll_seconds * 5):
                    await self._again.wait()

    async def _scan(self) -> bool:
        """One scan; returns whether anything became sure."""
        doubt = self._copies.doubt
        if doubt is None:
            self._reasons.clear()
            return False
        await self._refuse_older_metadata()  # before anything is copied by what they say
        # After a write of this handle, its reads show everything that was stored before the doubt began (rule D4).
        await self._store.confirm_absent([LedgerId(doubt.stop)])
        self._term_floors = {}
        exceptions = {LedgerId(one): first for one, first in doubt.exceptions.items()}
        moved = False
        tried = sorted(exceptions)
        for start in range(0, len(tried), LEDGERS_AT_ONCE):
            some = tried[start : start + LEDGERS_AT_ONCE]
            moved |= await self._mark(doubt.sure_below, exceptions, some)
        batch: list[LedgerId] = []
        below = doubt.sure_below
        async for ledger_id in self._store.list_ledgers(after=LedgerId(below - 1) if below else None):
            if ledger_id >= doubt.stop:
                break
            batch.append(ledger_id)
            if len(batch) == LEDGERS_AT_ONCE:
                below = int(batch[-1]) + 1
                if len(exceptions) + LEDGERS_AT_ONCE > EXCEPTIONS_MAX:
                    log.error("this bookie is unsure of too many ledgers; the rest waits", ledgers=len(exceptions))
                    return moved
                moved |= await self._mark(below, exceptions, batch)
                batch = []
        if len(exceptions) + len(batch) <= EXCEPTIONS_MAX:
            moved |= await self._mark(doubt.stop, exceptions, batch)
        if self._copies.doubt is None:
            log.info("this bookie is sure of everything that it should hold")
        return moved

    async def _mark(self, sure_below: int, exceptions: dict[LedgerId, int], ledger_ids: Iterable[LedgerId]) -> bool:
        """Work on some ledgers and mark what is sure now, all below ``sure_below``. Updates ``exceptions``."""
        wanted = list(ledger_ids)
        before = self._copies.doubt
        results = await asyncio.gather(*(self._first_unsure(ledger_id) for ledger_id in wanted))
        for ledger_id, (first, blocked) in zip(wanted, results, strict=True):
            known = exceptions.get(ledger_id)
            if first is None:
                exceptions.pop(ledger_id, None)
                self._reasons.pop(ledger_id, None)
                continue
            # What was sure stays sure: a later look may find less, where a source has failed meanwhile.
            exceptions[ledger_id] = first if known is None else max(first, known)
            if blocked is not None:
                self._reasons[ledger_id] = blocked
        doubt = self._copies.doubt
        if doubt is None:
            return False
        after: Mapping[LedgerId, int] = dict(exceptions)
        floors = self._new_floors(doubt)
        if before is not None and sure_below <= before.sure_below and after == before.exceptions and not floors:
            return False
        await self._refuse_older_metadata()  # after the reads by which these ledgers are sure
        await self._copies.mark_sure(max(sure_below, doubt.sure_below), after, floors)
        return True

    def _new_floors(self, doubt: Doubt) -> dict[LedgerId, int]:
        """The term floors that are not known yet, as far as there is room for them (rule T12). Streams without one get
        no ordinary adds here, as all other ledgers in doubt."""
        new = {one: term for one, term in sorted(self._term_floors.items()) if one not in doubt.term_floors}
        return dict(list(new.items())[: TERM_FLOORS_MAX - len(doubt.term_floors)])

    async def _refuse_older_metadata(self) -> None:
        """Raises :class:`_MayBeOlderError` while the metadata may be older than the data (rule D5)."""
        try:
            await self._check_metadata()
        except MetadataError as error:
            raise _MayBeOlderError(error.message) from error

    async def _first_unsure(self, ledger_id: LedgerId) -> tuple[int | None, Blocked | None]:
        """The first unsure id of a ledger and why it is unsure; None: sure of all."""
        try:
            metadata = (await self._store.read_either(ledger_id)).value
            if metadata.next_term is not None:
                # Read after the doubt began: no term that was fenced or written before it is a later one (rule T12).
                # Where metadata are restored, terms that they do not know may have been opened.
                self._term_floors[ledger_id] = metadata.next_term - 1
            blocked = await self._jobs.complete(metadata)
            await self._jobs.complete_open(metadata)
        except NoSuchLedgerError:
            return first_unsure_id(None, self._me, holds_all=True), None
        except (MetadataUnavailableError, *LOCAL_FAILURES):
            raise
        except OctavoError as error:
            return UNSURE_OF_ALL, Blocked(ledger_id, 0, None, BlockedClass.SHORT, (self._me,), error.message)
        doubt = self._copies.doubt
        floor = None if doubt is None else doubt.term_floors.get(ledger_id)
        first = first_unsure_id(metadata, self._me, holds_all=blocked is None, term_floor=floor)
        if first is not None and blocked is None:
            reason = _REASONS[metadata.kind].format(bookie=self._me, state=metadata.state.value)
            blocked = Blocked(ledger_id, first, None, BlockedClass.OPEN, (self._me,), reason)
        return first, blocked

    # --- damage -------------------------------------------------------------------------------------------------------

    def _note_damage(self, ledger_id: int, first: int, last: int) -> None:
        self._damage.append((LedgerId(ledger_id), first, last))
        self._damaged.set()

    async def mend_damage(self) -> None:
        """Work until cancelled: pull what was found damaged, replacing the bad copies (rule W11)."""
        while True:
            pending = bool(self._unmended)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.retry_seconds_min if pending else None):
                    await self._damaged.wait()
            self._damaged.clear()
            places = list(dict.fromkeys([*self._damage, *self._unmended]))
            self._damage.clear()
            for place in places:
                await self._mend(*place)
            with contextlib.suppress(MetadataUnavailableError, MetadataConflictError):
                await self._store_blocked()

    async def _mend(self, ledger_id: LedgerId, first: int, last: int) -> None:
        try:
            metadata = (await self._store.read_either(ledger_id)).value
            blocked = await self._jobs.mend(metadata, first, last)
        except NoSuchLedgerError:
            blocked = None
        except (MetadataUnavailableError, *LOCAL_FAILURES):
            await asyncio.sleep(PAUSE_SECONDS)
            self._note_damage(ledger_id, first, last)
            return
        except OctavoError as error:
            blocked = Blocked(ledger_id, first, None, BlockedClass.SHORT, (self._me,), error.message)
        if blocked is None:
            self._unmended.pop((ledger_id, first, last), None)
            log.info("damage has been mended", ledger=int(ledger_id), first=first, last=last)
        elif len(self._unmended) < DAMAGE_MAX:
            self._unmended[ledger_id, first, last] = blocked

    # --- what is shown ------------------------------------------------------------------------------------------------

    async def _store_blocked(self) -> None:
        """Store what this bookie cannot make whole, if it has changed."""
        shown = tuple(islice((*self._reasons.values(), *self._unmended.values()), BLOCKED_MAX))
        async with self._storing:
            if shown == self._stored:
                return
            name = blocked_name(self._me)
            if self._stored is None:
                found = await self._store.read_document(name)
                self._stored_version = None if found is None else found.version
            self._stored = None
            if shown:
                self._stored_version = await self._store.put_document(name, encode_blocked(shown), self._stored_version)
            elif self._stored_version is not None:
                await self._store.delete_document(name, self._stored_version)
                self._stored_version = None
            self._stored = shown
