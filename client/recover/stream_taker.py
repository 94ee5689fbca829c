"""Takes a stream over: performs what :mod:`octavo.client.recover.takeover` decides.

The recovery of the term is that of the ledger which it is to bookies. The bookies of the next term are those that the
last entries were written back to, but for those that cannot be reached (:mod:`octavo.client.choose.term_ensembles`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import NamedTuple

from octavo.client.choose.placer import Placer
from octavo.client.choose.term_ensembles import Ensembles
from octavo.client.options import ClientOptions
from octavo.client.recover.completing import Completing
from octavo.client.recover.last_entry_time import sealed_at_ms
from octavo.client.recover.recovery import FragmentRecovery
from octavo.client.recover.takeover import Phase, Takeover, pause_seconds
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.own_tasks import result_of
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.changes import StreamChange
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.metadata.updates.update import update_stream
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.errors import (
    LedgerClosedError,
    LedgerRecoveryError,
    MetadataConflictError,
    MetadataUnavailableError,
    TermOverError,
)
from octavo.protocol.ids import BookieId, LedgerId

_TOKEN_BITS = 128

_ASK_SECONDS_MIN = 0.05
"""How long bookies may take at least to say what they lack: a takeover may be over before one that is well has answered
at all."""

_ATTEMPTS_MAX = 10
"""How often a takeover begins again because the last fragment, or the end, has been written by another client. The next
attempt finds what was written, so that even a second one is rare."""


class StreamTaker:
    """Takes streams over, for one client."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        pool: ConnectionPool,
        placer: Placer,
        options: ClientOptions,
        rng: random.Random,
        wall_clock: Callable[[], datetime],
        client_name: str = "",
    ) -> None:
        """The name and the clock of the client are noted in the streams that it takes over."""
        self._store = store
        self._pool = pool
        self._placer = placer
        self._ensembles = Ensembles(pool, placer)
        self._options = options
        self._rng = rng
        self._wall_clock = wall_clock
        self._client_name = client_name
        self._not_before: dict[LedgerId, float] = {}
        """On the loop's clock, by stream: the pause of a client that has lost a takeover ends."""

    async def take_over(
        self,
        stream: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        *,
        owner: str | None = None,
        from_itself: bool = False,
        not_before_ms: int | None = 0,
        first_position_min: Callable[[], Awaitable[int]] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Versioned[StreamMetadata]:
        """Take the stream over from the term in these metadata, and return it with a new term, which is this client's
        alone. The metadata may be old: no bookie is asked by them before they are shown to be current (rule T14), and
        if another client has opened a later term since, this one has lost. ``owner``: a random token for this takeover
        and no other; by default one is drawn. ``from_itself``: the term is the client's own. ``not_before_ms``: the new
        term is not noted as begun before that; None: not before the last entry was sealed (rule P10).
        ``first_position_min``: asks below which position it does not begin either (rule P7), while the end is looked
        for. ``check``: called before each step that would disturb another client, and after the reading on which the
        step depends; what it raises ends the takeover (rule P3).

        Raises :class:`TermOverError` if another client has got ahead: after that the next call pauses first (rule
        T10). Raises :class:`LedgerClosedError` for a stream that will have no other term,
        :class:`LedgerRecoveryError` naming the bookies without which no end can be claimed,
        :class:`NotEnoughBookiesError`, :class:`NoSuchLedgerError`, :class:`MetadataUnavailableError`.
        """
        loop, ledger_id = asyncio.get_running_loop(), stream.value.ledger_id
        await asyncio.sleep(max(self._not_before.pop(ledger_id, 0.0) - loop.time(), 0.0))
        started = loop.time()
        takeover = Takeover(owner or self._token(), wants_time=not_before_ms is None)
        wanted = _Wanted(
            leader_term=stream.value.last_fragment.first_term if from_itself else 0,
            not_before_ms=not_before_ms or 0,
            first_position_min=first_position_min or _nothing,
            check=check,
        )
        try:
            return await self._attempts(takeover, stream, secrets, wanted)
        except TermOverError:
            self._not_before[ledger_id] = loop.time() + pause_seconds(loop.time() - started, self._rng.random())
            raise

    async def _attempts(
        self, takeover: Takeover, stream: Versioned[StreamMetadata], secrets: LedgerSecrets, wanted: "_Wanted"
    ) -> Versioned[StreamMetadata]:
        ledger_id, term = stream.value.ledger_id, stream.value.term
        for _ in range(_ATTEMPTS_MAX):
            opened = await self._attempt(takeover, stream, secrets, wanted)
            if opened is not None:
                return opened
            stream = await self._patiently(lambda: self._store.read_stream(ledger_id))
            if stream.value.term > term:
                # Not to be fenced by a client that has begun with an earlier one (rules T2 and T10).
                raise TermOverError(f"stream {ledger_id}: another client has taken it over", may_have_happened=False)
        raise LedgerRecoveryError(f"stream {ledger_id} was changed {_ATTEMPTS_MAX} times while it was taken over")

    async def _attempt(
        self, takeover: Takeover, stream: Versioned[StreamMetadata], secrets: LedgerSecrets, wanted: "_Wanted"
    ) -> Versioned[StreamMetadata] | None:
        """One attempt; None if the stream must be read again."""
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        asking: list[asyncio.Task[int]] = []
        least: int | None = None

        def ask() -> None:
            asking.append(loop.create_task(self._patiently(wanted.first_position_min)))

        try:
            if stream.value.state is StreamState.AT_REST:
                ask()
                if not await self._is_current(stream):
                    return None
            ended = await self._end_term(takeover, stream, secrets, on_begun=ask, check=wanted.check)
            if ended is None:
                return None
            least = await result_of(asking[0], f"taking stream {stream.value.ledger_id} over")
        finally:
            if least is None:
                for task in asking:
                    task.cancel()
                await asyncio.gather(*asking, return_exceptions=True)
        begun, bookies = ended
        if not await self._read_unread(takeover, begun, secrets):
            return None
        bookies = await self._ensembles.reachable(takeover.base.quorums, bookies, asked_at=asked_at)
        opening = takeover.open_term(
            bookies,
            max(self._now_ms(), wanted.not_before_ms),
            leader_term=wanted.leader_term,
            first_position_min=least,
        )
        opened = await self._change(takeover, begun, opening, wanted.check)
        if opened is not None:
            takeover.on_opened(opened.value)
        return opened

    async def _is_current(self, stream: Versioned[StreamMetadata]) -> bool:
        """Whether these metadata stand in the store: a stream at rest is taken over without a first change, which would
        show it (rule T14)."""
        stored = await self._patiently(lambda: self._store.read_stream(stream.value.ledger_id))
        return stored.version == stream.version

    async def lay_to_rest(
        self,
        stream: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        *,
        without: Collection[BookieId] = (),
    ) -> Versioned[StreamMetadata]:
        """Give the term in these metadata its end, and open no other one: of a stream whose writer is gone (rules T8
        and O3). ``without``: bookies that are not asked and count as fenced and as denying every entry (rule O4).
        Raises as :meth:`take_over`."""
        takeover = Takeover(self._token())
        for _ in range(_ATTEMPTS_MAX):
            ended = await self._end_term(takeover, stream, secrets, frozenset(without))
            if ended is not None:
                rested = await self._change(takeover, ended[0], takeover.lay_to_rest())
                if rested is not None:
                    takeover.on_laid_to_rest()
                    return rested
            term = stream.value.term
            stream = await self._store.read_stream(stream.value.ledger_id)
            if stream.value.term > term:  # its writer is alive
                raise TermOverError(f"stream {stream.value.ledger_id}: another client has taken it over")
        raise LedgerRecoveryError(
            f"stream {stream.value.ledger_id} was changed {_ATTEMPTS_MAX} times while it was recovered"
        )

    async def _end_term(
        self,
        takeover: Takeover,
        stream: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        without: frozenset[BookieId] = frozenset(),
        *,
        on_begun: Callable[[], object] = lambda: None,
        check: Callable[[], None] = lambda: None,
    ) -> tuple[Versioned[StreamMetadata], tuple[BookieId, ...]] | None:
        """Begin, and find the end of the term: the metadata, and the bookies of the last fragment then. None if the
        stream must be read again. ``on_begun`` is called when there is something to wait for."""
        begin = takeover.begin(stream.value, self._wall_clock(), self._client_name)
        if begin is not None:
            begun = await self._change(takeover, stream, begin, check)
            if begun is None:
                return None
            stream = begun
            takeover.on_begun(stream.value)
            on_begun()
        bookies = takeover.base.bookies
        if takeover.recovery is not None:
            loop = asyncio.get_running_loop()
            began = loop.time()
            check()
            recovered = await self._recover(takeover, stream, secrets, without)
            if recovered is None:
                return None
            bookies = recovered
            if stream.value.full_copies is not None:
                await self._ask_what_is_owed(takeover, stream.value, secrets, seconds=loop.time() - began)
        takeover.poll()
        assert takeover.phase is Phase.ENDED, "the end of the term is known"
        return stream, bookies

    async def _read_unread(self, takeover: Takeover, stream: Versioned[StreamMetadata], secrets: LedgerSecrets) -> bool:
        """Read the last entry for its time, if the takeover has yet to learn it. False if the bookies that were asked
        are no longer those of the stream, which must be read again."""
        entry_id = takeover.unread_entry
        if entry_id is None:
            return True
        timeout_seconds = self._options.recovery_timeout_seconds
        try:
            read_at_ms = await sealed_at_ms(
                stream.value, takeover.base, entry_id, secrets, self._pool, timeout_seconds=timeout_seconds
            )
        except LedgerRecoveryError:
            if await self._is_current(stream):
                raise
            takeover.start_over()
            return False
        takeover.on_entry_read(read_at_ms)
        return True

    def _token(self) -> str:
        return f"{self._rng.getrandbits(_TOKEN_BITS):032x}"

    async def _ask_what_is_owed(
        self, takeover: Takeover, stream: StreamMetadata, secrets: LedgerSecrets, *, seconds: float
    ) -> None:
        """Ask the members of the fragments that the takeover ends what they lack (rule G5). Those that do not answer
        within these seconds, or a moment, may lack everything: a takeover does not wait for them."""
        assert takeover.end is not None, "the recovery is over"
        completing = Completing(stream.current_term, secrets, pool=self._pool, options=self._options, only_asks=True)
        patience = min(max(seconds, _ASK_SECONDS_MIN), self._options.full_copies_patience_seconds)
        owed = await completing.run(takeover.ended_fragments, takeover.end.last_entry_id, seconds=patience)
        takeover.on_asked(tuple((one.first_entry_id, one.debt) for one in owed))

    def _now_ms(self) -> int:
        return int(self._wall_clock().timestamp() * 1000)

    async def _recover(
        self,
        takeover: Takeover,
        begun: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        without: frozenset[BookieId],
    ) -> tuple[BookieId, ...] | None:
        """Find the end of the term; the bookies of its last fragment then. None if the bookies that were asked are no
        longer those of the stream, which must be read again."""
        recovery = FragmentRecovery(
            begun.value.current_term,
            secrets,
            pool=self._pool,
            placer=self._placer,
            options=self._options,
            without=without,
            machine=takeover.recovery,
            on_change=lambda change: takeover.on_ensemble_changed(change, self._now_ms()),
        )
        try:
            await recovery.run()
        except LedgerRecoveryError:
            # Another client may have got ahead by now.
            stored = await self._store.read_stream(begun.value.ledger_id)
            if stored.value.state is StreamState.CLOSED:
                raise LedgerClosedError(f"stream {stored.value.ledger_id} is closed") from None
            if stored.value.term > takeover.base.term:
                raise TermOverError(f"stream {stored.value.ledger_id}: another client has taken it over") from None
            if stored.value.last_fragment == takeover.base and stored.value.state is StreamState.IN_RECOVERY:
                raise
            takeover.start_over()
            return None
        return recovery.bookies

    async def _change(
        self,
        takeover: Takeover,
        stream: Versioned[StreamMetadata],
        change: StreamChange,
        check: Callable[[], None] = lambda: None,
    ) -> Versioned[StreamMetadata] | None:
        """Make a change, through moments in which the store does not answer: asked again, it recognises its own (rule
        T6). None after a conflict; raises why the takeover has withdrawn."""

        async def make() -> Versioned[StreamMetadata]:
            check()
            return await update_stream(
                self._store, stream.value.ledger_id, change, writer_token=stream.value.owner, known=stream
            )

        try:
            return await self._patiently(make)
        except (TermOverError, LedgerClosedError, MetadataConflictError) as error:
            takeover.on_refused(error)
            if takeover.withdrawn is not None:
                raise
            return None

    async def _patiently[T](self, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer of the metadata store, also if it does not answer for a while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.recovery_timeout_seconds
        while True:
            try:
                return await ask()
            except MetadataUnavailableError:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(self._options.resend_delay_seconds)


async def _nothing() -> int:
    return 0


class _Wanted(NamedTuple):
    """The wishes of a client for the term that it opens."""

    leader_term: int
    not_before_ms: int
    first_position_min: Callable[[], Awaitable[int]]
    check: Callable[[], None]
