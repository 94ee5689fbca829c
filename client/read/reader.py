"""A ledger as its readers see it: ordered entries up to the last add confirmed, whichever bookies are up.

Ranges are cut into *chunks* of about ``FRAME_PAYLOAD_BYTES_TARGET`` bytes within one fragment; each is one read plan
(:mod:`octavo.client.read.plan`). Iterating keeps several chunks under way, so bookies, network and application work
at the same time; per entry it costs one step of a generator.

When every replica has answered and an entry is still missing, the metadata are read again and the read is tried again
(rule R5); while a bookie could not be reached that goes on until ``read_quorum_timeout_seconds`` are over. Then
an entry at or below the readable end is a :class:`QuorumLostError` that names each bookie and its answer.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, NamedTuple

from octavo.client.arguments import check_flag, check_seconds
from octavo.client.async_context import Closable
from octavo.client.options import ClientOptions
from octavo.client.read.feeds import Feeds
from octavo.client.read.follow import LedgerTail
from octavo.client.read.lac import LacAsker
from octavo.client.read.ledger_view import LedgerView
from octavo.client.read.plan import Segment, VerdictKind
from octavo.client.read.range_read import BlameList, RangeRead, ReplicaReader, absences, describe_missing
from octavo.client.read.source import TermSource
from octavo.client.read.statistics import Waits, reader_statistics
from octavo.client.read.terms import PieceMovedError
from octavo.client.same_loop import check_loop
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.ledger.term import Term, mean_entry_bytes
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.stream.any_metadata import as_ledger
from octavo.protocol.entries import OVERHEAD_BYTES_MAX, Entry, LedgerSecrets, Opener
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    MetadataUnavailableError,
    NoSuchEntryError,
    OctavoTimeoutError,
    QuorumLostError,
)
from octavo.protocol.ids import ID_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_TARGET
from octavo.security import forks

if TYPE_CHECKING:
    from octavo.client.statistics.readers import ReaderStatistics

_ENTRY_BYTES_GUESS = 1024
"""Payload of an entry where nothing is known yet; only the first chunks of an open ledger are cut by it."""

_RETRY_SECONDS_MIN = 0.05
_RETRY_SECONDS_MAX = 1.0
"""Pauses between rounds while bookies are out of reach: doubling, so that a short break costs little more than
itself."""


class EntryBatch(NamedTuple):
    """Consecutive entries as they arrived, and which bookies gave them.

    Examples:
        >>> async for batch in reader.batches(0, 2):
        ...     [entry.payload for entry in batch.entries], len(batch.bookies())
        ([b'first', b'second', b'third'], 3)
    """

    entries: Sequence[Entry]
    """At least one, in order; as :class:`EntryColumns` where they arrived as one ordinary answer."""
    sources: Sequence[tuple[BookieId, Sequence[Entry]]]
    """What each answer brought; an entry may be in several, with the same bytes."""

    def bookies(self) -> list[BookieId]:
        """A bookie that gave it, for each of ``entries``."""
        if len(self.sources) == 1:
            return [self.sources[0][0]] * len(self.entries)
        given = {entry.entry_id: bookie_id for bookie_id, entries in self.sources for entry in entries}
        return [given[entry.entry_id] for entry in self.entries]


class LedgerReader(Closable):
    """Reads one ledger. Made by ``Client.open_ledger``.

    Use it as an async context manager, or ``close()`` it. Every method may be called from any task of the loop.

    Examples:
        >>> [(entry.entry_id, entry.payload) async for entry in reader]
        [(0, b'first'), (1, b'second'), (2, b'third')]
        >>> await reader.close()

    Raises:
        ClientClosedError: By every method, once the reader or its client is closed.
        NoSuchLedgerError: By every method that asks the metadata store, when the ledger has been deleted.
        InvalidArgumentError: By every method, for a wrong argument.
    """

    def __init__(
        self,
        source: TermSource,
        secrets: LedgerSecrets,
        *,
        pool: ConnectionPool,
        options: ClientOptions,
        feeds: Feeds,
        blame: BlameList,
        draw: Callable[[], float],
        entry_wait_seconds: float,
        on_close: Callable[["LedgerReader"], None],
    ) -> None:
        term, version = source.term
        self._id = term.ledger_id
        self._source = source
        self._options, self._draw, self._on_close = options, draw, on_close
        self._quorums = term.quorums
        self._view = LedgerView(term, version)
        opener = Opener(self._id, term.key.digest, secrets)
        self._replicas = ReplicaReader(
            ledger_id=self._id,
            opener=opener,
            read_key=secrets.ledger_key if term.private else b"",
            pool=pool,
            options=options,
            blame=blame,
            draw=draw,
            on_entries=self._entries_arrived,
        )
        self._tail = LedgerTail(
            source=source, view=self._view, count=self._replicas.count, entry_wait_seconds=entry_wait_seconds,
            find_feed=lambda: feeds.feed(Versioned(self._view.term, Version(self._view.version)), secrets),
        )  # fmt: skip
        self._asker = LacAsker(
            replicas=self._replicas, opener=opener, view=self._view, quorums=self._quorums, on_change=self._tail.notify
        )
        mean = mean_entry_bytes(term)
        self._entry_bytes = float(_ENTRY_BYTES_GUESS) if mean is None else mean
        self._closed = False
        self._waits = Waits()
        self._loop = asyncio.get_running_loop()

    async def _start(self) -> None:
        """Find out how far the ledger can be read."""
        if not self._view.closed:
            self._tail.start()
            await self._learn_last_add_confirmed()

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def id(self) -> LedgerId:
        """The ledger's id."""
        return self._id

    @property
    def metadata(self) -> LedgerMetadata:
        """The latest metadata this reader has seen.

        Raises:
            LedgerKindError: It is a log that reads, and reads a stream.
        """
        return as_ledger(self._source.stored)

    @property
    def current_term(self) -> Term:
        """The term that is read, by the latest metadata: all of a ledger, or a piece of a stream."""
        return self._view.term

    @property
    def ledger_closed(self) -> bool:
        """Whether the ledger has its final end, as far as this reader has heard."""
        return self._view.closed

    @property
    def last_add_confirmed(self) -> EntryId | None:
        """Highest id that can be read; None when there is none. Never goes back (rule I4)."""
        return self._view.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes up to the last add confirmed.

        Exact for a closed ledger and after a refresh; while LACs arrive without their lengths it may lag behind.
        """
        return self._view.length

    @property
    def closed(self) -> bool:
        """Whether this reader has been closed."""
        return self._closed

    def statistics(self) -> "ReaderStatistics":
        """Statistics of what was read, from which bookies, and of callers that wait.

        Examples:
            >>> entries = await reader.read(0, 2)
            >>> reader.statistics().entries_read
            3
        """
        check_loop(self._loop)
        return reader_statistics(self._view, self._replicas, self._tail, self._waits, is_closed=self._closed)

    def __repr__(self) -> str:
        ledger = "closed" if self._view.closed else self._view.term.state.value
        readable = "nothing to read" if (end := self.last_add_confirmed) is None else f"readable up to entry {end}"
        return f"<LedgerReader of ledger {self._id} ({ledger}), {'closed' if self._closed else 'open'}, {readable}>"

    def _learn_confirmed(self, last: int) -> None:
        """The ledger's writer, in this process, says that the entries up to this one are acknowledged; -1 for none."""
        if self._view.on_last_add_confirmed(EntryId(last) if last >= 0 else None, None):
            self._tail.notify()

    # --- reading -------------------------------------------------------------------------------------------------

    async def read(self, first: int, last: int) -> list[Entry]:
        """Entries ``first..last``, both included.

        Memory for all of them is the caller's; ``entries()`` goes in chunks.

        Examples:
            >>> [entry.payload for entry in await reader.read(0, 1)]
            [b'first', b'second']

        Raises:
            NoSuchEntryError: ``last`` is above ``last_add_confirmed``.
            QuorumLostError: An entry cannot be had from any bookie.
        """
        self._check_range(first, last)
        self._check_readable(last)
        return await self._collect(first, last)

    async def read_unconfirmed(self, first: int, last: int) -> list[Entry]:
        """As ``read()``, also above the last add confirmed.

        Entries there may still turn out never to have been added.

        Examples:
            >>> async with client.create_ledger() as ledger:
            ...     entry_id = await ledger.add(b"payload")
            ...     async with client.open_ledger(ledger.id, recover=False) as reader:
            ...         [entry.payload for entry in await reader.read_unconfirmed(0, 0)]
            [b'payload']

        Raises:
            NoSuchEntryError: Too many bookies know nothing of an id above the LAC for it to be acknowledged.
            QuorumLostError: Not enough bookies can tell.
        """
        self._check_range(first, last)
        if self._view.closed:
            self._check_readable(last)
        return await self._collect(first, last)

    def entries(self, first: int = 0, last: int | None = None) -> AsyncGenerator[Entry]:
        """Iterate over ``first..last``; reads ahead.

        Without ``last`` it ends at the end of a closed ledger, or at the last add confirmed known now. ``async for
        entry in reader`` is the same. The errors come at once or while iterating.

        Examples:
            >>> [entry.payload async for entry in reader.entries(first=1)]
            [b'second', b'third']

        Raises:
            NoSuchEntryError: ``last`` is above ``last_add_confirmed``.
            QuorumLostError: An entry cannot be had from any bookie.
        """
        if last is None:
            self._check_range(first, first)
            last = self._view.readable_end
        else:
            self._check_range(first, last)
            self._check_readable(last)
        return self._iterate(first, last)

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self.entries()

    def batches(self, first: int, last: int, *, confirmed: bool = False) -> AsyncGenerator[EntryBatch]:
        """As ``entries()``, in the batches in which entries arrive: for bulk readers.

        ``confirmed``: the caller knows from elsewhere that ``last`` is confirmed, whatever this reader has heard.

        Examples:
            >>> async for batch in reader.batches(0, 2):
            ...     [entry.payload for entry in batch.entries]
            [b'first', b'second', b'third']

        Raises:
            NoSuchEntryError: ``last`` is above ``last_add_confirmed``, and not ``confirmed``.
            QuorumLostError: Entries cannot be had; it names them in ``missing``, and a new call goes on behind.
        """
        self._check_range(first, last)
        check_flag("confirmed", confirmed)
        if not confirmed or self._view.closed:
            self._check_readable(last)
        return self._batches(first, last, columns=True)

    def follow(self, first: int = 0) -> AsyncGenerator[Entry]:
        """Iterate from ``first`` on and wait for more, up to the last add confirmed as it advances.

        It ends after the last entry once the ledger is closed. Never disturbs the writer.

        Examples:
            >>> async with client.create_ledger() as ledger:
            ...     await ledger.add(b"payload")
            ...     async with client.open_ledger(ledger.id, recover=False) as reader:
            ...         async for entry in reader.follow():
            ...             print(entry.payload)
            ...             break
            0
            b'payload'

        Raises:
            QuorumLostError: An entry cannot be had from any bookie.
        """
        self._check_range(first, first)
        return self._follow(first)

    # --- the last add confirmed ----------------------------------------------------------------------------------

    async def refresh_last_add_confirmed(self) -> EntryId | None:
        """Ask the metadata and the bookies how far the ledger can be read now. Never disturbs the writer.

        Examples:
            >>> await reader.refresh_last_add_confirmed()
            2

        Raises:
            QuorumLostError: No bookie answers.
        """
        self._check_open()
        if not self._view.closed:
            await self._read_metadata()
        if not self._view.closed:
            await self._learn_last_add_confirmed()
        self._check_open()
        return self._view.last_add_confirmed

    async def wait_last_add_confirmed(self, at_least: int, timeout: float | None = None) -> EntryId:  # noqa: ASYNC109
        """Wait until entry ``at_least`` can be read; gives the last add confirmed then. ``timeout`` in seconds.

        Examples:
            >>> await reader.wait_last_add_confirmed(1, timeout=5)
            2

        Raises:
            OctavoTimeoutError: The time is over.
            NoSuchEntryError: The ledger is closed below that entry.
        """
        self._check_range(at_least, at_least)
        if timeout is not None:
            check_seconds("timeout", timeout)
        try:
            async with asyncio.timeout(timeout):
                while self._view.readable_end < at_least:
                    self._check_open()
                    if self._view.closed:
                        self._check_readable(at_least)
                    await self._tail.wait_change()
        except TimeoutError:
            raise OctavoTimeoutError(
                f"ledger {self._id}: entry {at_least} was not confirmed within {timeout} s", may_have_happened=False
            ) from None
        return EntryId(self._view.readable_end)

    # --- life ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End reads, iterations and waits of this reader; the ledger is not touched.

        May be called twice, from any task.
        """
        check_loop(self._loop)
        if self._closed:
            return
        self._closed = True
        self._replicas.abandon_all(self._closed_error)
        self._on_close(self)
        await self._tail.close()

    # --- chunks --------------------------------------------------------------------------------------------------

    async def _collect(self, first: int, last: int) -> list[Entry]:
        collected: list[Entry] = []
        async with aclosing(self._chunks(first, last)) as chunks:
            async for chunk in chunks:
                collected.extend(chunk)
        return collected

    async def _iterate(self, first: int, last: int) -> AsyncGenerator[Entry]:
        async with aclosing(self._chunks(first, last)) as chunks:
            async for chunk in chunks:
                for entry in chunk:
                    yield entry
                    if forks.forked:
                        self._check_open()

    async def _follow(self, first: int) -> AsyncGenerator[Entry]:
        position = first
        while True:
            self._check_open()
            end = self._view.readable_end
            if position <= end:
                brought = self._tail.entries_that_came(position, end)
                for entry in brought:
                    yield entry
                    if forks.forked:
                        self._check_open()
                position += len(brought)
                if not brought:
                    async with aclosing(self._chunks(position, end)) as chunks:
                        async for chunk in chunks:
                            for entry in chunk:
                                yield entry
                                if forks.forked:
                                    self._check_open()
                    position = end + 1
            elif self._view.closed:
                return
            else:
                await self._tail.wait_change()

    async def _chunks(self, first: int, last: int) -> AsyncGenerator[Sequence[Entry]]:
        """Entries ``first..last`` in order, several requests ahead of the consumer."""
        async with aclosing(self._batches(first, last)) as batches:
            async for batch in batches:
                yield batch.entries

    async def _batches(self, first: int, last: int, *, columns: bool = False) -> AsyncGenerator[EntryBatch]:
        ahead: deque[RangeRead] = deque()
        position = first
        begun = first - 1
        try:
            while position <= last:
                begun = self._read_ahead(ahead, begun, last, columns=columns)
                read = ahead.popleft()
                batch = await self._complete(read, columns=columns)
                position += len(batch.entries)
                self._begin_rest(ahead, position, read.asked_last, columns=columns)
                begun = self._read_ahead(ahead, begun, last, columns=columns)
                yield batch
        finally:
            for read in ahead:
                read.abandon()

    def _begin_rest(self, ahead: deque[RangeRead], first: int, last: int, *, columns: bool) -> None:
        """Begin to read what an answer left out, before what has been begun. The metadata may name more fragments by
        now than when these ids were asked for: each has a read of its own, and no id is left out (rule I4)."""
        number = 0
        while first <= last:
            read = self._begin(first, last, columns=columns)
            ahead.insert(number, read)
            number, first = number + 1, read.asked_last + 1

    def _read_ahead(self, ahead: deque[RangeRead], begun: int, last: int, *, columns: bool) -> int:
        """Begin chunks while there is room for them; gives the last id of the last one."""
        chunk_bytes = min(FRAME_PAYLOAD_BYTES_TARGET, self._options.read_ahead_bytes)
        chunks_max = min(self._options.read_ahead_requests, self._options.read_ahead_bytes // chunk_bytes)
        entries_max = int(chunk_bytes // (self._entry_bytes + OVERHEAD_BYTES_MAX)) or 1
        while begun < last and len(ahead) < chunks_max:
            asked_last = min(last, begun + min(entries_max, ENTRIES_PER_FRAME_MAX))
            read = self._begin(begun + 1, asked_last, columns=columns)
            ahead.append(read)
            begun = read.asked_last
        return begun

    def _begin(self, first: int, last: int, *, columns: bool = False) -> RangeRead:
        """Begin to read ``first..last``, or what of it lies in the fragment of ``first``."""
        self._check_open()
        term = self._view.term
        fragment = term.fragment_of(first)
        if fragment is None:
            raise PieceMovedError(f"stream {self._id}: id {first} lies in no fragment of the part that is read")
        fragment_last = term.last_id_of(fragment)
        if fragment_last is not None:
            last = min(last, fragment_last)
        confirmed = last <= self._view.readable_end
        return self._replicas.begin(
            self._quorums, fragment.bookies, first, last, blame_absent=confirmed, columns=columns
        )

    async def _complete(self, read: RangeRead, *, columns: bool) -> EntryBatch:
        """The entries of a chunk, or a beginning of it: at least one. Tries again as the module says."""
        self._waits.since[read] = began = self._loop.time()
        try:
            return await self._complete_by(began + self._options.read_quorum_timeout_seconds, read, columns=columns)
        finally:
            del self._waits.since[read]

    async def _complete_by(self, deadline: float, read: RangeRead, *, columns: bool) -> EntryBatch:
        loop, pause_seconds = self._loop, 0.0
        while True:
            await self._wait(read)
            entries = read.plan.found_prefix()
            if entries:
                self._learn_entry_bytes(entries)
                return EntryBatch(entries, read.sources)
            segment = read.plan.missing[0]
            over = loop.time() + pause_seconds > deadline
            try:
                changed = await self._read_metadata()
            except MetadataUnavailableError as error:
                # Nothing is reported as missing before the metadata have been read again (rule R5).
                if over:
                    missing = describe_missing(self._id, read.plan.bookies, segment)
                    raise MetadataUnavailableError(f"{error.message}; {missing}") from error
                changed, hopeful = False, True
            else:
                self._refuse_if_not_there(segment, metadata_changed=changed)
                hopeful = any(verdict.kind is VerdictKind.FAILED for _, verdict in segment.verdicts)
            if (pause_seconds and not hopeful) or (over and (pause_seconds or not changed)):
                raise QuorumLostError(
                    describe_missing(self._id, read.plan.bookies, segment),
                    may_have_happened=False,
                    missing=read.plan.missing_run(),
                )
            if pause_seconds:
                await asyncio.sleep(pause_seconds * (0.5 + self._draw() / 2))
            self._waits.retries += 1
            pause_seconds = min(max(2 * pause_seconds, _RETRY_SECONDS_MIN), _RETRY_SECONDS_MAX)
            read = self._begin(read.plan.first, read.asked_last, columns=columns)

    async def _wait(self, read: RangeRead) -> None:
        """Wait for a read that no other caller waits for."""
        try:
            await read.wait()
        except asyncio.CancelledError:
            read.abandon()
            raise

    def _learn_entry_bytes(self, entries: Sequence[Entry]) -> None:
        if len(entries) > 1:
            mean = (entries[-1].length - entries[0].length) / (len(entries) - 1)
        else:
            mean = float(len(entries[0].payload))
        self._entry_bytes += (mean - self._entry_bytes) * 0.5

    # --- facts ---------------------------------------------------------------------------------------------------

    def _entries_arrived(self, entries: Sequence[Entry]) -> None:
        if self._view.on_entries(entries):
            self._tail.notify()

    async def _read_metadata(self) -> bool:
        """Read the metadata again, and return whether they are newer."""
        self._check_open()
        return self._tail.adopt(await self._source.read_term())

    async def _learn_last_add_confirmed(self) -> None:
        await self._asker.ask_ensemble()
        if self._asker.heard_of_later_term and not self._view.closed:
            await self._read_metadata()  # rule V1
        end = self._view.readable_end
        if not self._view.closed and not self._view.length_known_exactly:
            # The entry at the LAC tells the length there. Whether it can be had is a reader's business, not ours.
            await self._wait(self._begin(end, end))

    # --- refusals ------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        check_loop(self._loop)
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(f"the reader of ledger {self._id} is closed")

    def _check_range(self, first: int, last: int) -> None:
        self._check_open()
        for name, value in (("first", first), ("last", last)):
            if type(value) is not int or not 0 <= value <= ID_MAX:
                raise InvalidArgumentError(
                    f"ledger {self._id}: {name} must be an entry id from 0 to {ID_MAX}, not {value!r}"
                )
        if first > last:
            raise InvalidArgumentError(f"ledger {self._id}: first {first} is above last {last}")

    def _check_readable(self, last: int) -> None:
        if last > self._view.readable_end:
            raise NoSuchEntryError(f"ledger {self._id} has no entry {last}: {self._end_in_words()}")

    def _end_in_words(self) -> str:
        end = self._view.last_add_confirmed
        if self._view.closed:
            return "it is closed and empty" if end is None else f"it is closed, its last entry is {end}"
        return "nothing in it is confirmed yet" if end is None else f"its last add confirmed known here is {end}"

    def _refuse_if_not_there(self, segment: Segment, *, metadata_changed: bool) -> None:
        """Raise :class:`NoSuchEntryError` if the missing entry lies above the end; only unconfirmed reads come this
        far."""
        if segment.first <= self._view.readable_end:
            return
        if self._view.closed:
            self._check_readable(segment.first)
        # Negatives that cover the write set: no ack quorum can have it. With another ensemble others must be asked.
        needed = self._quorums.write_quorum - self._quorums.ack_quorum + 1
        if not metadata_changed and absences(segment) >= needed:
            raise NoSuchEntryError(f"ledger {self._id} has no entry {segment.first} yet: {self._end_in_words()}")
