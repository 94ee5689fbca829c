"""The writer of a stream, from the term that its client has opened on.

It is the writer of the ledger that the term is to bookies (:mod:`octavo.metadata.stream.term_ledger`). Callers count in
positions, bookies in places: within a term the two differ by a constant, which is added once for each frame. Closing it
puts the stream at rest. A writer whose term is over fails, and writes nothing any more (rule T10).

Two things go on without a failed add. A *roll* begins a new fragment of the same term (rule U6). A *renewal* opens the
next term (rule T11): near the last place of the term nothing more is sent, and once everything sent is acknowledged the
writer ends its own term and opens the next one, with one compare-and-set. Until it is known to stand nothing is sent or
acknowledged; adds wait in the window and in the queue. A renewal is also how the writer changes its quorums (rule T13).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Final

from octavo.client.choose.term_ensembles import Ensembles
from octavo.client.terms.own_term import NextTerm, OwnTerm
from octavo.client.write.front.adds import internal_error
from octavo.client.write.write_path import EmptyPipeline
from octavo.client.write.writer import LedgerWriter, WriterTools
from octavo.client.write.writer_life import WriterState
from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.changes import TermEnd
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.errors import MetadataUnavailableError, NotEnoughBookiesError, OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums

RENEWAL_OFFSET: Final = 2**35 - 2**20
"""Offset from which a term is renewed. A turn of the event loop sends at most one window, of at most a million adds, so
none of them goes beyond the last place of the term."""


class TermWriter(LedgerWriter):
    """See the module. ``stream``: as just opened by this client. What adds return are positions. ``on_term`` is told
    of each term that a renewal opens."""

    def __init__(
        self,
        stream: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        tools: WriterTools,
        *,
        token: Callable[[], str],
        on_close: Callable[[LedgerWriter], object] | None = None,
        on_failure: Callable[[OctavoError], object] | None = None,
        on_term: Callable[[Versioned[StreamMetadata]], object] | None = None,
    ) -> None:
        """``token`` gives a random token."""
        value = stream.value
        assert value.state is StreamState.OPEN, "nothing is sent before the term stands (rule T6)"
        own = OwnTerm(
            stream,
            store=tools.store,
            retry_seconds=tools.options.resend_delay_seconds,
            # A fragment is not noted as begun before an entry below it was sealed (rule P10).
            clock_ms=lambda: max(tools.clock_ms(), self._sealed_at_ms),
        )
        super().__init__(
            Versioned(own.value, stream.version),
            secrets,
            tools,
            on_close=on_close,
            on_failure=on_failure,
            own_metadata=own,
        )
        self._own_term = own
        self._token = token
        self._on_term = on_term
        self._ensembles = Ensembles(tools.pool, tools.placer)
        self._renewing: asyncio.Task[None] | None = None
        self._ends_renewals = False
        """Whether this writer has ended a renewal because it ends itself."""
        self._given_up: OctavoError | None = None
        """Why the last renewal was not made, although the writer goes on."""
        self._holds = False
        """Nothing is sent: the term ends with what has been."""
        self._begin_term(value)

    def _begin_term(self, stream: StreamMetadata) -> None:
        first = stream.last_fragment
        assert first.first_entry_id == place(stream.term, 0), "nothing has been written in it"
        self._term = stream.term
        self._pipeline = EmptyPipeline(first.first_entry_id, first.length_before)
        self._renewal_place = place(stream.term, RENEWAL_OFFSET)
        self._position_shift = first.first_position - first.first_entry_id

    @property
    def term(self) -> int:
        """The term that it writes: a number that rises with each writer of the stream, and with each renewal."""
        return self._term

    @property
    def stream(self) -> StreamMetadata:
        """The latest metadata of the stream that this writer has seen or written."""
        return self._own_term.stream

    @property
    def root(self) -> Versioned[StreamMetadata]:
        """The same, with their version."""
        return self._own_term.root

    @property
    def last_position(self) -> int:
        """The last position that is acknowledged; -1 while the stream is empty."""
        lac = self.last_add_confirmed
        assert lac is not None, "a term without entries has the LAC below its first place"
        return lac + self._position_shift

    def _send_turn(self) -> None:
        if not self._holds and self._pipeline.next_entry_id < self._renewal_place:
            super()._send_turn()
        else:
            self._begin_renewal()

    # --- rolls --------------------------------------------------------------------------------------------------------

    async def roll(self) -> bool:
        """Begin a new fragment behind what is acknowledged, on other bookies if there are any (rule U6); whether there
        is one: not where the present one holds nothing, nor when the writer fails. Adds go on meanwhile, and wait for
        one change of the metadata. Waits until something of the present fragment is acknowledged, and for a renewal
        that is under way: the next term begins with a fragment.

        Raises what the metadata store raises before anything is changed: then the present fragment serves on.
        """
        term = self._term
        while True:
            if self._renewing is not None:
                await asyncio.wait([self._renewing])
            elif self._holds_acknowledged or not self._pipeline.pending:
                break
            else:
                await self._wait_acknowledged()
        if self._term != term:
            return True
        path = self._write_path
        if path is None or not self._holds_acknowledged:
            return False
        self._check_roll()
        return await path.replication.roll(self._next_bookies)

    def _check_roll(self) -> None:
        """Raise why no fragment can begin behind the present one."""

    @property
    def _holds_acknowledged(self) -> bool:
        last = self._pipeline.last_add_confirmed
        return last is not None and last >= self.stream.last_fragment.first_entry_id

    async def _next_bookies(self) -> tuple[BookieId, ...]:
        # Asked first, so that a store that does not answer delays no acknowledgement.
        await self._own_term.refresh()
        present = self.stream.last_fragment
        return await self._ensembles.next_ones(present.quorums, present.bookies)

    # --- renewal ------------------------------------------------------------------------------------------------------

    @property
    def is_refused_for_doubt(self) -> bool:
        """Whether a bookie takes no adds of this term, as it lost a disk, and may take those of the next one (rule
        T12)."""
        return self._write_path is not None and self._write_path.replication.is_refused_for_doubt

    async def renew(self) -> None:
        """Go on in the next term, once everything sent is acknowledged (rule T11). Adds wait meanwhile, and none of
        them fails, unless the writer does."""
        renewing = self._begin_renewal()
        if renewing is not None:
            await asyncio.wait([renewing])

    @property
    def quorums(self) -> Quorums:
        """E, Qw and Qa of the term that it writes."""
        return self.stream.last_fragment.quorums

    async def change_quorums(self, quorums: Quorums) -> None:
        """Go on with these quorums, in the next term and on newly placed bookies (rule T13); at once if they are those
        of the present term. Adds go on as in :meth:`renew`.

        Raises :class:`NotEnoughBookiesError`, :class:`UnderReplicatedError` for a stream that requires all copies while
        some are missing, and what the metadata store raises, before anything is changed: then the present term serves
        on. Else raises the failure of the writer.
        """
        if self.quorums == quorums:
            return
        # Asked first, so that a store that does not answer holds up no adds.
        await self._own_term.refresh()
        bookies = await self._ensembles.reachable(quorums, await self._ensembles.new_ones(quorums))
        while self.quorums != quorums:
            self._check_usable()
            if self._renewing is None:
                self._given_up = None
                self._begin_renewal(NextTerm(quorums, bookies))
            if self._renewing is not None:
                await asyncio.wait([self._renewing])
            if self._given_up is not None:
                raise self._given_up

    def _begin_renewal(self, following: NextTerm | None = None) -> asyncio.Task[None] | None:
        """``following``: for another term than one like the present one."""
        if self._renewing is None and self._life.state in (WriterState.OPEN, WriterState.DRAINING):
            renewing = self._loop.create_task(self._renew(following), name=f"octavo renewal of stream {self.id}")
            self._renewing = when_cancelled(renewing, self._renewal_cancelled)
        return self._renewing

    def _renewal_cancelled(self) -> None:
        """By this writer as it ends, or by the program."""
        self._renewing = None
        if not self._ends_renewals:
            self._fail(tasks_cancelled(f"stream {self.id}"))

    async def _renew(self, following: NextTerm | None) -> None:
        try:
            if following is None:
                following = NextTerm(self.quorums, await self._bookies_of_next_term())
            self._holds = True
            await self._wait_acknowledged()
            self._given_up = await self._wait_for_copies()
            if self._given_up is None:
                await self._end_term(following)
        except OctavoError as error:
            self._fail(error)
        except Exception as error:  # a broken invariant: nothing may be added any more
            self._fail(internal_error(self.id, error))
            raise
        finally:
            self._renewing = None
        self._holds = False
        if self._life.failure is None:
            self._send_waiting()

    async def _end_term(self, following: NextTerm) -> None:
        """Everything sent is acknowledged: end the term, and go on in the next one."""
        if self._write_path is not None:
            await self._write_path.replication.wait_change_settled()
            # From choosing the end until the outcome is known nothing is sent or acknowledged.
            self._write_path.replication.stop()
        pipeline = self._pipeline
        assert not pipeline.pending, "the end of the term is its last acknowledged entry"
        assert pipeline.last_add_confirmed is not None, "a term without entries ends below its first place"
        owed = (self.stream.last_fragment.first_entry_id, pipeline.debt())
        end = TermEnd(pipeline.last_add_confirmed, pipeline.length, (owed,))
        renewed = await self._own_term.renew(end, following, self._token(), lambda: self._life.failure is None)
        if renewed is not None:
            await self._go_on(renewed)

    async def _bookies_of_next_term(self) -> tuple[BookieId, ...]:
        present = self.stream.last_fragment
        try:
            return await self._ensembles.reachable(present.quorums, present.bookies)
        except (NotEnoughBookiesError, MetadataUnavailableError):
            return present.bookies  # they may be back before an add has waited too long

    async def _wait_for_copies(self) -> OctavoError | None:
        """Wait until the term may end as far as its copies are concerned (rule G4); why it may not yet."""
        return None

    async def _wait_acknowledged(self) -> None:
        """Wait until everything sent is acknowledged. Raises the failure of the writer."""
        if self._life.failure is not None:
            raise self._life.failure  # futures added from here on would never be completed
        if self._pipeline.pending:
            acknowledged: asyncio.Future[None] = self._loop.create_future()
            wanted = (self._pipeline.next_entry_id - 1, acknowledged)
            self._flushes = deque(sorted((wanted, *self._flushes), key=itemgetter(0)))
            await acknowledged

    async def _go_on(self, renewed: Versioned[StreamMetadata]) -> None:
        before = self._pipeline.next_entry_id
        await self._tear_down_write_path()
        self._write_path = None
        self._begin_term(renewed.value)
        # The adds that are waited for have no place yet; they get those behind the ones that they would have had.
        forward = self._pipeline.next_entry_id - before
        self._flushes = deque((last + forward, flushed) for last, flushed in self._flushes)
        if self._on_term is not None:
            self._on_term(renewed)

    def _send_waiting(self) -> None:
        """Send what was added meanwhile."""
        self._send_turn()

    async def _settle_end(self, deadline: float) -> OctavoError | None:
        self._ends_renewals = True
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        return await super()._settle_end(deadline)

    async def _tear_down_write_path(self) -> None:
        renewing = self._renewing
        if renewing is not None and renewing is not asyncio.current_task():
            self._ends_renewals = True
            renewing.cancel()
            await asyncio.wait([renewing])
        await super()._tear_down_write_path()
