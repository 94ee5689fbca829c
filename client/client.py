"""The way in: a client of one cluster, and everything it makes.

A :class:`Client` owns the handle on the metadata, the connections to the bookies, and the writers and readers it
made. A failure in any of them is told to whoever uses that one; it never cancels a caller. :meth:`Client.close` may
be called from any task: it closes the writers, ends the readers, then lets go of connections and metadata.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, overload

from octavo.client.closable import Closable
from octavo.client.creations import Creations
from octavo.client.opening import Opening
from octavo.client.options import ClientOptions
from octavo.client.place.placer import Placer
from octavo.client.read.range_read import BlameList
from octavo.client.read.reader import LedgerReader
from octavo.client.read.replica_read import ReplicaAnswer, read_replica
from octavo.client.recover.recovery import Recoverer
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.explicit_writer import ExplicitIdWriter
from octavo.client.write.writer import LedgerWriter
from octavo.metadata.connect import open_metadata_store
from octavo.metadata.model import Fragment, LedgerMetadata
from octavo.metadata.registration import BookieState, KnownBookie
from octavo.metadata.store import MetadataStore, Versioned
from octavo.protocol.entries import Digest, LedgerSecrets, derive_secrets, make_verifier, verifier_matches
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    OctavoError,
    UnauthorizedError,
)
from octavo.protocol.ids import ID_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.messages import Info, InfoAnswer
from octavo.protocol.quorums import Quorums, quorums_of

type _MakeWriter[W] = Callable[[Versioned[LedgerMetadata], LedgerSecrets], W]

_SALT_BYTES = 16
_TOKEN_BITS = 128

_DETAILS_TIMEOUT_SECONDS = 2.0
"""Time a bookie has to tell its facts: a list of bookies is for people, who will not wait for a dead one."""

_DETAILS_AT_ONCE_MAX = 64
"""Bookies asked for their facts at the same time."""


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """A bookie as the cluster knows it."""

    bookie_id: BookieId
    address: str
    """As advertised, ``host:port``; as last advertised when unavailable."""
    state: BookieState
    version: str | None
    """Software version; None when unavailable."""
    rack: str | None = None
    """As registered; None when unavailable."""
    facts: Mapping[str, str | int | float | bool] | None = None
    """What the bookie itself tells (capacity, load, ...; docs/wire-protocol.md lists the names); None when it was
    not asked or did not answer."""


def connect(
    uri: str,
    *,
    rng: random.Random | None = None,
    wall_clock: Callable[[], datetime] | None = None,
    **options: Any,
) -> Opening["Client"]:
    """A client of the cluster whose metadata are at ``uri``: ``async with connect(uri) as client``, or ``await`` it.

    ``options`` are the fields of :class:`octavo.client.options.ClientOptions`. ``rng`` decides everything left to
    chance (placement, back-off); ``wall_clock`` gives the aware time that is
    noted in new ledgers and sealed into entries.

    Raises :class:`InvalidArgumentError` for an unknown URI scheme or option; when opened,
    :class:`MetadataUnavailableError` when there is no such store or it does not answer.
    """
    checked = ClientOptions.from_keywords(options)

    async def open_client() -> Client:
        store = await open_metadata_store(uri, rng=rng)
        try:
            cluster_id = await store.cluster_id()
            return Client(store, cluster_id=cluster_id, options=checked, rng=rng, wall_clock=wall_clock)
        except BaseException:
            await store.close()
            raise

    return Opening(open_client)


class Client(Closable):
    """See the module. Made by :func:`connect`; used from the event loop that made it.

    Methods raise :class:`ClientClosedError` once it is closed, and :class:`MetadataUnavailableError` when the
    metadata store does not answer.
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        cluster_id: str,
        options: ClientOptions,
        rng: random.Random | None = None,
        wall_clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Takes over ``store``: closing the client closes it."""
        loop = asyncio.get_running_loop()
        self._store = store
        self._options = options
        self._rng = rng if rng is not None else random.Random()
        self._wall_clock = wall_clock if wall_clock is not None else lambda: datetime.now(UTC)
        self._pool = ConnectionPool(store, cluster_id=cluster_id, options=options, rng=self._rng)
        self._placer = Placer(
            store,
            rng=self._rng,
            racks_min=options.racks_per_write_quorum_min,
            quarantined=self._pool.quarantined,
            watched=self._pool.registrations,
        )
        self._blame = BlameList(blame_seconds=options.replica_avoid_seconds, now=loop.time)
        self._recoverer = Recoverer(store=store, pool=self._pool, placer=self._placer, options=options, rng=self._rng)
        self._writers: dict[LedgerId, LedgerWriter | ExplicitIdWriter] = {}
        self._readers: dict[LedgerReader, None] = {}
        self._creations = Creations()
        self._on_writer_closed = self._forget
        self._closing: asyncio.Task[None] | None = None

    # --- ledgers -------------------------------------------------------------------------------------------------

    @overload
    def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: Digest = Digest.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ids: Literal["sequential"] = "sequential",
    ) -> Opening[LedgerWriter]: ...

    @overload
    def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: Digest = Digest.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ids: Literal["explicit"],
    ) -> Opening[ExplicitIdWriter]: ...

    def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: Digest = Digest.CRC32C,
        custom_metadata: Mapping[str, bytes] | None = None,
        ids: Literal["sequential", "explicit"] = "sequential",
    ) -> Opening[LedgerWriter] | Opening[ExplicitIdWriter]:
        """A new ledger on ``ensemble_size`` bookies, each entry on ``write_quorum`` of them and acknowledged by
        ``ack_quorum``.

        ``ids``: who numbers the entries: ``"sequential"``, the writer, in the order of adds; ``"explicit"``, the
        caller, who adds every id from 0 on exactly once, in any order: ``add(payload, entry_id=n)`` of an
        :class:`ExplicitIdWriter`.

        Raises :class:`InvalidArgumentError`, :class:`NotEnoughBookiesError`. If creating fails or is cancelled,
        there is no ledger.
        """
        quorums = quorums_of(ensemble_size, write_quorum, ack_quorum)
        _check_password(password)
        if not isinstance(digest, Digest):
            raise InvalidArgumentError(f"digest must be one of {', '.join(map(str, Digest))}, not {digest!r}")
        custom = _checked_custom_metadata(custom_metadata)

        async def create() -> LedgerWriter:
            self._check_open()
            return await self._creations.run(self._create(quorums, password, digest, custom, self._writer))

        async def create_explicit() -> ExplicitIdWriter:
            self._check_open()
            return await self._creations.run(self._create(quorums, password, digest, custom, self._explicit_writer))

        match ids:
            case "sequential":
                return Opening(create)
            case "explicit":
                return Opening(create_explicit)
        raise InvalidArgumentError(f"ids must be 'sequential' or 'explicit', not {ids!r}")

    def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", digest: Digest | None = None, recover: bool = True
    ) -> Opening[LedgerReader]:
        """A reader of a ledger. A closed one is opened without asking a bookie.

        One that is not closed is recovered and closed first, which ends its writer; with ``recover=False`` it is
        read up to what is confirmed, and its writer never notices. ``digest``: the type expected; None accepts the
        ledger's.

        Raises :class:`NoSuchLedgerError`, :class:`UnauthorizedError` for a wrong password or digest, before
        anything else is done, :class:`LedgerRecoveryError`, and with ``recover=False`` :class:`QuorumLostError`
        when no bookie answers.
        """
        _check_ledger_id(ledger_id)
        _check_password(password)

        async def open_reader() -> LedgerReader:
            return await self._open(LedgerId(ledger_id), password, digest, recover=recover)

        return Opening(open_reader)

    async def read_replica(
        self, bookie_id: str, ledger_id: int, first: int, last: int, *, modulus: int = 1, residues: Sequence[int] = (0,)
    ) -> ReplicaAnswer:
        """What one bookie holds of ``first..last``, whatever others hold: for checking replicas.

        Only ids with ``id % modulus`` among ``residues``. The answer ends where it gets large: go on behind its
        ``last_covered``. Nothing is verified here; needs no password, never fences.

        Raises the bookie's refusal, :class:`BookieUnavailableError`, :class:`OctavoTimeoutError`.
        """
        _check_ledger_id(ledger_id)
        self._check_open()
        return await read_replica(
            self._pool,
            self._options,
            bookie_id=BookieId(bookie_id),
            ledger_id=LedgerId(ledger_id),
            first=first,
            last=last,
            modulus=modulus,
            residues=tuple(residues),
        )

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger; its space on the bookies is freed in time. A writer it still has fails at its next add
        or change.

        Raises :class:`NoSuchLedgerError`.
        """
        _check_ledger_id(ledger_id)
        self._check_open()
        await self._store.delete_ledger(LedgerId(ledger_id))
        writer = self._writers.get(LedgerId(ledger_id))
        if writer is not None:
            writer._ledger_deleted()

    async def list_ledgers(self) -> AsyncIterator[LedgerId]:
        """All ledgers, in order of their ids, in bounded memory."""
        self._check_open()
        async for ledger_id in self._store.list_ledgers():
            yield ledger_id
            self._check_open()

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """The ledger's metadata as they stand now. Raises :class:`NoSuchLedgerError`."""
        _check_ledger_id(ledger_id)
        self._check_open()
        return (await self._store.read_ledger(LedgerId(ledger_id))).value

    async def bookies(self, *, details: bool = False) -> list[BookieStatus]:
        """Every bookie the cluster knows, in order of ids. ``details`` asks each live one for its facts, too."""
        self._check_open()
        known = await self._store.list_known_bookies()
        facts: dict[BookieId, Mapping[str, str | int | float | bool]] = {}
        if details:
            permits = asyncio.Semaphore(_DETAILS_AT_ONCE_MAX)
            async with asyncio.TaskGroup() as group:
                for bookie in known:
                    if bookie.registration is not None:
                        group.create_task(self._ask_facts(bookie, permits, facts))
        return [
            BookieStatus(
                bookie.bookie_id,
                bookie.address,
                bookie.state,
                None if bookie.registration is None else bookie.registration.version,
                None if bookie.registration is None else bookie.registration.rack,
                facts.get(bookie.bookie_id),
            )
            for bookie in known
        ]

    # --- life ----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` has begun."""
        return self._closing is not None

    async def close(self) -> None:
        """Close what this client made, as leaving its block does: writers close their ledgers, readers end.

        Raises the first failure of a writer, once everything is closed. Any task may call it, any number of times;
        cancelling one call leaves the closing going on.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="octavo client closing")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        failures: list[OctavoError] = []

        async def attempt(step: Awaitable[object]) -> None:
            try:
                await step
            except OctavoError as error:
                failures.append(error)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._creations.interrupt())
                for writer in self._writers.values():
                    group.create_task(attempt(writer.close()))
                for reader in list(self._readers):
                    group.create_task(attempt(reader.close()))
        finally:
            await attempt(self._pool.close())
            await attempt(self._store.close())
        self._writers.clear()
        if failures:
            raise failures[0]

    def _check_open(self) -> None:
        if self._closing is not None:
            raise ClientClosedError("the client is closed")

    # --- creating ------------------------------------------------------------------------------------------------

    async def _create[W: (LedgerWriter, ExplicitIdWriter)](
        self,
        quorums: Quorums,
        password: bytes,
        digest: Digest,
        custom_metadata: Mapping[str, bytes],
        make_writer: _MakeWriter[W],
    ) -> W:
        ensemble = await self._placer.new_ensemble(quorums)
        ledger_id = await self._store.allocate_ledger_id()
        secrets = derive_secrets(password, ledger_id)
        salt = self._rng.randbytes(_SALT_BYTES)
        metadata = LedgerMetadata(
            ledger_id=ledger_id,
            ensemble_size=quorums.ensemble_size,
            write_quorum=quorums.write_quorum,
            ack_quorum=quorums.ack_quorum,
            fragments=(Fragment(EntryId(0), ensemble),),
            digest=digest,
            custom_metadata=custom_metadata,
            created_at=self._wall_clock(),
            verifier=make_verifier(secrets, digest, salt),
            salt=salt,
            writer_token=f"{self._rng.getrandbits(_TOKEN_BITS):032x}",
        )
        try:
            version = await self._store.create_ledger(metadata)
            self._check_open()
            writer = make_writer(Versioned(metadata, version), secrets)
        except BaseException:
            await self._uncreate(ledger_id)
            raise
        self._writers[ledger_id] = writer
        return writer

    def _writer(
        self,
        ledger: Versioned[LedgerMetadata],
        secrets: LedgerSecrets,
        *,
        on_failure: Callable[[OctavoError], object] | None = None,
    ) -> LedgerWriter:
        return LedgerWriter(
            ledger,
            secrets,
            store=self._store,
            pool=self._pool,
            placer=self._placer,
            options=self._options,
            clock_ms=self._clock_ms,
            on_close=self._on_writer_closed,
            on_failure=on_failure,
        )

    def _clock_ms(self) -> int:
        """The time of day in milliseconds since 1970."""
        return int(self._wall_clock().timestamp() * 1000)

    def _forget(self, writer: LedgerWriter) -> None:
        self._writers.pop(writer.id, None)

    def _explicit_writer(self, ledger: Versioned[LedgerMetadata], secrets: LedgerSecrets) -> ExplicitIdWriter:
        def make_writer(on_failure: Callable[[OctavoError], None]) -> LedgerWriter:
            return self._writer(ledger, secrets, on_failure=on_failure)

        return ExplicitIdWriter(make_writer, self._options)

    async def _uncreate(self, ledger_id: LedgerId) -> None:
        """Delete a ledger that nobody has heard of, cancelled or not; for as long as closing one may take."""

        async def delete() -> None:
            # Not created after all; or the metadata are out of reach, and an empty open ledger stays.
            with contextlib.suppress(OctavoError, TimeoutError):
                async with asyncio.timeout(self._options.close_timeout_seconds):
                    await self._store.delete_ledger(ledger_id)

        deletion = asyncio.get_running_loop().create_task(delete())
        while not deletion.done():
            # Whoever calls is on the way out with an exception already: a cancellation has nothing to add.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([deletion])

    # --- opening -------------------------------------------------------------------------------------------------

    async def _open(
        self, ledger_id: LedgerId, password: bytes, digest: Digest | None, *, recover: bool
    ) -> LedgerReader:
        self._check_open()
        ledger = await self._store.read_ledger(ledger_id)
        metadata = ledger.value
        secrets = derive_secrets(password, ledger_id)
        # Rule F0: before anything that a bookie or the ledger would notice.
        if not verifier_matches(metadata.verifier, secrets, digest or metadata.digest, metadata.salt):
            raise UnauthorizedError(f"ledger {ledger_id}: wrong password or digest type")
        if recover and not metadata.is_closed:
            ledger = await self._recoverer.recover(ledger, secrets)
        self._check_open()
        reader = LedgerReader(
            ledger,
            secrets,
            store=self._store,
            pool=self._pool,
            options=self._options,
            blame=self._blame,
            draw=self._rng.random,
            on_close=self._forget_reader,
        )
        self._readers[reader] = None
        try:
            await reader.start()
        except BaseException:
            await reader.close()
            raise
        return reader

    def _forget_reader(self, reader: LedgerReader) -> None:
        self._readers.pop(reader, None)

    async def _ask_facts(
        self,
        bookie: KnownBookie,
        permits: asyncio.Semaphore,
        facts: dict[BookieId, Mapping[str, str | int | float | bool]],
    ) -> None:
        async with permits:
            try:
                connection = self._pool.get(bookie.bookie_id)
                answer = await connection.request(Info(), timeout_seconds=_DETAILS_TIMEOUT_SECONDS)
            except OctavoError:
                return
            if isinstance(answer, InfoAnswer):
                facts[bookie.bookie_id] = answer.facts


def _check_ledger_id(ledger_id: object) -> None:
    if type(ledger_id) is not int or not 0 <= ledger_id <= ID_MAX:
        raise InvalidArgumentError(f"a ledger id is an integer from 0 to {ID_MAX}, not {ledger_id!r}")


def _check_password(password: object) -> None:
    if not isinstance(password, bytes):
        raise InvalidArgumentError(f"a password is bytes, not {type(password).__name__}")


def _checked_custom_metadata(custom_metadata: Mapping[Any, Any] | None) -> dict[str, bytes]:
    custom = dict(custom_metadata or {})
    for key, value in custom.items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise InvalidArgumentError(f"custom metadata map text to bytes; {key!r} maps to {type(value).__name__}")
    return custom
