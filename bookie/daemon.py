"""One bookie as a process: signals, supervisor, exit status.

Exit statuses: 0 after SIGTERM or SIGINT, 1 for failures that another attempt may overcome, :data:`EXIT_DATA_WRONG` when
its data or its identity are wrong: starting again cannot help, and deploy's systemd unit does not try.
"""

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, NoReturn

import structlog
import uvloop
from octavo._version import __version__
from octavo.bookie.admin.process import ProcessStatistics
from octavo.bookie.administration import Attendant
from octavo.bookie.bookie import Bookie
from octavo.bookie.companion import Companion
from octavo.bookie.config import HOST_ID_AUTO, BookieConfig
from octavo.bookie.disk.descriptors import connections_within, raise_limit_of_files
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.identity.errors import DataWrongError
from octavo.bookie.log_level import LogLevel
from octavo.bookie.logs import configure_logging
from octavo.bookie.notify import ADDRESS_KEY, notify_supervisor
from octavo.bookie.process_health import Pulse
from octavo.metadata import MetadataStore
from octavo.metadata.clocks.boot_time import boot_id_of_kernel
from octavo.metadata.connect import open_cluster
from octavo.metadata.updates.cluster_release import begin_cluster, finalized_release, own_releases, start_refusal
from octavo.protocol.errors import InvalidArgumentError, MetadataUnavailableError, OctavoError
from octavo.security.audit import Audit, AuditFile

log = structlog.get_logger("octavo.bookie")

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
"""A setting cannot be used: a certificate that has expired, for example."""
EXIT_DATA_WRONG = 78
"""EX_CONFIG of sysexits.h: an operator must repair something on disk first."""

_boot_seconds = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Precise seconds that keep counting while the host is suspended. They tell the bookie that it may have been away (rule
B10)."""

METADATA_RETRY_SECONDS = 0.5
"""Pause between attempts to reach a metadata store that does not answer while a bookie starts."""

THREAD_SWITCH_SECONDS = 0.0005
"""How long the event loop may keep the journal's thread waiting for the interpreter after a sync. Python's default is
ten times as long as the sync itself."""


GARBAGE_THRESHOLD = 20_000
"""Allocations before Python searches for reference cycles. A bookie makes many objects and few cycles."""


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's malloc.h."""

_MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024
"""glibc's own maximum: above every frame, so that none gets pages of its own."""

_TRIM_THRESHOLD_BYTES = 128 * 1024 * 1024
"""Free memory kept: about what one flush of the write cache frees, and the next minute takes again."""


def _keep_freed_memory() -> None:
    """Let malloc keep what is freed. By default glibc gives every large buffer back to the kernel, which then has to
    clear pages for the next one: a tenth of a busy bookie's time. Does nothing with other C libraries."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)


def run(
    config: BookieConfig, companion: Companion | None = None, reload: Callable[[], BookieConfig] | None = None
) -> int:
    """Run a bookie, with its companion if there is one, until SIGTERM or SIGINT; returns the exit status. ``reload``
    reads the configuration again at SIGHUP; it raises :class:`InvalidArgumentError`."""
    _keep_freed_memory()
    configure_logging(config.log_level, config.log_format)
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    try:
        return uvloop.run(_main(config, random.Random(os.urandom(16)), companion, reload))
    except DataWrongError as error:
        _log_reason("bookie refuses to start", error, config)
        return EXIT_DATA_WRONG
    except InvalidArgumentError as error:
        _log_reason("bookie cannot start", error, config)
        return EXIT_USAGE
    except OctavoError as error:
        _log_reason("bookie cannot start", error, config)
        return EXIT_FAILURE


def _log_reason(event: str, error: OctavoError, config: BookieConfig) -> None:
    log.error(event, reason=error.message, data_dir=str(config.data_dir))


async def _main(
    config: BookieConfig,
    rng: random.Random,
    companion: Companion | None,
    reload: Callable[[], BookieConfig] | None,
) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    log_level = LogLevel(config.log_level, config.log_format)
    running: list[Bookie] = []
    loop.add_signal_handler(signal.SIGHUP, _reload, config, reload, log_level, running)
    process = ProcessStatistics()
    pulse = Pulse(process, os.environ, time.perf_counter)
    pulse.start()
    filesystem = RealFileSystem(page_cache_bytes=config.page_cache_bytes)
    audit = _audit(config)
    attendant = Attendant(config, filesystem, process, log_level, audit)
    store: MetadataStore | None = None
    try:
        store = await _unless_stopped(stopped, _open_metadata(config))
        if store is None:
            return EXIT_OK
        world = _World(filesystem, store, rng, attendant, audit)
        bookie = await _unless_stopped(stopped, _start(config, world, companion))
        if bookie is None:
            return EXIT_OK
        running.append(bookie)
        # What exists now lives as long as the process; looking through it again and again would only cost latency.
        gc.freeze()
        gc.set_threshold(GARBAGE_THRESHOLD)
        # `octavo up` must know the port of a bookie that took any free one; systemd ignores what begins with X_.
        notify_supervisor(f"READY=1\n{ADDRESS_KEY}={bookie.address}", os.environ)
        pulse.ready()
        await _first_of(bookie.broken(), stopped.wait())
        if not bookie.is_broken:
            notify_supervisor("STOPPING=1", os.environ)
            log.info("bookie is stopping")
            await attendant.stop_jobs()
            # It may break while it stops, too: its last checkpoint writes and syncs.
            stopping = asyncio.ensure_future(bookie.stop())
            await _first_of(bookie.broken(), stopping)
            if not bookie.is_broken:
                await stopping
        if bookie.is_broken:
            _end_at_once(await bookie.broken())
        log.info("bookie has stopped")
    finally:
        if store is not None:
            with contextlib.suppress(OctavoError):
                await store.close()
        await filesystem.close()
        await audit.stop()
        pulse.stop()
    return EXIT_OK


class _World(NamedTuple):
    """The parts that the process gives its bookie."""

    filesystem: RealFileSystem
    store: MetadataStore
    rng: random.Random
    attendant: Attendant
    audit: Audit


async def _start(config: BookieConfig, world: _World, companion: Companion | None) -> Bookie:
    await _check_release(world.store)
    return await Bookie.start(
        on_this_host(_within_descriptors(config), boot_id_of_kernel()),
        filesystem=world.filesystem,
        store=world.store,
        rng=world.rng,
        software=__version__,
        wall_clock=time.time,
        clock=_boot_seconds,
        attend=world.attendant.attend,
        companion=companion,
        audit=world.audit,
    )


def _within_descriptors(config: BookieConfig) -> BookieConfig:
    """The configuration with no more connections than the process has descriptors for (rule B12)."""
    limit = raise_limit_of_files()
    connections_max = connections_within(limit, config.connections_max)
    if connections_max == config.connections_max:
        return config
    log.warning(
        "connections_max is lowered to what the limit of file descriptors allows; raise LimitNOFILE= or `ulimit -n`",
        connections_max=connections_max, configured=config.connections_max, file_descriptors=limit,
    )  # fmt: skip
    return replace(config, connections_max=connections_max)


def on_this_host(config: BookieConfig, boot_id: str | None) -> BookieConfig:
    """The configuration with the id of this host, if that was to be found out. It is made of the id of the kernel's
    start: all containers of a host have the same, and no two hosts do (decision 036)."""
    if config.host_id != HOST_ID_AUTO:
        return config
    if boot_id is None:
        log.warning(
            "cannot tell on which host this bookie runs: it counts as a host of its own, and several copies of an "
            "entry may go to bookies of this host; set host_id, the same for all of them"
        )
        return config
    return replace(config, host_id=f"boot-{boot_id.replace('-', '')[:16]}")


async def _unless_stopped[T](stopped: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of a step of the start; None, and the step is broken off, if the bookie is to stop first. Every step
    may wait for a metadata store that does not answer, and a supervisor kills what does not stop within seconds."""
    step = asyncio.ensure_future(work)
    await _first_of(step, stopped.wait())
    if not step.done():
        step.cancel()
        await asyncio.gather(step, return_exceptions=True)
        return None
    return step.result()


