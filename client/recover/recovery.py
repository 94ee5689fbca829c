"""Recovery of a ledger: fence, find the end, write back, close (rules F1 to F7).

What is asked and decided is in :mod:`octavo.client.recover.ledger_recovery`; recovered entries go through the same
replication as a writer's, with the recovery flag, and its changes of the ensemble stay here until the one
compare-and-set that closes the ledger (rules F5 and F6). Each bookie is served by a task of its own, so a hung
one delays no other; all of them end with the recovery, however it ends.

Every entry up to the end is on Qa bookies of its write set before the ledger is closed (rule I5), and the old writer is
told success only for entries below that end (rule I7). A recovery ends: closed, or with an error that names the bookies
without which no end can be claimed (rule I8).

Any number of clients may recover one ledger at the same time, and a recovery may be broken off at any point: nothing
but that last step decides, and every later recovery adopts the end that it wrote.
"""

import asyncio
import random
from collections.abc import Callable, Collection
from datetime import datetime
from typing import NoReturn

from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.recover.completing import Completing
from octavo.client.recover.ledger_recovery import WINDOW_BYTES, WINDOW_ENTRIES, End, LedgerRecovery
from octavo.client.supervisor import Supervisor
from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.ensemble_changes import Commit
from octavo.client.write.front.batching import frames_of
from octavo.client.write.replication import Replication
from octavo.metadata.ledger.changes import BeginRecovery, FinishRecovery
from octavo.metadata.ledger.debts import Debt, FullCopies
from octavo.metadata.ledger.model import Fragment, LedgerMetadata
from octavo.metadata.ledger.term import StoredFragment, Term
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.metadata.updates.update import update_ledger
from octavo.protocol.entries import LedgerSecrets, Opener, header_of
from octavo.protocol.errors import (
    BookieUnavailableError,
    ClientClosedError,
    DigestMismatchError,
    DuplicateEntryError,
    InternalError,
    LedgerRecoveryError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OctavoError,
    QuorumLostError,
    TermOverError,
    UnsupportedOperationError,
)
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.messages import (
    CAPABILITY_TERMS,
    AddFlag,
    LacAnswer,
    Read,
    ReadAnswer,
    ReadFlag,
    ReadLac,
    Reply,
    Request,
)

_TOKEN_BITS = 128

_READ_BYTES_MAX = 2 * FRAME_PAYLOAD_BYTES_TARGET
"""Entry bytes in one answer: a frame's worth for the write-back and a little ahead of it."""

_ATTEMPTS_MAX = 10
"""How often a recovery starts again because another client has changed the last fragment meanwhile. Recoveries only
close a ledger, so even a second attempt is rare."""


