"""One bookie, put together from its parts: what starts in which order, and how it stops.

Start: the data directory is locked, identity is checked against the metadata (rule B4), the storage replays and
makes durable what it found (rule B1), the port opens, the bookie registers. Stop goes the other way round. A start that
fails undoes what it has done so far. Files, metadata and randomness are arguments: a simulator runs this class.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog
from octavo.bookie.admin.administered import ReadyBookie, Subject
from octavo.bookie.companion import Companion, CompanionTask, CompanionView
from octavo.bookie.config import BookieConfig
from octavo.bookie.copies.local_storage import LedgerCopies
from octavo.bookie.disk.filesystem import FileSystem, is_disk_full
from octavo.bookie.identity.cookie import Identity as StartedIdentity
from octavo.bookie.identity.cookie import claim_identity, note_served
from octavo.bookie.identity.duplicate_start import wait_until_unregistered
from octavo.bookie.identity.errors import BookieStartError
from octavo.bookie.index.format import IndexDamagedError
from octavo.bookie.journal.journal import UnsupportedJournalError
from octavo.bookie.part_settings import (
    answer_timing,
    arrival_limits,
    client_limits,
    connection_limits,
    disk_limits,
    storage_settings,
    upkeep_settings,
)
from octavo.bookie.registered_state import Presence
from octavo.bookie.server.access import Access
from octavo.bookie.server.authority import Standing
from octavo.bookie.server.ledger_privacy import LedgerPrivacy
from octavo.bookie.server.new_ledgers import NewLedgers
from octavo.bookie.server.server import BookieServer
from octavo.bookie.server.service import BookieService, Identity, TlsFacts
from octavo.bookie.start_errors import disk_error, listen_error, storage_error
from octavo.bookie.storage.replay import JournalUnreadableError
from octavo.bookie.storage.storage import Storage
from octavo.bookie.upkeep.disk_watch import DiskRoles
from octavo.bookie.upkeep.garbage import GarbageCollector
from octavo.bookie.upkeep.metadata_check import KnownStart, MetadataCheck
from octavo.bookie.upkeep.replaced import ReplacedCopies
from octavo.bookie.upkeep.reserve import release_reserves_if_full
from octavo.bookie.upkeep.tombstone_reversal import Reviver
from octavo.bookie.upkeep.truncated import TruncatedStreams
from octavo.bookie.upkeep.upkeep import Upkeep
from octavo.metadata import MetadataStore
from octavo.metadata.updates.principals_watch import PrincipalsWatch
from octavo.protocol.ids import BookieId, LedgerId
from octavo.security import forks
from octavo.security.audit import Audit
from octavo.security.certificates import CertificateKeeper
from octavo.security.contexts import ServerContext
from octavo.security.loopback import is_loopback
from octavo.security.tls_port import Arrivals

log = structlog.get_logger("octavo.bookie")


type Attend = Callable[[Subject], Awaitable[Callable[[], Awaitable[None]]]]
"""Begins to administer a bookie whose directories are locked; what it returns ends that before they are unlocked."""


class _World(NamedTuple):
    """The surroundings that a bookie gets from the process in which it runs. See :meth:`Bookie.start`."""

    filesystem: FileSystem
    store: MetadataStore
    rng: random.Random
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
        self._loop = asyncio.get_running_loop()
        forks.note_loop(self._loop)
        self._broken: asyncio.Future[BaseException] = self._loop.create_future()
        self.audit = Audit()
        """Notes who does what."""
        self.bookie_id = BookieId("")
        self.address = ""
        self.service: BookieService
        self.subject = Subject(settings=config.as_json(), failure=lambda: self.failure)
        """What the administration of the bookie sees of it."""
        self._attend: Attend = _attend_not
        self._server: BookieServer | None = None
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
            await bookie._start(_World(filesystem, store, rng, software, wall_clock, clock))
            bookie._stack = stack.pop_all()
            return bookie

    async def _start(self, world: _World) -> None:
        config, stack, store = self._config, self._stack, world.store
        self._read_certificate()
        await _take_directories(world.filesystem, config, stack)
        stack.push_async_callback(await self._attend(self.subject))
        boot_id = f"{world.rng.getrandbits(64):016x}"
        identity, storage = await self._open_storage(world)
        me = Identity(self.bookie_id, identity.cluster_id, boot_id, world.software)
        reviver = Reviver(storage, store, cluster_id=identity.cluster_id)
        stack.push_async_callback(reviver.stop)
        await self._serve(me, storage, reviver, world)
        presence = Presence(
            config, self.service, storage, store,
            address=self.address, rng=world.rng, incarnation=identity.incarnation, lost=self._break,
        )  # fmt: skip
        metadata_check = MetadataCheck(
            store,
            KnownStart(self.bookie_id, identity.cluster_id, identity.generation, identity.ledger_ids_stop),
            partial(self._note_ids_stop, world.filesystem, identity),
        )
        replaced = ReplacedCopies(
            storage, store, metadata_check, self.bookie_id, keep_seconds=config.replaced_copies_seconds
        )
        garbage = GarbageCollector(storage, store, metadata_check)
        truncated = TruncatedStreams(storage, store, metadata_check)
        upkeep = await self._start_upkeep(storage, garbage, presence, world, truncated=truncated, replaced=replaced)
        await presence.start(stack)
        if self._companion is not None:
            copies = LedgerCopies(
                storage, revive=reviver.revive, check_space=self.service.check_space, replaced=replaced
            )
            self._start_companion(self._companion, copies, presence, world, garbage.check_metadata)
        self.subject.ready = ReadyBookie(
            service=self.service,
            storage=storage,
            upkeep=upkeep,
            store=store,
            directories=config.directories,
            disk_limits=disk_limits(config),
            registered=lambda: presence.registered,
            switch_read_only=presence.switch_read_only,
        )
        self.subject.ready_at = world.wall_clock() if world.wall_clock is not None else None
        log.info("bookie is ready", address=self.address, data_dir=str(config.data_dir))

    async def _serve(self, me: Identity, storage: Storage, reviver: Reviver, world: _World) -> None:
        """Open the port. The principals and the operator's read-only switch are known before the first connection."""
        config, stack, store = self._config, self._stack, world.store
        new_ledgers = NewLedgers(storage, store, checks_writes=config.verifies_new_ledgers)
        stack.push_async_callback(new_ledgers.stop)
        privacy = LedgerPrivacy(storage, store)
        stack.push_async_callback(privacy.stop)
        self.service = service = _make_service(
            config, storage, me, reviver, world, new_ledgers=new_ledgers, privacy=privacy, audit=self.audit
        )
        storage.writer.on_deleted = lambda ledger_id: self.audit.note("delete", ledger=int(ledger_id))
        self.audit.note("start", auth="required" if config.authentication_required else "none", tls=config.tls)
        service.switch_read_only(self.subject.operator_read_only)
        await self._follow_principals(service, store)
        self._server = server = BookieServer(service, self._tls_arrivals(service))
        try:
            port = await server.start(config.host, config.port)
        except OSError as error:
            raise listen_error(error, config) from error
        stack.push_async_callback(server.stop, drain_timeout_seconds=config.drain_timeout_seconds)
        self._keep_certificate(server.arrivals)
        self.address = self._advertised(port)

    async def _start_upkeep(
        self,
        storage: Storage,
        garbage: GarbageCollector,
        presence: Presence,
        world: _World,
        *,
        truncated: TruncatedStreams,
        replaced: ReplacedCopies,
    ) -> Upkeep:
        """Start garbage collection, compaction, scrubbing and the disk watch."""
        config = self._config
        upkeep = Upkeep(
            storage,
            garbage,
            world.filesystem,
            DiskRoles((config.data_dir, config.journal_directory), (config.data_dir, *config.entry_dirs)),
            upkeep_settings(config),
            rng=random.Random(world.rng.getrandbits(64)),
            wall_clock=world.wall_clock,
            on_disk_state=presence.note_disks,
            on_failure=self._break,
            truncated=truncated,
            replaced=replaced,
        )
        self._stack.push_async_callback(upkeep.stop)
        self.service.disk_shortage = lambda: upkeep.shortage
        try:
            await upkeep.start()
        except OSError as error:
            raise disk_error(error, config.data_dir) from error
        return upkeep

    def _start_companion(
        self,
        companion: Companion,
        copies: LedgerCopies,
        presence: Presence,
        world: _World,
        check_metadata: Callable[[], Awaitable[object]],
    ) -> None:
        view = CompanionView(
            presence.registration(),
            self.service,
            copies,
            store=world.store,
            rng=random.Random(world.rng.getrandbits(64)),
            wall_clock=world.wall_clock or asyncio.get_running_loop().time,
            free_bytes=lambda: presence.free_bytes,
            announce=presence.announce,
            check_metadata=check_metadata,
        )
        self._stack.push_async_callback(CompanionTask(companion, view).stop)

    def _read_certificate(self) -> None:
        self._certificate = certificate = _certificate_keeper(self._config)
        if certificate is not None:
            self.subject.tls_context = lambda: certificate.current

    async def _open_storage(self, world: _World) -> tuple[StartedIdentity, Storage]:
        """Check the identity, then open the storage; it is closed when the bookie stops."""
        filesystem, store, rng = world.filesystem, world.store, world.rng
        config, directories = self._config, self._config.directories
        try:
            identity = await claim_identity(
                filesystem, directories, store, address=self._advertised(config.port), rng=rng, software=world.software,
                pinned_id=BookieId(config.bookie_id) if config.bookie_id is not None else None,
                lease_seconds=config.lease_seconds,
            )  # fmt: skip
            self.bookie_id = self.audit.bookie_id = identity.bookie_id
            structlog.contextvars.bind_contextvars(bookie=self.bookie_id)
            storage = await Storage.open(
                filesystem,
                directory=config.data_dir,
                journal_directory=config.journal_directory,
                entry_directories=config.entry_dirs,
                settings=storage_settings(config),
                on_fatal=self._break,
                rng=random.Random(rng.getrandbits(64)),
                must_exist=identity.served,
                clock=world.clock,
            )
        except (OSError, IndexDamagedError, JournalUnreadableError, UnsupportedJournalError) as error:
            raise storage_error(error, config) from error
        self._stack.push_async_callback(self._close_storage, storage)
        try:
            await note_served(filesystem, directories, identity)
        except OSError as error:
            raise disk_error(error, config.data_dir) from error
        if storage.doubts_every_ledger:
            # What was registered as this bookie before may confirm adds of every ledger that exists until that ends:
            # the doubt must cover all of them (rule B10).
            await wait_until_unregistered(store, identity.bookie_id, seconds=2 * config.lease_seconds)
            await _limit_doubt(storage, store, config)
        return identity, storage

    async def _note_ids_stop(self, filesystem: FileSystem, identity: StartedIdentity, ids_stop: LedgerId) -> None:
        """Note in the cookies that these ledger ids have been allocated. A full disk is no reason not to collect
        garbage: the bookie then notes them later."""
        try:
            await note_served(filesystem, self._config.directories, replace(identity, ledger_ids_stop=ids_stop))
        except OSError as error:
            if not is_disk_full(error):
                self._break(error)
                raise
            log.warning("allocated ledger ids not noted", ledger_ids_stop=int(ids_stop), reason=str(error))

    @property
    def tls_arrivals(self) -> Arrivals | None:
        """Connections that have not told their kind, and how handshakes ended; None: TLS is off."""
        return self._arrivals

    @property
    def certificate_expires_at(self) -> float | None:
        """When the bookie's certificate expires, in seconds since 1970; None: TLS is off."""
        return None if self._certificate is None else self._certificate.current.expires_at

    def reload_files(self) -> None:
        """Read the files of TLS again, if the bookie speaks TLS, and open the audit log again. Existing connections
        stay open."""
        self.audit.reopen()
        if self._certificate is not None:
            self._certificate.reload()

    def _tls_arrivals(self, service: BookieService) -> Callable[[Callable[[], asyncio.Protocol]], Arrivals] | None:
        """The maker of the part of the server that tells TLS from plain connections; None: TLS is off."""
        config, certificate = self._config, self._certificate
        if certificate is None:
            return None
        return lambda serve: Arrivals(
            lambda: certificate.current,
            plain_too=config.tls == "optional",
            limits=arrival_limits(config),
            serve=serve,
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
        bookie is then broken (:meth:`broken`), and the journal holds everything. Raises :class:`ForkedError`, and
        does nothing, in a forked child (rule H1)."""
        forks.check_process(self._loop)
        self.subject.stopping = True
        await self._stack.aclose()

    def sever(self) -> None:
        """Close the port and all connections at once, as a kill of the process does: nothing more is answered. The
        caller, who plays the kernel, cancels what still runs, and lets none of it write. For :mod:`octavo.testing`."""
        if self._server is not None:
            self._server.sever()

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
        raise disk_error(error, config.data_dir) from error


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
        raise disk_error(error, config.data_dir) from error


async def _lock_directory(filesystem: FileSystem, directory: Path, stack: contextlib.AsyncExitStack) -> None:
    try:
        await filesystem.make_directory(directory)
        unlock = await filesystem.lock(directory / "lock")
    except BlockingIOError as error:
        raise BookieStartError(f"{directory} is in use by another bookie process; stop it first") from error
    except OSError as error:
        raise disk_error(error, directory) from error
    stack.callback(unlock)


def _make_service(
    config: BookieConfig,
    storage: Storage,
    me: Identity,
    reviver: Reviver,
    world: _World,
    *,
    new_ledgers: NewLedgers,
    privacy: LedgerPrivacy,
    audit: Audit,
) -> BookieService:
    required = config.authentication_required
    return BookieService(
        storage,
        me,
        revive=reviver.revive,
        new_ledgers=new_ledgers,
        privacy=privacy,
        access=Access(cluster_id=me.cluster_id, bookie_id=me.bookie_id, audit=audit) if required else None,
        audit=audit,
        limits=connection_limits(config),
        client_limits=client_limits(config),
        wall_clock=world.wall_clock,
        answer_bytes=config.answer_bytes,
        repair_read_bytes_per_second=config.repair_read_bytes_per_second,
        answer_timing=answer_timing(config),
        clock=world.clock,
        standing=Standing(world.clock or asyncio.get_running_loop().time),
    )


def _certificate_keeper(config: BookieConfig) -> CertificateKeeper | None:
    """None: TLS is off. Raises :class:`InvalidArgumentError` for files that cannot be used."""
    if config.tls == "off":
        return None
    return CertificateKeeper(config.tls_files, reload_seconds=config.tls_reload_seconds)
