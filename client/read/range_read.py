"""Carries out read plans: sends their asks, verifies what comes back, races slow replicas.

A :class:`RangeRead` is driven by the callbacks of connections, not by a task, so that any number of them can be
under way ahead of a reader and be dropped without ceremony. Only an ask whose connection is not up needs a task, to
wait for it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from octavo.client.options import ClientOptions
from octavo.client.read.plan import Ask, ReadPlan, Segment, VerdictKind, preference_order
from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.protocol.entries import Entry, Opener
from octavo.protocol.entry_columns import open_columns
from octavo.protocol.errors import DigestMismatchError, InternalError, OctavoError, TasksCancelledError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.messages import Read, ReadAnswer, ReadFlag, Reply
from octavo.protocol.quorums import Quorums

RANGE_BYTES_MAX = 2 * FRAME_PAYLOAD_BYTES_TARGET
"""Budget of one plan and of the answers to one of its rounds. Twice what a reader aims at, so that entries that vary in
size seldom need a second request."""

_STRIPE_BYTES_MIN = 64 * 1024
"""Least an answer may hold where many stripes share the budget."""


_BLAME_FACTOR_MAX = 64
"""How many times its first term a bookie is asked last at most."""


class BlameList:
    """Bookies that were slow or failed lately: asked last until their time is over (rule R1). Shared by the readers
    of a client.

    One that is found so again soon after its time was over is asked last for twice as long: a bookie that hangs for
    good then costs its readers a second in ten minutes, not a second in ten.
    """

    def __init__(self, *, blame_seconds: float, now: Callable[[], float]) -> None:
        self._blame_seconds = blame_seconds
        self._now = now
        self._terms: dict[BookieId, tuple[float, float]] = {}
        """When it is over, and how long it was."""

    def blame(self, bookie_id: BookieId) -> None:
        """Ask this bookie last for a while, from now on."""
        now, first = self._now(), self._blame_seconds
        until, seconds = self._terms.get(bookie_id, (now - first, first))
        if until <= now:
            again = now < until + seconds
            seconds = min(2 * seconds, first * _BLAME_FACTOR_MAX) if again else first
        self._terms[bookie_id] = (now + seconds, seconds)

    def blamed(self) -> frozenset[BookieId]:
        """Those to ask last."""
        if not self._terms:
            return frozenset()
        now = self._now()
        # A term is remembered as long again as it was.
        self._terms = {one: term for one, term in self._terms.items() if term[0] + term[1] > now}
        return frozenset(bookie_id for bookie_id, (until, _) in self._terms.items() if until > now)


class ReplicaReader:
    """Reads of one ledger by one reader: its lots, its opener, its way to the bookies.

    ``on_entries`` gets every batch of verified entries, ids ascending, before the callers do.
    """

    def __init__(
        self,
        *,
        ledger_id: LedgerId,
        opener: Opener,
        read_key: bytes,
        pool: ConnectionPool,
        options: ClientOptions,
        blame: BlameList,
        draw: Callable[[], float],
        on_entries: Callable[[Sequence[Entry]], None],
    ) -> None:
        """``read_key``: the ledger's key if the ledger is private, else empty."""
        self.ledger_id = ledger_id
        self.read_key = read_key
        self.pool = pool
        self.options = options
        self.blame = blame
        self._opener = opener
        self._draw = draw
        self._on_entries = on_entries
        self._lots: dict[BookieId, float] = {}
        self.entries_by_bookie: Counter[BookieId] = Counter()
        """Entries that each bookie gave, and that verified."""
        self.speculative_reads = 0
        self._under_way: dict[RangeRead, None] = {}
        """In the order in which they began, as a simulated world must end them alike in every run."""

    @property
    def requests_under_way(self) -> int:
        """Reads that have begun and are not over."""
        return len(self._under_way)

    def preference(self, bookies: Sequence[BookieId]) -> list[int]:
        """Slots of this ensemble in the order in which this reader asks them."""
        for bookie_id in bookies:
            if bookie_id not in self._lots:
                self._lots[bookie_id] = self._draw()
        return preference_order(bookies, [self._lots[bookie_id] for bookie_id in bookies], self.blame.blamed())

    def begin(
        self,
        quorums: Quorums,
        bookies: Sequence[BookieId],
        first: int,
        last: int,
        *,
        blame_absent: bool,
        columns: bool = False,
    ) -> "RangeRead":
        """Start to read ``first..last`` of a fragment with this ensemble.

        ``blame_absent``: the entries ought to be there, so a replica without them is asked last for a while.
        ``columns``: entries need not be opened one by one.
        """
        plan = ReadPlan(quorums, bookies, self.preference(bookies), first, last, budget_bytes=RANGE_BYTES_MAX)
        read = RangeRead(self, plan, asked_last=last, blame_absent=blame_absent, columns=columns)
        self._under_way[read] = None
        read.start()
        return read

    def abandon_all(self, make_error: Callable[[], OctavoError]) -> None:
        """End every read in progress. Waiting callers get an error."""
        for read in list(self._under_way):
            read.abandon(make_error())

    def open_columns(self, sealed: Sequence[bytes]) -> tuple[Sequence[Entry], bool]:
        """As :meth:`open_entries`, without a step per entry where all is ordinary and well."""
        columns = open_columns(self._opener, sealed)
        if columns is None:
            return self.open_entries(sealed)
        self._on_entries(columns)
        return columns, False

    def open_entries(self, sealed: Sequence[bytes]) -> tuple[list[Entry], bool]:
        """The entries that verify, in order of ids, and whether there were others."""
        try:
            entries, damaged = self._opener.open_batch(sealed), False
        except DigestMismatchError:
            entries, damaged = self._open_intact(sealed), True
        if any(map(_not_below, entries, entries[1:])):
            entries = sorted({entry.entry_id: entry for entry in entries}.values(), key=lambda entry: entry.entry_id)
        self._on_entries(entries)
        return entries, damaged

    def count(self, bookie_id: BookieId, entries: int) -> None:
        """This bookie has brought this number of entries, which verified."""
        self.entries_by_bookie[bookie_id] += entries

    def ended(self, read: "RangeRead") -> None:
        """A read is over."""
        self._under_way.pop(read, None)

    def _open_intact(self, sealed: Iterable[bytes]) -> list[Entry]:
        entries = []
        for one in sealed:
            try:
                entries.append(self._opener.open(one))
            except DigestMismatchError:
                continue
        return entries


