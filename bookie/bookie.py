"""One bookie, put together from its parts: what starts in which order, and how it stops.

Start: the data directory is locked, identity is checked against the metadata (rule B4), the storage replays and
makes durable what it found (rule B1), the port opens, the bookie registers. Stop goes the other way round. A start that
fails undoes what it has done so far. Files, metadata and randomness are arguments: a simulator runs this class.
"""

import asyncio
import contextlib
import errno
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import structlog
from octavo.bookie.admin.subject import ReadyBookie, Subject
from octavo.bookie.companion import Companion, CompanionTask, CompanionView
from octavo.bookie.config import BookieConfig, is_loopback
from octavo.bookie.copies.face import LedgerCopies
from octavo.bookie.disk.filesystem import FileSystem, is_disk_full
from octavo.bookie.disk.free_space import FreeSpaceMonitor
from octavo.bookie.identity.cookie import Identity as StartedIdentity
from octavo.bookie.identity.cookie import note_served, take_identity
from octavo.bookie.identity.errors import BookieStartError, DataWrongError
from octavo.bookie.index.format import IndexDamagedError, IndexUnreadableError
from octavo.bookie.journal.journal import UnsupportedJournalError
from octavo.bookie.principals_watch import PrincipalsWatch
from octavo.bookie.registration import Registrar
from octavo.bookie.server.access import Access
from octavo.bookie.server.answer_memory import AnswerTiming
from octavo.bookie.server.arrivals import ArrivalLimits, Arrivals
from octavo.bookie.server.audit import Audit
from octavo.bookie.server.certificates import CertificateKeeper
from octavo.bookie.server.clients import ClientLimits
from octavo.bookie.server.new_ledgers import NewLedgers
from octavo.bookie.server.server import BookieServer
from octavo.bookie.server.service import BookieService, ConnectionLimits, Identity, TlsFacts
from octavo.bookie.storage.replay import JournalUnreadableError
from octavo.bookie.storage.storage import Storage, StorageSettings
from octavo.bookie.upkeep.disk_watch import DiskLimits, DiskRoles, DiskState
from octavo.bookie.upkeep.garbage import GarbageCollector
from octavo.bookie.upkeep.hours import Hours
from octavo.bookie.upkeep.metadata_check import KnownStart, MetadataCheck
from octavo.bookie.upkeep.replaced import ReplacedCopies
from octavo.bookie.upkeep.reserve import RESERVE_BYTES_MAX, release_reserves_if_full
from octavo.bookie.upkeep.reviver import Reviver
from octavo.bookie.upkeep.upkeep import Upkeep, UpkeepSettings
from octavo.metadata import BookieRegistration, BookieState, MetadataStore
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId
from octavo.security.contexts import ServerContext

log = structlog.get_logger("octavo.bookie")


type Attend = Callable[[Subject], Awaitable[Callable[[], Awaitable[None]]]]
"""Begins to administer a bookie whose directories are locked; what it returns ends that before they are unlocked."""


class _Host(NamedTuple):
    """What a bookie is told about the process it runs in. See :meth:`Bookie.start`."""

    software: str
    wall_clock: Callable[[], float] | None
    clock: Callable[[], float] | None


async def _attend_not(_subject: Subject) -> Callable[[], Awaitable[None]]:
    return _nothing


async def _nothing() -> None:
    pass


