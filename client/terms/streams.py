"""Creates streams and takes them over. Either gives the writer of a new term."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from octavo.client.arguments import Protection
from octavo.client.choose.term_ensembles import Ensembles
from octavo.client.recover.stream_taker import StreamTaker
from octavo.client.terms.term import OpenedTerm
from octavo.client.terms.term_writer import TermWriter
from octavo.client.write.core import Core, CoreFront, WriterTools, created_at_ms
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.stream.model import FIRST_TERM, StreamFragment, StreamKey, StreamMetadata, StreamState
from octavo.protocol.entries import Digest, LedgerSecrets, derive_secrets, make_verifier, verifier_matches
from octavo.protocol.errors import (
    LedgerKindError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums


@dataclass(frozen=True, slots=True)
class NewTermSegment:
    """A term to be opened for a log."""

    token: Callable[[], str]
    """Gives random tokens by which the log's leader knows its own terms."""
    sealed_at_ms_min: int
    """Of a leader that takes over from itself: the time that it has sealed last (rule P10)."""
    first_position_min: Callable[[], Awaitable[int]] | None
    """Asks below which position the term does not begin (rule P7); None: any."""
    front: CoreFront
    """What is told of its entries."""
    on_term: Callable[[Versioned[StreamMetadata]], object]
    """Told of each term that a renewal opens."""
    check: Callable[[], None] = lambda: None
    """As in :meth:`StreamTaker.take_over`."""