def _not_below(entry: Entry, following: Entry) -> bool:
    return entry[1] >= following[1]


class RangeRead:
    """One plan being carried out. :meth:`wait` returns once it is done; what it found is in :attr:`plan`."""

    def __init__(
        self, replicas: ReplicaReader, plan: ReadPlan, *, asked_last: int, blame_absent: bool, columns: bool = False
    ) -> None:
        loop = asyncio.get_running_loop()
        self.plan = plan
        self.asked_last = asked_last
        """Last id requested; the plan may have given up the end of the range."""
        self.sources: list[tuple[BookieId, Sequence[Entry]]] = []
        """What each answer brought that verified."""
        self._replicas = replicas
        self._blame_absent = blame_absent
        self._columns = columns
        self._open = replicas.open_columns if columns else replicas.open_entries
        self._loop = loop
        self._done: asyncio.Future[None] = loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Send the first asks."""
        self._perform(self.plan.start())

    async def wait(self) -> None:
        """Return when the plan is done. Raises what :meth:`abandon` was given. Cancelling it does not end the read."""
        await asyncio.shield(self._done)

    def abandon(self, error: OctavoError | None = None) -> None:
        """Ignore answers from now on: no caller wants the outcome any more, or there can be none."""
        if not self._done.done():
            if error is not None:
                self._done.set_exception(error)
                self._done.exception()  # no caller need wait for it
            else:
                self._done.cancel()
        self._release()

    # --- events --------------------------------------------------------------------------------------------------

    def _outcome(self, ask: Ask, outcome: Reply | OctavoError) -> None:
        if self._done.done():
            return
        if isinstance(outcome, TasksCancelledError):  # of every bookie: there are no connections any more
            self.abandon(outcome)
            return
        try:
            asks = self._judge(ask, outcome)
            self._perform(asks)
        except Exception as error:
            self.abandon(InternalError(f"ledger {self._replicas.ledger_id}: reading failed: {error!r}"))
            raise

    def _judge(self, ask: Ask, outcome: Reply | OctavoError) -> list[Ask]:
        blame = self._replicas.blame
        if isinstance(outcome, ReadAnswer):
            entries, damaged = self._open(outcome.entries)
            counts = self._replicas.pool.counts
            counts.entries_read += len(entries)
            if damaged:
                counts.digest_mismatches += max(1, len(outcome.entries) - len(entries))
            if entries:
                self.sources.append((ask.bookie_id, entries))
                self._replicas.entries_by_bookie[ask.bookie_id] += len(entries)
            expected = _id_count(ask, min(outcome.last_covered, ask.last))
            if damaged or (self._blame_absent and len(entries) < expected):
                blame.blame(ask.bookie_id)
            return self.plan.on_answer(
                ask, last_covered=outcome.last_covered, entries=entries, unknown=outcome.unknown, damaged=damaged
            )
        blame.blame(ask.bookie_id)
        text = outcome.message if isinstance(outcome, OctavoError) else f"answered {type(outcome).__name__}"
        return self.plan.on_failure(ask, text or type(outcome).__name__)

    def _slow(self) -> None:
        """All bookies asked so far take long: ask the next ones too."""
        self._timer = None
        for bookie_id in self.plan.awaited_bookies:
            self._replicas.blame.blame(bookie_id)
        asks = self.plan.on_slow()
        self._replicas.speculative_reads += len(asks)
        self._replicas.pool.counts.speculative_reads += len(asks)
        self._perform(asks)

    # --- acts ----------------------------------------------------------------------------------------------------

    def _perform(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            self._send(ask)
        if not self.plan.done:
            if asks and self._timer is None:
                self._timer = self._loop.call_later(self._replicas.options.read_slow_seconds, self._slow)
        elif not self._done.done():
            self._done.set_result(None)
            self._release()

    def _send(self, ask: Ask) -> None:
        replicas = self._replicas
        bytes_max = max(RANGE_BYTES_MAX * len(ask.residues) // ask.modulus, _STRIPE_BYTES_MIN)
        request = Read(
            replicas.ledger_id,
            replicas.read_key,
            ReadFlag.NONE,
            0,
            ask.first,
            ask.last,
            ask.modulus,
            ask.residues,
            ENTRIES_PER_FRAME_MAX,
            bytes_max,
        )
        try:
            connection = replicas.pool.get(ask.bookie_id)
        except OctavoError as error:
            self._loop.call_soon(self._outcome, ask, error)
            return
        request_id = replicas.pool.next_request_id()
        timeout_seconds = replicas.options.request_timeout_seconds
        on_outcome = partial(self._outcome, ask)
        sent = connection.send(
            request.encode(request_id), request_id, on_outcome, timeout_seconds=timeout_seconds, bulk=self._columns
        )
        if not sent:
            task = self._loop.create_task(self._request(connection, ask, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            when_cancelled(task, partial(self._outcome, ask, tasks_cancelled("a read")))

    async def _request(self, connection: BookieConnection, ask: Ask, request: Read) -> None:
        """Ask over a connection that is not up yet, or is full."""
        outcome: Reply | OctavoError
        try:
            outcome = await connection.request(
                request, timeout_seconds=self._replicas.options.request_timeout_seconds, bulk=self._columns
            )
        except OctavoError as error:
            outcome = error
        self._outcome(ask, outcome)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            if task is not asyncio.current_task(self._loop):
                task.cancel()
        self._replicas.ended(self)


def _id_count(ask: Ask, covered: int) -> int:
    """How many ids an answer up to ``covered`` speaks of."""
    modulus, below = ask.modulus, ask.first - 1
    return sum((covered - residue) // modulus - (below - residue) // modulus for residue in ask.residues)


def describe_missing(ledger_id: LedgerId, bookies: Sequence[str], segment: Segment) -> str:
    """Each bookie and its answer about the first entry of the segment, for people."""
    answers = "; ".join(
        f"bookie {bookies[position]}: {verdict.detail.removeprefix(f'bookie {bookies[position]}: ')}"
        for position, verdict in segment.verdicts
    )
    return f"ledger {ledger_id} entry {segment.first} cannot be had from any of its bookies: {answers}"


def absences(segment: Segment) -> int:
    """How many replicas say, and would know, that they do not have the entry."""
    return sum(verdict.kind is VerdictKind.ABSENT for _, verdict in segment.verdicts)