class Recoverer:
    """Recovers ledgers for one client."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        pool: ConnectionPool,
        placer: Placer,
        options: ClientOptions,
        rng: random.Random,
        wall_clock: Callable[[], datetime] | None = None,
        client_name: str = "",
    ) -> None:
        """The name and the clock of the client are noted in the ledgers that it fences; nothing without a clock."""
        self._store = store
        self._pool = pool
        self._placer = placer
        self._options = options
        self._rng = rng
        self._wall_clock = wall_clock
        self._client_name = client_name

    async def recover(
        self,
        ledger: Versioned[LedgerMetadata],
        secrets: LedgerSecrets,
        *,
        without: Collection[BookieId] = (),
        unsure: Collection[BookieId] = (),
        may_owe: bool = False,
    ) -> Versioned[LedgerMetadata]:
        """Recover the ledger and return its metadata once it is closed, by this recovery or by another one.

        ``without``: bookies that are not asked and count as fenced and as denying every entry. ``unsure``: bookies in
        doubt that are asked, give what they have, and count as denying what they cannot tell of. Acknowledged entries
        may be lost by that; only an operator may decide it, and only for bookies that never confirm an add of this
        ledger again (rule O4). ``may_owe``: record missing copies as debt also where the ledger requires them (rule
        G5), as the cluster's own recovery does, which repair follows, and one without some bookies.

        Cancelling it leaves the ledger as a crash of this client would: any client may recover it again. Raises
        :class:`LedgerRecoveryError` naming the bookies without which no end can be claimed (the ledger stays
        IN_RECOVERY), :class:`NoSuchLedgerError`, :class:`MetadataUnavailableError`.
        """
        recoveries = self._pool.counts.recoveries
        try:
            closed = await self._recover(ledger, secrets, frozenset(without), frozenset(unsure), may_owe=may_owe)
        except OctavoError:
            recoveries["failed"] += 1
            raise
        recoveries["closed"] += 1
        return closed

    async def _recover(
        self,
        ledger: Versioned[LedgerMetadata],
        secrets: LedgerSecrets,
        without: frozenset[BookieId],
        unsure: frozenset[BookieId],
        *,
        may_owe: bool,
    ) -> Versioned[LedgerMetadata]:
        token = f"{self._rng.getrandbits(_TOKEN_BITS):032x}"
        clock = self._wall_clock
        begin = BeginRecovery() if clock is None else BeginRecovery(clock(), self._client_name)
        for _ in range(_ATTEMPTS_MAX):
            # Rules F1 and M3: decided on the metadata as they are now, not as they were read a while ago.
            ledger = await self._patiently(ledger, begin, token)
            if ledger.value.is_closed:
                return ledger
            recovery = FragmentRecovery(
                ledger.value.current_term, secrets,
                pool=self._pool, placer=self._placer, options=self._options, without=without, unsure=unsure,
            )  # fmt: skip
            try:
                end = await recovery.run()
                debts = await self._complete(recovery.term, secrets, recovery, end, may_owe=may_owe or bool(without))
            except LedgerRecoveryError:
                # Another client may have closed or deleted it by now.
                current = await self._store.read_ledger(ledger.value.ledger_id)
                if not current.value.is_closed:
                    raise
                return current
            finish = FinishRecovery(
                ledger.value.last_fragment, recovery.fragments, end.last_entry_id, end.length, debts
            )  # fmt: skip
            try:
                return await self._patiently(ledger, finish, token)
            except MetadataConflictError:
                continue
        raise LedgerRecoveryError(
            f"ledger {ledger.value.ledger_id}: its last fragment changed {_ATTEMPTS_MAX} times while it was recovered"
        )

    async def _complete(
        self, term: Term, secrets: LedgerSecrets, recovery: "FragmentRecovery", end: End, *, may_owe: bool
    ) -> tuple[tuple[EntryId, Debt], ...]:
        """Make missing copies, if books are kept of them; what each fragment owes (rule G5)."""
        if term.full_copies is None:
            return ()
        fragments: list[StoredFragment] = list(recovery.fragments)
        if not fragments or fragments[0].first_entry_id > term.last_fragment.first_entry_id:
            fragments.insert(0, term.last_fragment)
        requires = term.full_copies is FullCopies.REQUIRED and not may_owe
        options = self._options
        seconds = options.recovery_timeout_seconds if requires else options.full_copies_patience_seconds
        completing = Completing(term, secrets, pool=self._pool, options=options)
        last = -1 if end.last_entry_id is None else int(end.last_entry_id)
        owed = await completing.run(fragments, last, seconds=seconds)
        short = dict(pair for one in owed for pair in one.short)
        if requires and short:
            named = "; ".join(_named(name, why) for name, why in short.items())
            raise LedgerRecoveryError(
                f"ledger {term.ledger_id} cannot be closed now, because it requires all copies of its entries: "
                f"{named}. Bring these bookies back; or retire them, and repair closes the ledger"
            )
        return tuple((one.first_entry_id, one.debt) for one in owed)

    async def _patiently(
        self, ledger: Versioned[LedgerMetadata], change: BeginRecovery | FinishRecovery, token: str
    ) -> Versioned[LedgerMetadata]:
        """Make a change, through moments in which the store does not answer: asked again, it recognises its own."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.recovery_timeout_seconds
        while True:
            try:
                return await update_ledger(
                    self._store, ledger.value.ledger_id, change, writer_token=token, known=ledger
                )
            except MetadataUnavailableError:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(self._options.resend_delay_seconds)


