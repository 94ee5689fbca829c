"""The term of a stream that its client has opened: how it is written, rolled, renewed, and put at rest.

Entries go through the :class:`~octavo.client.write.core.Core` of the ledger that the term is to bookies
(:mod:`octavo.metadata.ledger.term`). Its front counts in positions, bookies in places: within a term the two
differ by a constant, which is added once for each frame. Closing it puts the stream at rest. A writer whose term is
over fails, and writes nothing any more (rule T10).

Two things go on without a failed add. A *roll* begins a new fragment of the same term (rule U6). A *renewal* opens the
next term (rule T11): near the last place of the term nothing more is sent, and once everything sent is acknowledged the
writer ends its own term and opens the next one, with one compare-and-set. Until it is known to stand nothing is sent or
acknowledged; what is added waits. A renewal is also how the writer changes its quorums (rule T13).

Where all copies are required (rules G2 to G4) a roll begins at LAFR + 1. A renewal waits until everything that was sent
has all of its copies; one that is to get a bookie back gives up after ``full_copies_patience_seconds``, and adds go on
in the present term.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from octavo.client.choose.term_ensembles import Ensembles
from octavo.client.terms.own_term import NextTerm, OwnTerm
from octavo.client.write.core import Core, CoreFront, WriterTools
from octavo.client.write.front.adds import internal_error
from octavo.client.write.kinds.ledgers import copies_of
from octavo.client.write.writer_life import WriterState
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.changes import TermEnd
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.errors import (
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OctavoError,
    UnderReplicatedError,
)
from octavo.protocol.ids import BookieId
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums

RENEWAL_OFFSET: Final = 2**35 - 2**20
"""Offset from which a term is renewed. A turn of the event loop sends at most one window, of at most a million adds, so
none of them goes beyond the last place of the term."""


_GOES_ON: Final = (WriterState.OPEN, WriterState.DRAINING, WriterState.UNCLOSED)
"""States in which what was added is still to be sent."""


class OpenedTerm:
    """See the module. ``stream``: as just opened by this client. ``on_term`` is told of each term that a renewal
    opens."""

    def __init__(
        self,
        stream: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        tools: WriterTools,
        front: CoreFront,
        *,
        token: Callable[[], str],
        full_copies: FullCopies | None,
        on_term: Callable[[Versioned[StreamMetadata]], object] | None = None,
    ) -> None:
        """``token`` gives a random token. ``full_copies``: as the stream says, or None for a writer without."""
        value = stream.value
        assert value.state is StreamState.OPEN, "nothing is sent before the term stands (rule T6)"
        self._own_term = own = OwnTerm(
            stream,
            store=tools.store,
            retry_seconds=tools.options.resend_delay_seconds,
            # A fragment is not noted as begun before an entry below it was sealed (rule P10).
            clock_ms=lambda: max(tools.clock_ms(), self.core.sealed_at_ms),
        )
        self.core = Core(
            own,
            secrets,
            tools,
            front,
            not_closed=f"stream {value.ledger_id} was not closed",
            copies=copies_of(full_copies, tools.options),
            on_ending=self._end_renewals,
            on_limit=self._begin_renewal,
        )
        self._options = tools.options
        self._renewal_offset = tools.renewal_offset
        self._token = token
        self._on_term = on_term
        self._ensembles = Ensembles(tools.pool, tools.placer)
        self._loop = asyncio.get_running_loop()
        self._renewing: asyncio.Task[None] | None = None
        self._ends_renewals = False
        """Whether this writer has ended a renewal because it ends itself."""
        self._given_up: OctavoError | None = None
        """Why the last renewal was not made, although the writer goes on."""
        self._begin_term(value)

    def _begin_term(self, stream: StreamMetadata) -> None:
        first = stream.last_fragment
        assert first.first_entry_id == place(stream.term, 0), "nothing has been written in it"
        self._term = stream.term
        offset = RENEWAL_OFFSET if self._renewal_offset is None else self._renewal_offset(stream.term)
        self._renewal_place = place(stream.term, offset)
        self.core.begin(
            first.first_entry_id,
            first.length_before,
            first_position=first.first_position,
            limit=self._renewal_place,
        )

    @property
    def term(self) -> int:
        """The term that it writes: a number that rises with each writer of the stream, and with each renewal."""
        return self._term

    @property
    def stream(self) -> StreamMetadata:
        """The latest metadata of the stream that this writer has seen or written."""
        return self._own_term.stored

    @property
    def root(self) -> Versioned[StreamMetadata]:
        """The same, with their version."""
        return self._own_term.root

    @property
    def last_position(self) -> int:
        """The last position that is acknowledged; -1 while the stream is empty."""
        lac = self.core.last_add_confirmed
        assert lac is not None, "a term without entries has the LAC below its first place"
        return lac + self.core.position_shift

    @property
    def requires_copies(self) -> bool:
        """Whether an entry takes room until it has all of its copies (rule G2)."""
        return self.core.copies.hold_room

    async def wait_copies(self, seconds: float) -> None:
        """Wait for so long, at most, until every acknowledged entry has the copies that it requires."""
        if self.requires_copies:
            await self.core.copies.wait_before_end(seconds)

    # --- rolls --------------------------------------------------------------------------------------------------------

    async def roll(self) -> bool:
        """Begin a new fragment behind what is acknowledged, on other bookies if there are any (rule U6); whether there
        is one: not where the present one holds nothing, nor when the writer fails. Adds go on meanwhile, and wait for
        one change of the metadata. Waits until something of the present fragment is acknowledged, and for a renewal
        that is under way: the next term begins with a fragment.

        Raises what the metadata store raises before anything is changed: then the present fragment serves on. Raises
        :class:`UnderReplicatedError` where nothing that the present fragment holds has all of the copies that it
        requires, or the bookies of the next one did not get those that they need.
        """
        core = self.core
        term = self._term
        while True:
            if self._renewing is not None:
                await asyncio.wait([self._renewing])
            elif self._holds_acknowledged() or not core.pipeline.pending:
                break
            else:
                await core.wait_acknowledged()
        if self._term != term:
            return True
        path = core.path
        if path is None or not self._holds_acknowledged():
            return False
        if not core.copies.may_roll_above(self.stream.last_fragment.first_entry_id):
            raise UnderReplicatedError(
                f"stream {core.id}: no fragment begins behind entries that do not have all copies that it requires: "
                f"{core.copies.describe()}"
            )
        if await path.replication.replacing.roll(self._next_bookies):
            return True
        if self.requires_copies and self._holds_acknowledged() and core.life.state is WriterState.OPEN:
            raise UnderReplicatedError(
                f"stream {core.id}: no fragment has begun, because the bookies that were to have it could not be given "
                f"the copies that it requires; the writer goes on in the present one. {core.copies.describe()}"
            )
        return False

    def _holds_acknowledged(self) -> bool:
        """Whether something of the present fragment is acknowledged."""
        last = self.core.last_add_confirmed
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
        path = self.core.path
        return path is not None and path.replication.slots.are_in_doubt

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
            self.core.check_usable()
            if self._renewing is None:
                self._given_up = None
                self._begin_renewal(NextTerm(quorums, bookies))
            if self._renewing is not None:
                await asyncio.wait([self._renewing])
            if self._given_up is not None:
                raise self._given_up

    def _begin_renewal(self, following: NextTerm | None = None) -> asyncio.Task[None] | None:
        """``following``: for another term than one like the present one."""
        if self._renewing is None and self.core.life.state in _GOES_ON:
            renewing = self._loop.create_task(self._renew(following), name=f"octavo renewal of stream {self.core.id}")
            self._renewing = when_cancelled(renewing, self._renewal_cancelled)
        return self._renewing

    def _renewal_cancelled(self) -> None:
        """By this writer as it ends, or by the program."""
        self._renewing = None
        if not self._ends_renewals:
            self.core.fail(tasks_cancelled(f"stream {self.core.id}"))

    async def _renew(self, following: NextTerm | None) -> None:
        core = self.core
        try:
            if following is None:
                following = NextTerm(self.quorums, await self._bookies_of_next_term())
            core.limit = 0  # nothing is sent: the term ends with what has been
            await core.wait_acknowledged()
            self._given_up = await self._wait_for_copies()
            if self._given_up is None:
                await self._end_term(following)
        except OctavoError as error:
            core.fail(error)
        except Exception as error:  # a broken invariant: nothing may be added any more
            core.fail(internal_error(core.id, error))
            raise
        finally:
            self._renewing = None
        core.limit = self._renewal_place
        if core.life.failure is None:
            core.begin_watching()
            core.go_on()

    async def _wait_for_copies(self) -> OctavoError | None:
        """Wait until the term may end as far as its copies are concerned (rule G4); why it may not yet."""
        core = self.core
        patience = max(self._options.full_copies_patience_seconds, self._options.resend_delay_seconds)
        while core.path is not None:
            await core.path.replication.replacing.wait_settled()
            if core.life.failure is not None:
                raise core.life.failure
            lacking = core.under_replicated()
            if lacking is None:
                break
            if not await core.copies.catch_up(patience) and core.pipeline.next_entry_id < self._renewal_place:
                return core.under_replicated()  # there is no need to go on in another term
        return None

    async def _end_term(self, following: NextTerm) -> None:
        """Everything sent is acknowledged: end the term, and go on in the next one."""
        core = self.core
        if core.path is not None:
            await core.path.replication.replacing.wait_settled()
            # From choosing the end until the outcome is known nothing is sent or acknowledged.
            core.path.replication.stop()
        pipeline = core.pipeline
        assert not pipeline.pending, "the end of the term is its last acknowledged entry"
        assert pipeline.last_add_confirmed is not None, "a term without entries ends below its first place"
        owed = (self.stream.last_fragment.first_entry_id, pipeline.debt())
        end = TermEnd(pipeline.last_add_confirmed, pipeline.length, (owed,))
        renewed = await self._own_term.renew(end, following, self._token(), lambda: core.life.failure is None)
        if renewed is not None:
            await core.end_path()
            self._begin_term(renewed.value)
            if self._on_term is not None:
                self._on_term(renewed)

    async def _bookies_of_next_term(self) -> tuple[BookieId, ...]:
        present = self.stream.last_fragment
        try:
            return await self._ensembles.reachable(present.quorums, present.bookies)
        except (NotEnoughBookiesError, MetadataUnavailableError):
            return present.bookies  # they may be back before an add has waited too long

    async def _end_renewals(self) -> None:
        """The writer ends: no term follows."""
        renewing = self._renewing
        if renewing is not None and renewing is not asyncio.current_task():
            self._ends_renewals = True
            renewing.cancel()
            await asyncio.wait([renewing])