def _audit(config: BookieConfig) -> Audit:
    """The audit log, which is written from now on. Raises :class:`InvalidArgumentError` if it cannot be."""
    if config.audit_file is None:
        return Audit()
    audit = Audit(AuditFile(config.audit_file, config.audit_file_bytes, config.audit_files_max), wall_clock=time.time)
    try:
        audit.start()
    except OSError as error:
        raise InvalidArgumentError(f"audit_file {config.audit_file}: {error.strerror or error}") from error
    return audit


def _reload(
    config: BookieConfig, reload: Callable[[], BookieConfig] | None, log_level: LogLevel, running: list[Bookie]
) -> None:
    """SIGHUP: take over what can change while the bookie runs, and name what cannot."""
    for bookie in running:
        bookie.reload_files()
    if reload is None:
        log.info("nothing to reload: the bookie has no configuration file")
        return
    try:
        wanted = reload()
    except OctavoError as error:
        log.error("configuration not reloaded: everything stays as it is", reason=error.message)  # noqa: TRY400
        return
    log_level.configure(wanted.log_level)
    before, after = config.as_json(), wanted.as_json()
    waiting = sorted(name for name in before if name != "log_level" and before[name] != after[name])
    log.info("configuration reloaded", log_level=wanted.log_level, restart_needed_for=waiting)


def _end_at_once(reason: BaseException) -> NoReturn:
    try:
        log.error("bookie stops at once", reason=str(reason), error=type(reason).__name__)
    finally:
        # No clean-up: it would write, and nothing that is written now can be trusted. And whatever becomes of the line,
        # the process ends (rule B11).
        os._exit(EXIT_DATA_WRONG if isinstance(reason, DataWrongError) else EXIT_FAILURE)


async def _open_metadata(config: BookieConfig) -> MetadataStore:
    """Open the metadata store; wait for it while it does not answer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.start_timeout_seconds
    while True:
        try:
            return await open_cluster(config.metadata, create=True, lease_seconds=config.lease_seconds)
        except MetadataUnavailableError as error:
            if loop.time() >= deadline:
                raise
            log.warning("waiting for the metadata store", uri=config.metadata, reason=error.message)
            await asyncio.sleep(METADATA_RETRY_SECONDS)


async def _check_release(store: MetadataStore) -> None:
    """Refuse to start in a cluster whose formats this release cannot read. Raises :class:`DataWrongError`."""
    await begin_cluster(store)
    refusal = start_refusal(own_releases(), await finalized_release(store))
    if refusal is not None:
        raise DataWrongError(refusal)


async def _first_of(*awaitables: object) -> None:
    """Wait for the first. Coroutines that are not done are cancelled, futures are not."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, awaitable in zip(tasks, awaitables, strict=True):
            if task is not awaitable:
                task.cancel()
