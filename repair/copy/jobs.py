"""One job of a target: make copies, then take the name (rules C1 to C6, C9 and C10).

The order makes it safe. The target reads the metadata. Under its own lock of the ledger it copies everything that the
position should hold, durably, looks once more that every id is held, and changes the metadata by compare-and-set on the
version that it read before copying. Only the target names itself: no other process can name a bookie that has meanwhile
dropped its copies. Nothing is dropped between the first id that is found held and the end of the compare-and-set,
because the lock is held all the time, also when the job is cancelled while the compare-and-set is under way. A conflict
means that the metadata are read again and everything is decided again; the copies stay, so nothing is copied twice.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.cluster.repair_states import DOCUMENT, RepairStates, decode_states
from octavo.metadata.ledger.changes import ReplaceMember
from octavo.metadata.ledger.decisions import Refuse, Settled
from octavo.metadata.ledger.stored import SettledRange
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.stream.any_metadata import EitherMetadata, as_stream
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import PageMissingError, page_document, repaired_page
from octavo.metadata.updates.page_out import store_page
from octavo.metadata.updates.paging import StreamPages, parts_of
from octavo.protocol.errors import DuplicateEntryError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import ID_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.local_bookie import LocalBookie
from octavo.repair.base.planning import Blocked, BlockedClass, Job, Why
from octavo.repair.base.settled import ranges_of_member, replaceable
from octavo.repair.base.stream_parts import StreamParts
from octavo.repair.copy.balancing import Balancing
from octavo.repair.copy.batched_naming import Naming
from octavo.repair.copy.copying import Told, Unsound, preference
from octavo.repair.copy.debts import DebtPayer
from octavo.repair.copy.puller import Puller, simplest_stripe

log = structlog.get_logger("octavo.repair")

ATTEMPTS_MAX: Final = 20
"""Conflicts of one job before it is given back: each means that another client made progress with the ledger."""


CONFLICT_PAUSE_SECONDS: Final = 0.2
"""Pause before the second attempt to change a stream; it grows with every further one. The writer of a stream and its
takeovers change the same metadata, and do not wait for repair."""

SETTLE_PAUSE_SECONDS: Final = 0.5
"""Pause between reads that find out whether a compare-and-set was made whose answer was lost."""

SETTLE_SECONDS_MAX: Final = 10.0
"""Longest time for which a cancelled job keeps its lock to learn whether its compare-and-set was made. It ends also
when the metadata store does not answer, so that the bookie can stop. Should the change be made later nevertheless, the
copies are still there: the time after which copies of a replaced bookie may be dropped begins when the lock is given up
(:meth:`octavo.repair.base.local_bookie.LocalCopies.lock`)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended."""

    blocked: Blocked | None = None
    """What could not be done; None: everything is done, or there is nothing left to do."""
    metadata: EitherMetadata | None = None
    """The metadata with which it ended; None when the ledger has been deleted."""


class Jobs:
    """Carries out jobs for one bookie. Any number of jobs may run at a time, one per ledger."""

    def __init__(
        self,
        bookie: LocalBookie,
        pool: ConnectionPool,
        puller: Puller,
        naming: Naming,
        *,
        states: Callable[[], RepairStates],
        token: str,
    ) -> None:
        self._me: BookieId = bookie.bookie_id
        self._copies = bookie.copies
        self._store: MetadataStore = bookie.store
        self._pool = pool
        self._puller = puller
        self._naming = naming
        self._states = states
        self._token = token
        self.balancing = Balancing(bookie)
        self._payer = DebtPayer(bookie, pool, timeout_seconds=puller.timeout_seconds, token=token)
        self.entries_short = 0
        """Ids met that had no sound copy."""
        self.ledgers_named = 0
        """Ledgers in which this bookie has taken a place."""

    async def run(self, job: Job) -> Outcome:
        """Do a job. Raises the errors of the own storage, and those of the metadata store when it does not answer."""
        blocked: Blocked | None = None
        attempt, first, parts = 0, 0, StreamParts(self._store)
        while attempt < ATTEMPTS_MAX:
            try:
                current = await self._store.read_either(job.ledger_id)
                if attempt and current.value.next_term is not None:
                    await asyncio.sleep(attempt * CONFLICT_PAUSE_SECONDS)  # its writer does not wait
                    current = await self._store.read_either(job.ledger_id)
                piece: _Piece | None = None
                outcome: Outcome | None
                if job.old is None:
                    outcome = await self._complete(current)
                else:
                    piece = await _next_piece(current.value, first, job.old, parts)
                    outcome = await self._take_place(current, piece, job, job.old)
                if outcome is None or await self._is_outdated(current.value, outcome):
                    attempt += 1
                    continue
            except PageMissingError:
                attempt += 1
                continue
            except NoSuchLedgerError:
                return Outcome()  # rule C9: nothing is left to repair, and garbage collection removes the copies
            blocked = blocked or outcome.blocked
            if piece is None or piece.page is None:
                return replace(outcome, blocked=blocked)
            attempt, first = 0, piece.stop
        return Outcome(
            Blocked(job.ledger_id, 0, None, BlockedClass.OPEN, (), "its metadata changed again and again; tried later")
        )

    async def _is_outdated(self, metadata: EitherMetadata, outcome: Outcome) -> bool:
        """Whether something seemed to be lost of a stream that has been truncated meanwhile: then everything is decided
        again, because what was truncated need not be held."""
        if outcome.blocked is None or metadata.next_term is None:
            return False
        now = (await self._store.read_either(metadata.ledger_id)).value
        return now.start_place != metadata.start_place

    # --- own copies -------------------------------------------------------------------------------------------------

    async def complete(self, metadata: EitherMetadata) -> Blocked | None:
        """Copy whatever this bookie should hold of the settled ranges and does not hold soundly. The metadata do not
        change."""
        blocked: Blocked | None = None
        async for part in parts_of(self._store, metadata):
            for settled in ranges_of_member(part, self._me):
                problem = await self._copy(part, settled, settled.bookies.index(self._me))
                blocked = blocked or problem  # the other ranges are made whole nevertheless
        return blocked

    async def mend(self, metadata: EitherMetadata, first: int, last: int) -> Blocked | None:
        """As :meth:`complete`, for the ids ``first..last`` only, in which damage was found; and, where the ledger is
        still open, for those of them up to the LAC (rule O1). Raises :class:`PageMissingError` if the metadata are out
        of date."""
        blocked: Blocked | None = None
        for part in await self._parts_between(metadata, first, last):
            for settled in ranges_of_member(part, self._me):
                some = replace(settled, first=max(settled.first, first), last=min(settled.last, last))
                problem = await self._pull(part, some, settled.bookies.index(self._me))
                blocked = blocked or problem
        problem = await self.complete_open(metadata, first, last)
        return blocked or problem

    async def _parts_between(self, metadata: EitherMetadata, first: int, last: int) -> list[EitherMetadata]:
        pages = [page for page in metadata.pages if page.last_entry_id >= first and page.first_entry_id <= last]
        parts = [await StreamPages(self._store).part(as_stream(metadata), page) for page in pages]
        return [*parts, metadata.tail]

    async def complete_open(self, metadata: EitherMetadata, first: int = 0, last: int = ID_MAX) -> Blocked | None:
        """Copy the ids of an open last fragment that this bookie should hold, up to the highest LAC that its members
        show (rule O1). What lies above may be on fewer than Qa bookies and is left to recovery."""
        fragment = metadata.last_fragment
        if metadata.has_end or self._me not in fragment.bookies:
            return None
        confirmed = await self._puller.last_add_confirmed(
            metadata, [name for name in fragment.bookies if name != self._me]
        )
        if confirmed is None:
            return None
        part = SettledRange(max(fragment.first_entry_id, first), min(confirmed, last), fragment.bookies, length_after=0)
        return await self._pull(metadata, part, fragment.bookies.index(self._me))

    async def _complete(self, current: Versioned[EitherMetadata]) -> Outcome:
        blocked = await self.complete(current.value)
        problem = await self.complete_open(current.value)
        metadata = current.value if blocked is not None else await self._payer.pay(current)
        return Outcome(blocked or problem, metadata)

    # --- another bookie's place -------------------------------------------------------------------------------------

    async def _take_place(
        self, current: Versioned[EitherMetadata], piece: "_Piece", job: Job, old: BookieId
    ) -> Outcome | None:
        """None: the metadata have changed, decide again (rule C5)."""
        async with self._copies.lock(current.value.ledger_id):
            return await self._take_place_locked(current, piece, job, old)

    async def _take_place_locked(
        self, current: Versioned[EitherMetadata], piece: "_Piece", job: Job, old: BookieId
    ) -> Outcome | None:
        """The lock is held from the first look at what is held, so that nothing of it is dropped before the name is
        settled (rule C1). If a drop came in between, the next copy would bring the ledger back, and with it the places
        in the index of entries that are gone."""
        metadata, part = current.value, piece.part
        ranges = replaceable(part, old, self._me)
        whole: list[SettledRange] = []
        blocked: Blocked | None = None
        moves = job.why is Why.BALANCE
        if moves and not await self.balancing.may_take(old, metadata, part, ranges):
            return Outcome(None, metadata)
        for settled in ranges:
            problem = await self._copy(part, settled, settled.bookies.index(old), paced=moves)
            if problem is None:
                whole.append(settled)
            blocked = blocked or problem
        if not whole or (moves and blocked is not None):
            return Outcome(blocked, metadata)  # what is not whole is repaired, and not moved
        if not await (self.balancing.may_take(old, metadata, part, ranges) if moves else self._leaves(old)):
            return Outcome(None, metadata)  # rule C5: it is back, and keeps its place
        wanted = await self._renamed(current.value, piece, old, whole)
        if wanted is None or not await self._write(wanted, current.version):
            return None
        if piece.page is not None:
            # The root has a later revision, and does not name it any more (rule U2).
            await self._store.delete_document(page_document(wanted.ledger_id, piece.page))
        self.ledgers_named += 1
        self.balancing.moved += moves
        log.info("copies made again", ledger=int(wanted.ledger_id), in_place_of=old, ranges=len(whole))
        return Outcome(blocked, wanted)

    async def _leaves(self, old: BookieId) -> bool:
        """Whether the bookie is still to be replaced. The conditions that were watched may be older than the plan, or
        could not be understood: they are read then. Raises :class:`MetadataError`."""
        if old in self._states().leaving:
            return True
        found = await self._store.read_document(DOCUMENT)
        return old in decode_states(None if found is None else found.value).leaving

    async def _renamed(
        self, metadata: EitherMetadata, piece: "_Piece", old: BookieId, whole: Sequence[SettledRange]
    ) -> EitherMetadata | None:
        """Under the lock: look once more (rules C1, C3, C5 and N1). The metadata that name this bookie in these ranges;
        None if they cannot any more. A page that has it has been made then (rule U2)."""
        wanted = metadata if piece.page is None else piece.whole
        for settled in whole:
            position = settled.bookies.index(old)
            if not await self._holds(piece.part, settled, position):
                return None
            # After truncation the range may begin within its fragment.
            first = wanted.fragment_of(EntryId(settled.first)).first_entry_id
            decision = ReplaceMember(first, settled.last, position, old, self._me).decide(wanted)
            if isinstance(decision, Refuse):
                return None
            if not isinstance(decision, Settled):
                wanted = decision.metadata
        if piece.page is not None:
            stream = as_stream(metadata)
            page = repaired_page(stream, piece.page, as_stream(wanted))
            await store_page(self._store, stream.ledger_id, page)
            wanted = stream.with_pages({piece.page: page.reference})
        return wanted.written_by(self._token)

    async def _write(self, wanted: EitherMetadata, expected: Version) -> bool:
        """Compare-and-set. The caller's lock is kept until the outcome is known, also when the caller is cancelled: a
        change that is under way may be made after the cancellation, and the copies must still be there then."""
        change = asyncio.ensure_future(self._write_and_settle(wanted, expected))
        try:
            return await asyncio.shield(change)
        except asyncio.CancelledError:
            await asyncio.wait([change], timeout=SETTLE_SECONDS_MAX)
            raise
        finally:
            change.cancel()
            if change.done() and not change.cancelled():
                change.exception()  # the caller was cancelled and does not take it

    async def _write_and_settle(self, wanted: EitherMetadata, expected: Version) -> bool:
        """Where the answer is lost, read until the outcome is known."""
        try:
            return await self._naming.compare_and_set(wanted, expected) is not None
        except MetadataUnavailableError as error:
            if not error.may_have_happened:
                raise
        while True:
            try:
                return (await self._store.read_either(wanted.ledger_id)).value == wanted
            except MetadataUnavailableError:
                await asyncio.sleep(SETTLE_PAUSE_SECONDS)

    async def _holds(self, metadata: EitherMetadata, settled: SettledRange, position: int) -> bool:
        quorums = metadata.quorums_at(settled.first)
        stripe = simplest_stripe(quorums.ensemble_size, quorums.residues_at(position))
        first = settled.first
        while first <= settled.last:
            held = await self._copies.missing(metadata.ledger_id, first, settled.last, stripe=stripe)
            if held.missing or held.unknown or held.last_covered < first:
                return False
            first = held.last_covered + 1
        return True

    # --- copies -----------------------------------------------------------------------------------------------------

    async def _copy(
        self, metadata: EitherMetadata, settled: SettledRange, position: int, *, paced: bool = False
    ) -> Blocked | None:
        """Make one range whole for a position, up to its end; returns why that cannot be done (rules C3, C4 and C6).
        ``paced``: no copies are missing, so none is urgent."""
        blocked = await self._pull(metadata, settled, position, paced=paced)
        if blocked is None and not await self._puller.ends_right(metadata, settled, position):
            return self._blocked(
                metadata.ledger_id, settled, BlockedClass.DIVERGENT, settled.bookies,
                f"entry {settled.last} does not have the length that the metadata give for the end of its fragment",
            )  # fmt: skip
        return blocked

    async def _pull(
        self, metadata: EitherMetadata, settled: SettledRange, position: int, *, paced: bool = False
    ) -> Blocked | None:
        states = self._states()
        registered = self._registered(settled.bookies)
        reliable = [name for name in settled.bookies if name not in states.bookies and name != self._me]
        order = [
            member
            for member in preference(
                settled.bookies, reliable=reliable, reachable=registered, turn=int(metadata.ledger_id)
            )
            if settled.bookies[member] != self._me
        ]

        def is_urgent() -> bool:
            """Whether one live copy is left, at most (rule A9): changes while a large ledger is copied."""
            if paced:
                return False
            live = self._registered(settled.bookies) - self._states().leaving - {self._me}
            return len(live) <= 1

        try:
            unsound = await self._puller.make_whole(metadata, settled, position, order, is_urgent=is_urgent)
        except DuplicateEntryError as error:
            return self._blocked(metadata.ledger_id, settled, BlockedClass.DIVERGENT, settled.bookies, error.message)
        if unsound is not None:
            self.entries_short += unsound.count
            return self._short(metadata.ledger_id, settled, unsound)
        return None

    def _registered(self, names: Sequence[BookieId]) -> frozenset[BookieId]:
        """Those of the bookies that are registered; all of them while this bookie does not know, before it has
        connected to any other."""
        registered = self._pool.registrations()
        return frozenset(name for name in names if registered is None or name in registered)

    def _short(self, ledger_id: LedgerId, settled: SettledRange, unsound: Unsound) -> Blocked:
        waits_for = tuple(settled.bookies[position] for position in unsound.waits_for)
        said = "; ".join(f"{settled.bookies[position]}: {_SAID[told]}" for position, told in unsound.told)
        what = f"entry {unsound.first}" if unsound.count == 1 else f"{unsound.count} entries from {unsound.first}"
        others = said if said else "no other bookie should hold it"
        return Blocked(
            ledger_id, unsound.first, unsound.last, BlockedClass.SHORT, waits_for or settled.bookies,
            f"no sound copy of {what} could be read ({others})",
        )  # fmt: skip

    def _blocked(
        self, ledger_id: LedgerId, settled: SettledRange, kind: BlockedClass, bookies: Sequence[BookieId], reason: str
    ) -> Blocked:
        return Blocked(ledger_id, settled.first, settled.last, kind, tuple(bookies), reason)


class _Piece(NamedTuple):
    """The unit of work: a ledger, or a part of a stream."""

    page: PageReference | None
    """The page in which the part lies."""
    part: EitherMetadata
    """From the beginning of the stream on."""
    whole: EitherMetadata
    """With the fragments of the page that were truncated."""
    stop: int = 0
    """The position after a page."""


async def _next_piece(metadata: EitherMetadata, first: int, old: BookieId, parts: StreamParts) -> _Piece:
    """Of a stream the first page that names the bookie and does not lie below the position ``first``, or the tail.
    Raises :class:`PageMissingError`."""
    found = await parts.first_naming(as_stream(metadata), old, first=first) if metadata.pages else None
    if found is None:
        return _Piece(None, metadata.tail, metadata)
    page, whole = found
    return _Piece(page, whole.truncated(as_stream(metadata).start), whole, (whole.end_position or 0) + 1)


_SAID = {
    Told.ABSENT: "does not hold it",
    Told.UNKNOWN: "cannot tell, because of damage or doubt",
    Told.FAILED: "does not answer",
}
