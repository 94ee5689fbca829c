"""The client of a cluster: creates, opens, lists and deletes ledgers.

A :class:`Client` owns the metadata store, the connections to the bookies, and the writers and readers it made. A
failure in one of these is raised to the callers of that one; it never cancels a task of the application.
:meth:`Client.close` may be called from any task: it closes the writers, ends the readers, then closes the connections
and the metadata store.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from octavo.client.arguments import (
    LedgerKind,
    Protection,
    check_digest,
    check_flag,
    check_ledger_id,
    check_password,
    check_text,
    checked_custom_metadata,
    checked_kind,
    checked_protection,
    checked_residues,
)
from octavo.client.async_context import Closable
from octavo.client.awaitable_context import Opening
from octavo.client.deleting import delete_by_id
from octavo.client.log.logs import LogFace, Logs
from octavo.client.log.seam.access import LedgerAccess, NewSegment
from octavo.client.log.seam.pacing import TakeoverPacing
from octavo.client.options import ClientOptions
from octavo.client.pending_creations import Creations
from octavo.client.read.feeds import Feeds
from octavo.client.read.opening import open_reader
from octavo.client.read.range_read import BlameList
from octavo.client.read.reader import LedgerReader
from octavo.client.read.replica_read import ReplicaAnswer, read_replica
from octavo.client.read.source import LedgerTerm, TermSource
from octavo.client.same_loop import check_loop
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.clocks.boot_time import BootClock, boot_clock_of
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.own_tasks import result_of
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.entries import Digest, LedgerSecrets, derive_secrets, verifier_matches
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    OctavoError,
    UnauthorizedError,
)
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.quorums import Quorums, quorums_of
from octavo.security import forks

if TYPE_CHECKING:
    from octavo.client.bookie_status import BookieStatus
    from octavo.client.statistics.clients import ClientStatistics
    from octavo.client.write.core import Core
    from octavo.client.write.explicit_writer import ExplicitIdWriter
    from octavo.client.write.writer import LedgerWriter
    from octavo.client.writing import MakeWriter, Writing

_TOKEN_BITS = 128


class Client(LogFace, Closable):
    """A client of one cluster. Made by ``connect()``.

    It is used from the event loop that made it, by any of its tasks.

    Examples:
        >>> async with octavo.connect("sqlite:///octavo-data/metadata.db") as client:
        ...     client.closed
        False
        >>> client.closed
        True

    Raises:
        ClientClosedError: By every method, after ``close()``.
        MetadataUnavailableError: By every method, when the metadata store does not answer.
        InvalidArgumentError: By every method, for a wrong argument, and in another event loop.
        ForkedError: By every method, and by everything that the client made, in a process that was forked since (rule
            H1).
    """

    def __init__(
        self,
        store: MetadataStore,
        *,
        cluster_id: str,
        options: ClientOptions,
        rng: random.Random | None = None,
        wall_clock: Callable[[], datetime] | None = None,
        boot_clock: BootClock | None = None,
        client_name: str = "",
    ) -> None:
        """The client owns ``store`` from now on, and closes it. ``boot_clock``: how long this host has been running."""
        self._loop = loop = asyncio.get_running_loop()
        self._store = store
        self._cluster_id = cluster_id
        self._options = options
        self._rng = rng if rng is not None else random.Random()
        self._wall_clock = wall_clock if wall_clock is not None else partial(datetime.now, UTC)
        self._client_name = client_name
        self._pool = ConnectionPool(store, cluster_id=cluster_id, options=options, rng=self._rng)
        self._blame = BlameList(blame_seconds=options.replica_avoid_seconds, now=loop.time)
        self._feeds = Feeds(self._pool, options, self._blame, self._rng.random)
        self._writing: Writing | None = None
        self._writers: dict[LedgerId, LedgerWriter | ExplicitIdWriter] = {}
        self._readers: dict[LedgerReader, None] = {}
        self._creations = Creations()
        access = LedgerAccess(
            store, options, self._clock_ms, self._token, self._rng.uniform, TakeoverPacing(self._rng.uniform),
            create=self._create_segment, read=self._reader,
            open=lambda ledger_id, password, recover: self._open(ledger_id, password, None, recover=recover),
            load_streams=lambda: self._to_write().streams,
            boot_clock=boot_clock or boot_clock_of(loop, self._rng), counts=self._pool.counts,
        )  # fmt: skip
        self._logs = Logs(access, self._rng.randbytes, warns_if_unclosed=lambda: self._warns_if_unclosed)
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
        private: bool = False,
        custom_metadata: Mapping[str, bytes] | None = None,
        ids: Literal["sequential"] = "sequential",
        sync: Literal["immediate", "deferred"] = "immediate",
        full_copies: Literal["recorded", "required"] | None = None,
    ) -> "Opening[LedgerWriter]": ...

    @overload
    def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: Digest = Digest.CRC32C,
        private: bool = False,
        custom_metadata: Mapping[str, bytes] | None = None,
        ids: Literal["explicit"],
        sync: Literal["immediate"] = "immediate",
        full_copies: Literal["recorded", "required"] | None = None,
    ) -> "Opening[ExplicitIdWriter]": ...

    def create_ledger(
        self,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: Digest = Digest.CRC32C,
        private: bool = False,
        custom_metadata: Mapping[str, bytes] | None = None,
        ids: Literal["sequential", "explicit"] = "sequential",
        sync: Literal["immediate", "deferred"] = "immediate",
        full_copies: Literal["recorded", "required"] | None = None,
    ) -> "Opening[LedgerWriter] | Opening[ExplicitIdWriter]":
        """Create a ledger on ``ensemble_size`` bookies and return its writer.

        Each entry is stored on ``write_quorum`` of them and acknowledged when ``ack_quorum`` have it on disk. If
        creating fails or is cancelled, there is no ledger.

        ``password`` is needed to read and to recover the ledger. ``digest`` protects the entries: CRC32C against
        damage, HMAC_SHA256 also against forgery by anyone without the password. ``private``: bookies give the entries
        only to clients that have the password, and to repairs; needs a password. ``custom_metadata`` is stored with the
        ledger as it is. ``ids``: with ``"sequential"`` the writer numbers the entries in the order of adds; with
        ``"explicit"`` the application does, adding every id from 0 on exactly once and in any order, with
        ``add(payload, entry_id=n)`` of an ``ExplicitIdWriter``.

        ``sync``: with ``"deferred"`` an add returns when ``ack_quorum`` bookies have the entry in memory and on its way
        to disk, and ``await ledger.force()`` returns when everything added so far is on disk (rule W10). Readers see
        entries once they are forced. The writer forces by itself, too: after ``force_interval_seconds``, when half of
        ``unforced_bytes_max`` bytes are not forced, and before it closes the ledger. If the writer and Qa bookies fail
        at the same time, what was not forced may be lost; nothing else is.

        ``full_copies``: an add returns with ``ack_quorum`` copies whatever it says. With ``"recorded"`` the metadata
        name the entries that may have fewer than ``write_quorum`` copies (``debts``), and repair makes those; closing
        waits up to ``full_copies_patience_seconds`` for missing copies. With ``"required"`` no copy is ever given up
        (rule I9): entries take room in the window until they have all copies, so adds block once fewer than
        ``write_quorum`` bookies are left for them, and closing fails with ``UnderReplicatedError``, which loses
        nothing, until there are enough. With None nothing is promised beyond ``ack_quorum`` copies. Needs immediate
        sync.

        Examples:
            >>> async with client.create_ledger(3, 3, 2, custom_metadata={"owner": b"billing"}) as ledger:
            ...     await ledger.add(b"payload")
            0

        Raises:
            InvalidArgumentError: An argument is wrong, ``ensemble_size < write_quorum`` for example.
            NotEnoughBookiesError: Fewer than ``ensemble_size`` bookies can be written.
        """
        quorums = quorums_of(ensemble_size, write_quorum, ack_quorum)
        protection = checked_protection(password, digest, private)
        custom = checked_custom_metadata(custom_metadata)
        kind = checked_kind(sync, full_copies, ids)

        async def create() -> "LedgerWriter":
            self._check_open()
            make = self._to_write().writer
            return await self._creations.run(self._create(quorums, protection, custom, make, kind))

        async def create_explicit() -> "ExplicitIdWriter":
            self._check_open()
            make = self._to_write().explicit_writer
            return await self._creations.run(self._create(quorums, protection, custom, make, kind))

        match ids:
            case "sequential":
                return Opening(create, "create_ledger()")
            case "explicit":
                return Opening(create_explicit, "create_ledger()")
        raise InvalidArgumentError(f"ids must be 'sequential' or 'explicit', not {ids!r}")

    def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", digest: Digest | None = None, recover: bool = True
    ) -> Opening[LedgerReader]:
        """Open a ledger for reading, and give it an end first if it has none.

        A ledger that is still open is fenced, which ends its writer for good, then recovered and closed. With
        ``recover=False`` the writer is not disturbed, and the reader reads up to the last add confirmed. Opening a
        closed ledger is the same either way and asks no bookie. ``digest``: the digest type that is expected; None
        accepts the one of the ledger.

        Examples:
            >>> async with client.create_ledger() as ledger:
            ...     entry_id = await ledger.add(b"payload")
            >>> async with client.open_ledger(ledger.id) as reader:
            ...     [entry.payload async for entry in reader.entries()]
            [b'payload']

        Raises:
            NoSuchLedgerError: The ledger does not exist, or has been deleted.
            LedgerKindError: It is the stream of a log: open the log.
            UnauthorizedError: The password or the digest type is wrong; the ledger is not touched.
            LedgerRecoveryError: It cannot be recovered now; the error names the bookies that are needed.
            QuorumLostError: With ``recover=False``, no bookie of the ledger answers.
        """
        check_ledger_id(ledger_id)
        check_password(password)
        check_flag("recover", recover)
        if digest is not None:
            check_digest(digest)

        async def open_reader() -> LedgerReader:
            return await self._open(LedgerId(ledger_id), password, digest, recover=recover)

        return Opening(open_reader, f"open_ledger({ledger_id})")

    async def read_replica(
        self,
        bookie_id: str,
        ledger_id: int,
        first: int,
        last: int,
        *,
        modulus: int = 1,
        residues: Sequence[int] = (0,),
        password: bytes = b"",
    ) -> ReplicaAnswer:
        """Read what one bookie holds of entries ``first..last`` (both inclusive), for checking replicas.

        Only ids with ``id % modulus`` in ``residues`` are read. A long answer is cut: read on behind its
        ``last_covered``. The entries are returned sealed and are not verified. Never fences. Needs no password, but for
        private ledgers.

        Examples:
            >>> async with client.create_ledger(3, 3, 3) as ledger:
            ...     entry_id = await ledger.add(b"payload")
            >>> answer = await client.read_replica("b0", ledger.id, 0, 0)
            >>> answer.last_covered, len(answer.sealed)
            (0, 1)

        Raises:
            BookieUnavailableError: The bookie cannot be reached.
            OctavoTimeoutError: It does not answer in time.
            UnauthorizedError: The ledger is private, and the password is wrong.
            OctavoError: Any other refusal of the bookie.
        """
        check_text("a bookie id", bookie_id)
        check_ledger_id(ledger_id)
        check_password(password)
        checked = checked_residues(modulus, residues)
        self._check_open()
        ledger_key = derive_secrets(password, LedgerId(ledger_id)).ledger_key if password else b""
        return await read_replica(
            self._pool, self._options, bookie_id=BookieId(bookie_id), ledger_id=LedgerId(ledger_id),
            ledger_key=ledger_key, first=first, last=last, modulus=modulus, residues=checked,
        )  # fmt: skip

    async def delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger. The bookies free its space later.

        If a writer is still writing it, that writer fails at its next add or change of the metadata.

        Examples:
            >>> async with client.create_ledger() as ledger:
            ...     entry_id = await ledger.add(b"payload")
            >>> await client.delete_ledger(ledger.id)

        Raises:
            NoSuchLedgerError: The ledger does not exist, or has been deleted.
            LedgerKindError: It is the stream of a log: delete the log.
        """
        check_ledger_id(ledger_id)
        self._check_open()
        await delete_by_id(self._store, LedgerId(ledger_id))
        writer = self._writers.get(LedgerId(ledger_id))
        if writer is not None:
            writer._core.on_deleted()

    async def list_ledgers(self) -> AsyncIterator[LedgerId]:
        """Iterate over the ids of all ledgers, in ascending order and bounded memory.

        Examples:
            >>> async with client.create_ledger() as ledger:
            ...     ledger.id in [ledger_id async for ledger_id in client.list_ledgers()]
            True
        """
        self._check_open()
        async for ledger_id in self._store.list_ledgers():
            yield ledger_id
            self._check_open()

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Read the ledger's metadata from the store.

        Examples:
            >>> async with client.create_ledger(3, 2, 2) as ledger:
            ...     metadata = await client.ledger_metadata(ledger.id)
            >>> metadata.ensemble_size, metadata.write_quorum, metadata.state.name
            (3, 2, 'OPEN')

        Raises:
            NoSuchLedgerError: The ledger does not exist, or has been deleted.
            LedgerKindError: It is the stream of a log.
        """
        check_ledger_id(ledger_id)
        self._check_open()
        return (await self._store.read_ledger(LedgerId(ledger_id))).value

    async def bookies(self, *, details: bool = False) -> "list[BookieStatus]":
        """Return every bookie that the cluster knows, in order of ids.

        ``details``: ask each live bookie for its facts, too.

        Examples:
            >>> [bookie.bookie_id for bookie in await client.bookies()]
            ['b0', 'b1', 'b2']
        """
        check_flag("details", details)
        self._check_open()
        from octavo.client.bookie_status import bookie_statuses  # noqa: PLC0415 - most clients do not ask

        return await bookie_statuses(self._store, self._pool, details=details)

    def metrics(self) -> dict[str, Any]:
        """The counts of this client since it was made, by the names of docs/metrics.md.

        A counter or gauge is a number; a histogram is ``{"count", "sum", "buckets"}`` (``BOUNDS_SECONDS`` of
        ``octavo.metrics.histogram``, and one above); with a label, a dict from its values to that.
        ``octavo.metrics.register()`` hands all of it to prometheus_client.

        Examples:
            >>> async with client.create_ledger() as ledger:
            ...     entry_id = await ledger.add(b"payload")
            >>> client.metrics()["octavo_client_adds_total"]
            {'acknowledged': 1, 'failed': 0}
        """
        forks.check_process(self._loop)
        return self._pool.counts.snapshot(self._store.seconds)

    def statistics(self) -> "ClientStatistics":
        """Statistics for metrics and health checks: of the connections, and of everything that is open.

        Examples:
            >>> client.statistics().is_metadata_answering
            True
        """
        check_loop(self._loop)
        from octavo.client.client_statistics import client_statistics  # noqa: PLC0415 - short commands do not ask

        return client_statistics(
            self._store, self._pool, self._cluster_id, writers=self._writers.values(), readers=self._readers,
            logs=self._logs, is_closed=self.closed,
        )  # fmt: skip

    # --- life ----------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether ``close()`` has been called."""
        return self._closing is not None

    def __repr__(self) -> str:
        state = "open" if self._closing is None else "closed" if self._closing.done() else "closing"
        return (
            f"<Client of cluster {self._cluster_id}, {state}, "
            f"{len(self._writers)} writers, {len(self._readers)} readers>"
        )

    async def close(self) -> None:
        """Close the client and everything it made: writers close their ledgers, readers end.

        Raises the first failure of a writer, when everything is closed. Any task may call it, any number of times;
        cancelling a call does not stop the closing. ``async with connect(...)`` calls it at the end.

        Examples:
            >>> await client.close()

        Raises:
            InvalidArgumentError: At once, in another event loop than the client's; nothing is closed.
            OctavoError: The first error of a writer that could not close its ledger.
        """
        check_loop(self._loop)
        if self._closing is None or self._closing.cancelled():
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="octavo client closing")
        await result_of(self._closing, "closing the client")

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
                group.create_task(attempt(self._logs.close()))
                for writer in self._writers.values():
                    group.create_task(attempt(writer.close()))
                for reader in list(self._readers):
                    group.create_task(attempt(reader.close()))
        finally:
            for writer in list(self._writers.values()):
                await writer._core.leave()  # not closed, because copies are missing that it requires (rule G4)
            if self._writing is not None:
                await self._writing.close()
            await attempt(self._pool.close())
            await attempt(self._store.close())
        self._writers.clear()
        if failures:
            raise failures[0]

    def _check_open(self) -> None:
        check_loop(self._loop)
        if self._closing is not None:
            raise ClientClosedError("the client is closed")

    # --- creating ------------------------------------------------------------------------------------------------

    def _to_write(self) -> "Writing":
        """The parts of this client that write, loaded with the first use."""
        if self._writing is None:
            from octavo.client.writing import Writing  # noqa: PLC0415 - a client that only reads does without

            self._writing = Writing(
                self._store, self._pool, self._options, rng=self._rng, wall_clock=self._wall_clock,
                client_name=self._client_name, token=self._token, check_open=self._check_open,
                on_writer_closed=self._forget,
            )  # fmt: skip
        return self._writing

    async def _create[W: (LedgerWriter, ExplicitIdWriter)](
        self,
        quorums: Quorums,
        protection: Protection,
        custom_metadata: Mapping[str, bytes],
        make_writer: "MakeWriter[W]",
        kind: LedgerKind,
    ) -> W:
        writer = await self._to_write().create(
            await self._store.allocate_ledger_id(), quorums, protection,
            custom_metadata=custom_metadata, make_writer=make_writer, kind=kind,
        )  # fmt: skip
        writer._warns_if_unclosed = self._warns_if_unclosed
        self._writers[writer.id] = writer
        return writer

    async def _create_segment(self, segment: NewSegment) -> "Core":
        # Not among this client's own writers: the log's writer closes its segments.
        self._check_open()
        return await self._to_write().create_segment(segment)

    def _clock_ms(self) -> int:
        return int(self._wall_clock().timestamp() * 1000)

    def _token(self) -> str:
        return f"{self._rng.getrandbits(_TOKEN_BITS):032x}"

    def _forget(self, writer: "LedgerWriter") -> None:
        self._writers.pop(writer.id, None)

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
            ledger = await self._to_write().ender.recoverer.recover(ledger, secrets)
        reader = await self._reader(LedgerTerm(self._store, ledger), secrets)
        reader._warns_if_unclosed = self._warns_if_unclosed
        return reader

    async def _reader(self, source: TermSource, secrets: LedgerSecrets) -> LedgerReader:
        self._check_open()
        return await open_reader(
            source, secrets, pool=self._pool, options=self._options, blame=self._blame, feeds=self._feeds,
            draw=self._rng.random, on_made=self._note_reader, on_close=self._forget_reader,
        )  # fmt: skip

    def _note_reader(self, reader: LedgerReader) -> None:
        self._readers[reader] = None

    def _forget_reader(self, reader: LedgerReader) -> None:
        self._readers.pop(reader, None)