class FragmentRecovery:
    """One attempt, from the fence to the end of a term: of a ledger, or of a stream.

    ``machine`` decides; by default one for the last fragment. ``on_change`` is called with each change of the ensemble.
    """

    def __init__(
        self,
        term: Term,
        secrets: LedgerSecrets,
        *,
        pool: ConnectionPool,
        placer: Placer,
        options: ClientOptions,
        without: frozenset[BookieId] = frozenset(),
        unsure: frozenset[BookieId] = frozenset(),
        machine: LedgerRecovery | None = None,
        on_change: Callable[[Commit], object] = lambda _: None,
    ) -> None:
        fragment = term.last_fragment
        self._given_up = frozenset(at for at, name in enumerate(fragment.bookies) if name in without)
        """Slots that count as fenced and as denying everything (rule O4)."""
        self._unsure = frozenset(at for at, name in enumerate(fragment.bookies) if name in unsure) - self._given_up
        """Slots that count as denying what they cannot tell of (rule O4)."""
        self._untold: dict[int, int] = {}
        """Of these, the lowest id that each has been asked for and cannot tell of."""
        self._unfenced = set(range(term.quorums.ensemble_size)) - self._given_up
        """Slots whose bookies have neither been fenced nor failed."""
        self.term = term
        self._secrets = secrets
        self._pool = pool
        self._placer = placer
        self._options = options
        self._opener = Opener(term.ledger_id, term.key.digest, secrets)
        self._loop = asyncio.get_running_loop()
        self._quorums = term.quorums
        self._on_change = on_change
        self._machine = machine or LedgerRecovery(
            self._quorums,
            first_entry_id=fragment.first_entry_id,
            length_before=fragment.length_before,
            window_entries=WINDOW_ENTRIES,
            window_bytes=WINDOW_BYTES,
        )
        self._fragments: list[Fragment] = []
        """Changes of the ensemble made here, in order."""
        self._answers = ["no answer yet"] * term.quorums.ensemble_size
        self._in_doubt: set[int] = set()
        """Slots of the bookies that may have lost entries of this ledger (rule B4)."""
        self._moved = asyncio.Event()
        self._writing: Replication | None = None
        self._unwritten: list[int] = []
        """Sealed bytes of each entry given to the replication and not on its quorum yet."""
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._supervisor = Supervisor(f"octavo recovery of ledger {term.ledger_id}", self._failed)

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The fragments that writing back has made of the last one."""
        return tuple(self._fragments)

    @property
    def bookies(self) -> tuple[BookieId, ...]:
        """Those that the last entries were written back to."""
        return (self.term.last_fragment, *self._fragments)[-1].bookies

    async def run(self) -> End:
        """Return the end, once everything up to it is on its quorum. Raises :class:`LedgerRecoveryError`, and
        :class:`TermOverError` if a bookie knows of a later term (rule T3)."""
        try:
            for position in range(self._quorums.ensemble_size):
                self._supervisor.start(self._serve(position))
            await self._finished
        finally:
            await self._supervisor.close()
            if self._writing is not None:
                self._writing.close()
        end = self._machine.end
        assert end is not None, "finished with an end"
        return end

    def _failed(self, error: BaseException) -> None:
        """Nothing more is done; the first reason is the one that counts."""
        if self._finished.done():
            return
        ledger = f"ledger {self.term.ledger_id}"
        if isinstance(error, QuorumLostError | DuplicateEntryError | NoSuchLedgerError):
            failure: OctavoError = LedgerRecoveryError(
                f"{ledger}: recovered entries could not be written back: {error.message}"
            )
        elif isinstance(error, OctavoError):
            failure = error
        else:
            failure = InternalError(f"{ledger}: recovery: {type(error).__name__}: {error}")
        if failure is not error:
            failure.__cause__ = error
        self._finished.set_exception(failure)
        self._finished.exception()  # `run` raises it, unless it was cancelled; the loop need not log it

    # --- asking -----------------------------------------------------------------------------------------------------

    async def _serve(self, position: int) -> None:
        """Fence one bookie, then read from it whatever is wanted of it."""
        machine = self._machine
        if position in self._given_up:
            await self._count_as_denying(position)
        try:
            term = self.term.number
            fence = ReadLac(self.term.ledger_id, self._secrets.ledger_key, ReadFlag.FENCE, term, None, 0, 0, 0)
            answer = await self._ask(position, fence, LacAnswer)
            if answer.in_doubt:
                self._in_doubt.add(position)
            self._unfenced.discard(position)
            lac, lengths = self._evidence(answer, position)
            # Nothing may be left of what a bookie in doubt knows to be confirmed: where that is accepted, recovery
            # begins at what the others know, and keeps what is found from there on.
            machine.on_fenced(position, None if position in self._unsure else lac, lengths)
            self._answers[position] = "is fenced"
            self._advance()
            while True:
                wanted = machine.wanted_read(position)
                if wanted is None or self._untold.get(position) == wanted[0]:
                    await self._deny_untold(position, wanted)
                    continue
                read = Read(
                    *(self.term.ledger_id, self._secrets.ledger_key, ReadFlag.FENCE, term, *wanted),
                    *(self._quorums.ensemble_size, machine.residues_at(position)),
                    *(ENTRIES_PER_FRAME_MAX, _READ_BYTES_MAX),
                )
                self._take(position, wanted, await self._ask(position, read, ReadAnswer))
        except ClientClosedError as error:
            self._failed(error)
        except OctavoError as error:
            self._answers[position] = error.message or type(error).__name__
            if self._given_up or self._unsure:
                # The given-up bookies would cover for it, and what only this bookie has would be lost as well.
                name = self.term.bookies[position]
                self._failed(
                    LedgerRecoveryError(
                        f"ledger {self.term.ledger_id}: bookie {name} does not answer, and may hold entries that "
                        f"can be saved; bring it back, or retire it and give it up ({self._answers[position]})"
                    )
                )
                return
            self._unfenced.discard(position)
            machine.on_gave_up(position)
            self._advance()

    async def _count_as_denying(self, position: int) -> NoReturn:
        """Answer in the place of a bookie that an operator has given up and that is not asked (rule O4)."""
        machine = self._machine
        self._answers[position] = "is given up"
        while self._unfenced:
            self._moved.clear()
            await self._moved.wait()
        machine.on_fenced(position, None, {})
        self._advance()
        while True:
            await self._deny_untold(position, machine.wanted_read(position))

    async def _deny_untold(self, position: int, wanted: tuple[int, int] | None) -> None:
        """Count the bookie as denying the next id, if that is what ``wanted`` begins with; otherwise, and while another
        bookie may give it, wait until something has moved.

        Always last, and one id at a time: recovery decides as soon as answers cover, so a denial that comes before the
        answers of the bookies that may have the entry would cut it off.
        """
        next_id = self._machine.last_recovered + 1
        if wanted is not None and wanted[0] == next_id and self._all_have_told(next_id):
            self._machine.on_read(position, next_id, next_id, {}, set())
            self._advance()
            return
        self._moved.clear()
        await self._moved.wait()

    def _all_have_told(self, entry_id: int) -> bool:
        """Whether every bookie that is asked has answered for the id, if only that it cannot tell."""
        for position in set(range(self._quorums.ensemble_size)) - self._given_up:
            wanted = self._machine.wanted_read(position)
            if wanted is not None and wanted[0] <= entry_id and self._untold.get(position) != entry_id:
                return False
        return True

    async def _ask[Answer: Reply](self, position: int, request: Request, expected: type[Answer]) -> Answer:
        """Ask one bookie until it answers or the time is over. Raises :class:`OctavoError`."""
        options = self._options
        deadline = self._loop.time() + options.recovery_timeout_seconds
        while True:
            connection = self._pool.get(self.term.bookies[position])
            left = max(deadline - self._loop.time(), 0.001)
            try:
                if self.term.number:
                    # Not even asked: it would take the fence of one term for that of all (rule T7).
                    await connection.wait_writable(timeout_seconds=left)
                    self._check_knows_terms(connection)
                answer = await connection.request(request, timeout_seconds=min(left, options.request_timeout_seconds))
            except OctavoError as error:
                self._answers[position] = error.message or type(error).__name__
                if not error.retryable or self._loop.time() + options.resend_delay_seconds >= deadline:
                    raise
                await asyncio.sleep(options.resend_delay_seconds)
                continue
            if self.term.number:
                self._check_knows_terms(connection)  # it may be another process by now
            if isinstance(answer, expected):
                return answer
            raise BookieUnavailableError(f"answered {type(answer).__name__} to {type(request).__name__}")

    def _check_knows_terms(self, connection: BookieConnection) -> None:
        if CAPABILITY_TERMS not in connection.capabilities:
            raise UnsupportedOperationError(f"bookie {connection.bookie_id} does not know terms; upgrade it")

    def _evidence(self, answer: LacAnswer, position: int) -> tuple[int | None, dict[int, int]]:
        """The highest LAC in the answer that the writer has sealed, and the lengths there, as far as they are known."""
        highest, lengths = -1, {}
        for sealed in (answer.explicit, answer.entry):
            if sealed is None:
                continue
            try:
                confirmed, length = self._opener.open_last_add_confirmed(sealed)
            except DigestMismatchError as error:
                self._answers[position] = error.message  # a damaged LAC is none; the fence stands all the same
                continue
            if confirmed is not None:
                highest = max(highest, confirmed)
                if length is not None:
                    lengths[int(confirmed)] = length
        return (highest if highest >= 0 else None), lengths

    def _take(self, position: int, wanted: tuple[int, int], answer: ReadAnswer) -> None:
        """Pass on what can be verified of an answer to a read of the ids ``wanted`` (both inclusive).

        Raises :class:`BookieUnavailableError` if it answers for none of them: asking again would never end.
        """
        first, last = wanted
        found: dict[int, bytes] = {}
        covered = min(answer.last_covered, last)
        if covered < first:
            raise BookieUnavailableError(f"answered nothing of entries {first} to {last}")
        unknown = {
            entry_id for low, high in answer.unknown for entry_id in range(max(low, first), min(high, covered) + 1)
        }
        damaged = False
        for sealed in answer.entries:
            try:
                found[self._opener.open(sealed).entry_id] = sealed
            except DigestMismatchError:
                damaged = True
        if damaged:
            # The id of a damaged entry is unknown, so none of the missing ids counts as absent (rule R2).
            unknown |= set(range(first, covered + 1)) - found.keys()
            self._answers[position] = "sent a damaged entry"
        elif unknown:
            self._answers[position] = f"cannot tell of entry {min(unknown)}"
        if position in self._unsure:
            residues = self._machine.residues_at(position)
            untold = min((one for one in unknown if one % self._quorums.ensemble_size in residues), default=None)
            if untold is not None:
                # What lies above is asked again, once it is decided what becomes of this one.
                self._untold[position], covered = untold, untold - 1
        if covered >= first:
            self._machine.on_read(position, first, covered, found, unknown)
        self._advance()

    # --- going on -----------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Whatever an answer made possible."""
        machine = self._machine
        if machine.later_term is not None:
            self._failed(
                TermOverError(
                    f"stream {self.term.ledger_id}: term {self.term.number} is over: a bookie knows of term "
                    f"{machine.later_term}"
                )
            )
            return
        blocked_by = machine.blocked_by
        if blocked_by is not None:
            self._failed(self._blocked(blocked_by))
            return
        recovered = machine.take_recovered()
        if recovered:
            writing = self._writing or self._begin_writing()
            for start, stop in frames_of(recovered):
                entries = recovered[start:stop]
                self._unwritten += map(len, entries)
                last = header_of(entries[-1])
                writing.push(entries, sealed_bytes=sum(map(len, entries)), length_after=last.length)
        if machine.finished and not self._finished.done():
            self._finished.set_result(None)
        self._moved.set()

    def _begin_writing(self) -> Replication:
        start = self._machine.start
        assert start is not None, "entries are recovered after the fence"
        self._writing = Replication(
            self.term,
            self._secrets.ledger_key,
            pool=self._pool,
            placer=self._placer,
            options=self._options,
            commit=self._note_change,
            start=self._supervisor.start,
            on_acknowledged=self._written_back,
            on_failure=self._failed,
            first_entry_id=start + 1,
            length=self._machine.start_length,
            flags=AddFlag.RECOVERY,
        )
        return self._writing

    async def _note_change(self, change: Commit) -> bool:
        """A change of the ensemble during recovery stays local until the end is written (rule F5)."""
        fragment = Fragment(EntryId(change.first_entry_id), change.ensemble, change.length_before)
        if self._fragments and self._fragments[-1].first_entry_id == fragment.first_entry_id:
            self._fragments.pop()
        self._fragments.append(fragment)
        self._on_change(change)
        return True

    def _written_back(self, first: int, last: int, _payload_bytes: int) -> None:
        count = last + 1 - first
        sealed_bytes = sum(self._unwritten[:count])
        del self._unwritten[:count]
        self._machine.on_written_back(last, sealed_bytes)
        if self._machine.finished and not self._finished.done():
            self._finished.set_result(None)
        self._moved.set()

    def _blocked(self, positions: tuple[int, ...]) -> LedgerRecoveryError:
        bookies = self.term.bookies
        answers = "; ".join(_named(bookies[position], self._answers[position]) for position in positions)
        at = self._machine.blocked_at
        what = "too few of its bookies could be fenced" if at is None else f"it is unknown whether it has entry {at}"
        return LedgerRecoveryError(
            f"ledger {self.term.ledger_id} cannot be recovered now: {what}: {answers}. {self._way_out(positions)}"
        )

    def _way_out(self, positions: tuple[int, ...]) -> str:
        in_doubt = sorted(self._in_doubt & set(positions))
        if not in_doubt:
            return "Bring these bookies back, or open the ledger with recover=False to read what is confirmed"
        names = ", ".join(self.term.bookies[position] for position in in_doubt)
        without = " ".join(f"--without {self.term.bookies[position]}" for position in in_doubt)
        return (
            f"In doubt, because they were wiped or damaged and may have lost entries: {names}. If their original data "
            "directories exist, start them with those. Otherwise open the ledger with recover=False to read what is "
            f"confirmed, or close it without them: octavo repair accept-loss {self.term.ledger_id} {without}, "
            "after which acknowledged entries may be lost"
        )


def _named(bookie_id: BookieId, answer: str) -> str:
    """The answer of a bookie, for an error message. Messages of its connection name the bookie already."""
    name = f"bookie {bookie_id}"
    return answer if answer.startswith(name) else f"{name}: {answer}"