class Bookie:
    """A running bookie. Made by :meth:`start`."""

    def __init__(
        self, config: BookieConfig, stack: contextlib.AsyncExitStack, companion: Companion | None = None
    ) -> None:
        self._config = config
        self._stack = stack
        self._companion = companion
        self._broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.audit = Audit()
        """Notes who does what."""
        self.bookie_id = BookieId("")
        self.address = ""
        self.service: BookieService
        self.subject = Subject(settings=config.as_json(), failure=lambda: self.failure)
        """What the administration of the bookie sees of it."""
        self._attend: Attend = _attend_not
        self._certificate: CertificateKeeper | None = None
        self._arrivals: Arrivals | None = None

    @classmethod
    async def start(
        cls,
        config: BookieConfig,
        *,
        filesystem: FileSystem,
        store: MetadataStore,
        rng: random.Random,
        software: str,
        wall_clock: Callable[[], float] | None = None,
        clock: Callable[[], float] | None = None,
        attend: Attend | None = None,
        companion: Companion | None = None,
        audit: Audit | None = None,
    ) -> "Bookie":
        """Start a bookie, ready to serve when this returns. ``wall_clock`` gives seconds since 1970, for hours of the
        day; without it major compactions may begin at any hour. ``clock`` gives precise seconds for the times in
        metrics; by default the event loop does. ``attend`` is called as soon as the directories are locked.
        ``companion`` runs inside the bookie from its registration on. ``audit`` has been started.

        Raises :class:`BookieStartError` where another attempt may succeed, :class:`DataWrongError` where an operator
        must repair something first, other :class:`OctavoError` as the metadata store raises them.
        """
        async with contextlib.AsyncExitStack() as stack:
            bookie = cls(config, stack, companion)
            bookie.audit = audit or bookie.audit
            if attend is not None:
                bookie._attend = attend
            await bookie._start(filesystem, store, rng, _Host(software, wall_clock, clock))
            bookie._stack = stack.pop_all()
            return bookie

    async def _start(self, filesystem: FileSystem, store: MetadataStore, rng: random.Random, host: _Host) -> None:
        config, stack, software = self._config, self._stack, host.software
        directories = config.directories
        self._certificate = _certificate_keeper(config)
        await _take_directories(filesystem, config, stack)
        stack.push_async_callback(await self._attend(self.subject))
        boot_id = f"{rng.getrandbits(64):016x}"
        identity, storage = await self._open_storage(filesystem, store, rng, host)
        reviver = Reviver(storage, store, cluster_id=identity.cluster_id)
        stack.push_async_callback(reviver.stop)
        me = Identity(self.bookie_id, identity.cluster_id, boot_id, software)
        new_ledgers = NewLedgers(storage, store, checks_writes=config.verifies_new_ledgers)
        stack.push_async_callback(new_ledgers.stop)
        self.service = service = _make_service(
            config, storage, me, reviver, host, new_ledgers=new_ledgers, audit=self.audit
        )
        storage.writer.on_deleted = lambda ledger_id: self.audit.note("delete", ledger=int(ledger_id))
        self.audit.note("start", auth="required" if config.authentication_required else "none", tls=config.tls)
        service.switch_read_only(self.subject.operator_read_only)
        await self._follow_principals(service, store)
        server = BookieServer(service, self._tls_arrivals(service))
        try:
            port = await server.start(config.host, config.port)
        except OSError as error:
            raise _listen_error(error, config) from error
        stack.push_async_callback(server.stop, drain_timeout_seconds=config.drain_timeout_seconds)
        self._keep_certificate(server.arrivals)
        self.address = self._advertised(port)

        def registration() -> BookieRegistration:
            return BookieRegistration(
                bookie_id=self.bookie_id,
                address=self.address,
                state=BookieState.READ_ONLY if service.read_only or service.avoid_placement else BookieState.WRITABLE,
                version=software,
                boot_id=boot_id,
                rack=config.rack,
                free_bytes=free_space.reported_bytes,
                tls=config.tls,
            )

        registrar = Registrar(store, registration, rng)

        async def note_disks(disks: DiskState) -> None:
            service.note_disks(read_only=disks.read_only, out_of_space=disks.out_of_space)
            await registrar.announce()

        async def switch_read_only(reason: str | None) -> None:
            service.switch_read_only(reason)
            await registrar.announce()

        metadata_check = MetadataCheck(
            store, KnownStart(self.bookie_id, identity.cluster_id, identity.generation, identity.metadata_were_older)
        )
        replaced = ReplacedCopies(
            storage, store, metadata_check, self.bookie_id, keep_seconds=config.replaced_copies_seconds
        )
        upkeep = Upkeep(
            storage,
            GarbageCollector(storage, store, metadata_check),
            filesystem,
            DiskRoles((config.data_dir, config.journal_directory), (config.data_dir, *config.entry_dirs)),
            _upkeep_settings(config),
            rng=random.Random(rng.getrandbits(64)),
            wall_clock=host.wall_clock,
            on_disk_state=note_disks,
            on_failure=self._break,
            replaced=replaced,
        )
        stack.push_async_callback(upkeep.stop)
        try:
            await upkeep.start()
        except OSError as error:
            raise _translated(error, config.data_dir) from error
        free_space = FreeSpaceMonitor(storage.space.largest, registrar.announce)
        stack.push_async_callback(free_space.stop)
        await free_space.start()
        stack.push_async_callback(registrar.stop)
        await registrar.start()
        self._start_companion(
            CompanionView(
                registration(),
                service,
                LedgerCopies(storage, revive=reviver.revive, check_space=service.check_space, replaced=replaced),
                store=store,
                rng=rng if self._companion is None else random.Random(rng.getrandbits(64)),
                wall_clock=host.wall_clock or asyncio.get_running_loop().time,
                free_bytes=lambda: free_space.reported_bytes,
                announce=registrar.announce,
            )
        )
        self.subject.ready = ReadyBookie(
            service=service,
            storage=storage,
            upkeep=upkeep,
            store=store,
            directories=directories,
            disk_limits=_upkeep_settings(config).limits,
            registered=lambda: registrar.registered,
            switch_read_only=switch_read_only,
        )
        self.subject.ready_at = host.wall_clock() if host.wall_clock is not None else None
        log.info("bookie is ready", address=self.address, data_dir=str(config.data_dir))

    def _start_companion(self, view: CompanionView) -> None:
        if self._companion is not None:
            self._stack.push_async_callback(CompanionTask(self._companion, view).stop)

    async def _open_storage(
        self, filesystem: FileSystem, store: MetadataStore, rng: random.Random, host: _Host
    ) -> tuple[StartedIdentity, Storage]:
        """Check the identity, then open the storage; it is closed when the bookie stops."""
        config, directories = self._config, self._config.directories
        try:
            identity = await take_identity(
                filesystem, directories, store, address=self._advertised(config.port), rng=rng, software=host.software,
                pinned_id=BookieId(config.bookie_id) if config.bookie_id is not None else None,
            )  # fmt: skip
            self.bookie_id = self.audit.bookie_id = identity.bookie_id
            structlog.contextvars.bind_contextvars(bookie=self.bookie_id)
            storage = await Storage.open(
                filesystem,
                directory=config.data_dir,
                journal_directory=config.journal_directory,
                entry_directories=config.entry_dirs,
                settings=_storage_settings(config),
                on_fatal=self._break,
                rng=random.Random(rng.getrandbits(64)),
                must_exist=identity.served,
                clock=host.clock,
            )
        except (OSError, IndexDamagedError, JournalUnreadableError, UnsupportedJournalError) as error:
            raise _not_opened(error, config) from error
        self._stack.push_async_callback(self._close_storage, storage)
        try:
            await note_served(filesystem, directories, identity)
        except OSError as error:
            raise _translated(error, config.data_dir) from error
        if storage.doubts_every_ledger:
            await _limit_doubt(storage, store, config)
        return identity, storage

    @property
    def tls_arrivals(self) -> Arrivals | None:
        """Connections that have not told their kind, and how handshakes ended; None: TLS is off."""
        return self._arrivals

    @property
    def certificate_expires_at(self) -> float | None:
        """When the bookie's certificate expires, in seconds since 1970; None: TLS is off."""
        return None if self._certificate is None else self._certificate.current.expires_at

    def reload_files(self) -> None:
        """Read the files of TLS again, if the bookie speaks TLS, and open the audit log again. Connections live on."""
        self.audit.reopen()
        if self._certificate is not None:
            self._certificate.reload()

    def _tls_arrivals(self, service: BookieService) -> Callable[[Callable[[], asyncio.Protocol]], Arrivals] | None:
        """What makes the part of the server that tells TLS from plain connections; None: TLS is off."""
        config, certificate = self._config, self._certificate
        if certificate is None:
            return None
        limits = ArrivalLimits(
            connections_max=config.connections_max,
            connections_per_address_max=config.connections_per_client_max,
            handshakes_max=config.handshakes_max,
            handshakes_per_second=config.handshakes_per_second,
            handshake_seconds=config.handshake_seconds,
        )
        return lambda serve: Arrivals(
            certificate.current,
            plain_too=config.tls == "optional",
            limits=limits,
            serve=serve,
            served=lambda: len(service.connections),
        )

    async def _follow_principals(self, service: BookieService, store: MetadataStore) -> None:
        """Before the port opens: no client is served by principals that are not known yet."""
        if service.access is not None:
            watch = PrincipalsWatch(store, service.access)
            await watch.start()
            self._stack.push_async_callback(watch.stop)
        elif not is_loopback(self._config.host):
            log.warning(
                "bookie is open to all: every host that reaches its port can read and write",
                host=self._config.host, remedy='set auth = "required"',
            )  # fmt: skip

    def _keep_certificate(self, arrivals: Arrivals | None) -> None:
        self._arrivals = arrivals
        if self._certificate is None or arrivals is None:
            return

        def changed(context: ServerContext) -> None:
            arrivals.context = context
            self.audit.note("certificate_changed", expires_at=int(context.expires_at))

        self._certificate.changed = changed
        self.service.tls = TlsFacts(self._config.tls, lambda: self.certificate_expires_at, arrivals.outcomes)
        self._certificate.start()
        self._stack.push_async_callback(self._certificate.stop)

    async def broken(self) -> BaseException:
        """Wait until the bookie has failed (a write or sync of its storage, rule B1); returns the reason.

        It must be ended at once, without :meth:`stop`: nothing it holds unsynced may be acknowledged (rule B1).
        """
        return await asyncio.shield(self._broken)

    @property
    def is_broken(self) -> bool:
        """Whether :meth:`broken` has its reason."""
        return self._broken.done()

    @property
    def failure(self) -> BaseException | None:
        """Why the bookie has failed; None while it has not."""
        return self._broken.result() if self._broken.done() else None

    async def stop(self) -> None:
        """Unregister, answer the requests begun, checkpoint, close. Raises OSError when the last checkpoint fails: the
        bookie is then broken (:meth:`broken`), and the journal holds everything."""
        self.subject.stopping = True
        await self._stack.aclose()

    def _advertised(self, port: int) -> str:
        config = self._config
        if config.advertise is not None:
            return config.advertise
        host = f"[{config.host}]" if ":" in config.host else config.host
        return f"{host}:{port}"

    def _break(self, reason: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_result(reason)

    async def _close_storage(self, storage: Storage) -> None:
        # Nothing that a broken bookie writes can be trusted.
        if not self._broken.done():
            try:
                await storage.close()
            except OSError as error:
                self._break(error)
                raise


async def _limit_doubt(storage: Storage, store: MetadataStore, config: BookieConfig) -> None:
    # A fresh id: every ledger that exists has a lower one (ids are handed out in order, never twice).
    try:
        await storage.limit_doubt(await store.allocate_ledger_id())
    except OSError as error:
        raise _translated(error, config.data_dir) from error


async def _take_directories(filesystem: FileSystem, config: BookieConfig, stack: contextlib.AsyncExitStack) -> None:
    """Lock every directory, and free reserved space if a disk is full."""
    places = list(dict.fromkeys(config.directories.values()))
    for directory in places:
        await _lock_directory(filesystem, directory, stack)
    try:
        await release_reserves_if_full(
            filesystem, places, data_directory=config.data_dir, journal_directory=config.journal_directory
        )
    except OSError as error:
        raise _translated(error, config.data_dir) from error


async def _lock_directory(filesystem: FileSystem, directory: Path, stack: contextlib.AsyncExitStack) -> None:
    try:
        await filesystem.make_directory(directory)
        unlock = await filesystem.lock(directory / "lock")
    except BlockingIOError as error:
        raise BookieStartError(f"{directory} is in use by another bookie process; stop it first") from error
    except OSError as error:
        raise _translated(error, directory) from error
    stack.callback(unlock)


def _make_service(
    config: BookieConfig,
    storage: Storage,
    me: Identity,
    reviver: Reviver,
    host: _Host,
    *,
    new_ledgers: NewLedgers,
    audit: Audit,
) -> BookieService:
    required = config.authentication_required
    return BookieService(
        storage,
        me,
        revive=reviver.revive,
        new_ledgers=new_ledgers,
        access=Access(cluster_id=me.cluster_id, bookie_id=me.bookie_id, audit=audit) if required else None,
        audit=audit,
        limits=ConnectionLimits(
            connections_max=config.connections_max,
            hello_timeout_seconds=config.hello_timeout_seconds,
            frame_timeout_seconds=config.frame_timeout_seconds,
            unfinished_frame_bytes=config.unfinished_frame_bytes,
        ),
        client_limits=ClientLimits(
            connections_max=config.connections_per_client_max,
            bytes_per_second=config.client_bytes_per_second,
            requests_per_second=config.client_requests_per_second,
            new_ledgers_per_second=config.client_new_ledgers_per_second,
        ),
        wall_clock=host.wall_clock,
        answer_bytes=config.answer_bytes,
        repair_read_bytes_per_second=config.repair_read_bytes_per_second,
        answer_timing=AnswerTiming(
            watch_seconds=min(1.0, config.stalled_client_seconds / 6),
            stalled_seconds_max=config.stalled_client_seconds,
            stalled_seconds_min=config.stalled_client_seconds / 6,
        ),
        clock=host.clock,
    )


def _certificate_keeper(config: BookieConfig) -> CertificateKeeper | None:
    """None: TLS is off. Raises :class:`InvalidArgumentError` for files that cannot be used."""
    if config.tls == "off":
        return None
    return CertificateKeeper(config.tls_files, reload_seconds=config.tls_reload_seconds)


def _storage_settings(config: BookieConfig) -> StorageSettings:
    return StorageSettings(
        cache_bytes_max=config.cache_bytes,
        journal_segment_bytes=config.journal_segment_bytes,
        checkpoint_journal_bytes=config.checkpoint_journal_bytes,
        checkpoint_seconds=config.checkpoint_seconds,
        entry_log_bytes=config.entry_log_bytes,
    )


def _upkeep_settings(config: BookieConfig) -> UpkeepSettings:
    return UpkeepSettings(
        limits=DiskLimits(config.disk_warn_bytes, config.disk_writable_bytes, config.disk_read_only_bytes),
        disk_check_seconds=config.disk_check_seconds,
        garbage_seconds=config.garbage_seconds,
        minor_live_share=config.compaction_minor_share,
        major_live_share=config.compaction_major_share,
        major_seconds=config.compaction_major_seconds,
        major_hours=Hours.parse(config.compaction_major_hours),
        compaction_bytes_per_second=config.compaction_bytes_per_second,
        scrub_bytes_per_second=config.scrub_bytes_per_second,
        scrub_pause_seconds=config.scrub_pause_seconds,
        reserve_bytes=min(RESERVE_BYTES_MAX, config.entry_log_bytes // 16),
    )


def _not_opened(error: OSError | OctavoError, config: BookieConfig) -> BookieStartError:
    """Why the storage could not be opened, and what helps. Only what another attempt cannot mend is wrong data."""
    if isinstance(error, OSError):
        return _translated(error, config.data_dir)
    rebuild = f"run `octavo bookie rebuild-index {config.data_dir}`"
    match error:
        case IndexUnreadableError():
            return BookieStartError(f"{error.message}; if the disk goes on failing, {rebuild}")
        case IndexDamagedError():
            return DataWrongError(f"{error.message}; {rebuild}")
        case JournalUnreadableError():
            reset = f"let it come back in doubt with `octavo bookie reset-identity {config.data_dir}`"
            return BookieStartError(f"{error.message}; if the disk goes on failing, {reset}")
        case _:
            return DataWrongError(error.message)


def _translated(error: OSError, path: Path) -> BookieStartError:
    where = error.filename or path
    remedy = (
        "; free some space: a bookie that starts must write before it can collect garbage"
        if is_disk_full(error)
        else ""
    )
    return BookieStartError(f"{where}: {error.strerror or error}{remedy}")


def _listen_error(error: OSError, config: BookieConfig) -> BookieStartError:
    where = f"{config.host}:{config.port}"
    if error.errno == errno.EADDRINUSE:
        return BookieStartError(f"port {config.port} of {config.host} is in use; choose another with --port")
    return BookieStartError(f"cannot listen on {where}: {error.strerror or error}")