class Streams:
    """The operations of one client on streams. ``token`` gives a random token, ``salt`` the salt of a password's
    verifier."""

    def __init__(
        self,
        tools: WriterTools,
        taker: StreamTaker,
        *,
        token: Callable[[], str],
        salt: Callable[[], bytes],
        wall_clock: Callable[[], datetime],
        on_core: Callable[[Core], object] = lambda _core: None,
    ) -> None:
        """``on_core`` is told of the core of every term that a log gets."""
        self._tools = tools
        self._taker = taker
        self._on_core = on_core
        self._token = token
        self._salt = salt
        self._wall_clock = wall_clock
        self._ensembles = Ensembles(tools.pool, tools.placer)

    async def create(self, quorums: Quorums, *, password: bytes = b"", digest: Digest = Digest.CRC32C) -> TermWriter:
        """Create a stream, and return the writer of its first term.

        Raises :class:`NotEnoughBookiesError`, :class:`MetadataUnavailableError`: then it may exist, and nothing is ever
        written to it.
        """
        store = self._tools.store
        bookies = await self._ensembles.reachable(quorums, await self._ensembles.new_ones(quorums))
        ledger_id = await store.allocate_ledger_id()
        secrets = derive_secrets(password, ledger_id)
        salt, owner, created_at = self._salt(), self._token(), self._wall_clock()
        metadata = StreamMetadata(
            ledger_id=ledger_id,
            owner=owner,
            fragments=(
                StreamFragment(
                    first_entry_id=place(FIRST_TERM, 0),
                    first_position=0,
                    bookies=bookies,
                    write_quorum=quorums.write_quorum,
                    ack_quorum=quorums.ack_quorum,
                    opened_at_ms=self._tools.clock_ms(),
                ),
            ),
            keys=(StreamKey(digest=digest, verifier=make_verifier(secrets, digest, salt), salt=salt),),
            created_at=created_at,
            writer_token=owner,
        )
        stream = Versioned(metadata, await self._create(metadata))
        return TermWriter(stream, secrets, self._tools, token=self._token)

    async def create_at_rest(
        self,
        ledger_id: LedgerId,
        quorums: Quorums,
        protection: Protection,
        *,
        custom_metadata: Mapping[str, bytes],
        full_copies: FullCopies | None = None,
    ) -> Versioned[StreamMetadata]:
        """Create an empty stream at rest, under an id that this client has allocated: any client takes it over, and
        asks no bookie for that. Raises as :meth:`create`, but bookies may be out of reach."""
        secrets, salt, owner = derive_secrets(protection.password, ledger_id), self._salt(), self._token()
        metadata = StreamMetadata(
            ledger_id=ledger_id,
            state=StreamState.AT_REST,
            owner=owner,
            fragments=(
                StreamFragment(
                    first_entry_id=place(FIRST_TERM, 0),
                    first_position=0,
                    bookies=await self._ensembles.new_ones(quorums),
                    write_quorum=quorums.write_quorum,
                    ack_quorum=quorums.ack_quorum,
                    opened_at_ms=self._tools.clock_ms(),
                ),
            ),
            keys=(
                StreamKey(
                    digest=protection.digest, verifier=make_verifier(secrets, protection.digest, salt), salt=salt
                ),
            ),
            last_entry_id=EntryId(place(FIRST_TERM, 0) - 1),
            custom_metadata=custom_metadata,
            created_at=self._wall_clock(),
            private=protection.private,
            full_copies=full_copies,
            writer_token=owner,
        )
        return Versioned(metadata, await self._create(metadata))

    async def _create(self, metadata: StreamMetadata) -> Version:
        store = self._tools.store
        try:
            return await store.create_stream(metadata)
        except MetadataUnavailableError:
            # No other client knows this id yet, so what is stored under it is what this one has sent.
            try:
                stored = await store.read_stream(metadata.ledger_id)
            except NoSuchLedgerError:
                stored = None
            if stored is None or stored.value.owner != metadata.owner:
                raise
            return stored.version

    async def take_over(self, ledger_id: LedgerId, *, password: bytes = b"") -> TermWriter:
        """Take a stream over, and return the writer of its new term. Raises as :meth:`StreamTaker.take_over`, and
        :class:`UnauthorizedError` for a wrong password (rule F0), before anything is fenced; likewise
        :class:`LedgerKindError` for a stream that requires all copies, which only a log's writer can keep."""
        stream = await self._tools.store.read_stream(ledger_id)
        secrets = checked_secrets(stream.value, password)
        if stream.value.full_copies is FullCopies.REQUIRED:
            raise LedgerKindError(f"stream {ledger_id} requires all copies of its entries: lead its log")
        opened = await self._taker.take_over(stream, secrets)
        return TermWriter(opened, secrets, self._tools, token=self._token)

    async def take_over_segment(
        self,
        stream: Versioned[StreamMetadata],
        secrets: LedgerSecrets,
        segment: NewTermSegment,
        *,
        from_itself: bool = False,
    ) -> OpenedTerm:
        """Take over the stream of a log. ``from_itself``: as in :meth:`StreamTaker.take_over`; raises as that."""
        opened = await self._taker.take_over(
            stream,
            secrets,
            owner=segment.token(),
            from_itself=from_itself,
            not_before_ms=segment.sealed_at_ms_min if from_itself else None,
            first_position_min=segment.first_position_min,
            check=segment.check,
        )
        value = opened.value
        term = OpenedTerm(
            opened,
            secrets,
            self._tools,
            segment.front,
            token=segment.token,
            full_copies=value.full_copies,
            on_term=segment.on_term,
        )
        term.core.seal_not_before(max(value.last_fragment.opened_at_ms, created_at_ms(value)))
        self._on_core(term.core)
        return term

    async def lay_to_rest(self, stream: Versioned[StreamMetadata], secrets: LedgerSecrets) -> None:
        """Give the term in these metadata its end, and open no other one. Raises as :meth:`StreamTaker.lay_to_rest`."""
        await self._taker.lay_to_rest(stream, secrets)


def checked_secrets(stream: StreamMetadata, password: bytes) -> LedgerSecrets:
    """The secrets of a stream. Raises :class:`UnauthorizedError` for a wrong password (rule F0)."""
    secrets = derive_secrets(password, stream.ledger_id)
    key = stream.keys[stream.last_fragment.key]
    if not verifier_matches(key.verifier, secrets, key.digest, key.salt):
        raise UnauthorizedError(f"stream {stream.ledger_id}: wrong password")
    return secrets
