"""``octavo up``: runs a whole cluster on this machine.

The data directory holds ``metadata.db`` (unless ``--metadata`` names another store), one directory ``bookie-N`` per
bookie, ``logs``, and the files that tell other commands what runs (:mod:`octavo.cli.running_cluster`).
"""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from octavo.cli.event_loop import finish
from octavo.cli.local import kafka as gateway
from octavo.cli.local.bookie_process import BookieProcess, BookieSpec, pinned_id
from octavo.cli.local.common import DATA_DIR_DEFAULT, DataDirOption, left_stopped, print_ready
from octavo.cli.local.detach import start_detached
from octavo.cli.local.ports import (
    BASE_PORT_DEFAULT,
    PORT_MAX,
    PORTS_NAME,
    check_free,
    choose_ports,
    read_ports,
    remember_ports,
)
from octavo.cli.local.restarts import GiveUp, LeaveStopped, RestartPolicy
from octavo.cli.output import print_json, print_line, progress_bar
from octavo.cli.running_cluster import ClusterState, opened_lock, remove_state, take_lock, write_state
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, CommandError, LogLevel, Session, command, print_error

STOP_SECONDS_MAX = 20.0
"""How long a bookie that was told to stop may take before it is killed: twice its own limit for draining."""

LOCK_SECONDS_MAX = 15.0
"""How long to wait for bookies that are still stopping because their ``octavo up`` was killed."""

_LOCK_POLL_SECONDS = 0.05
_STARTING_NOTICE_SECONDS = 10.0


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app, log_level_default=LogLevel.INFO)(up)


async def up(
    session: Session,
    bookies: Annotated[int, typer.Option("--bookies", metavar="N", min=1, max=64, help="Number of bookies.")] = 3,
    data_dir: DataDirOption = DATA_DIR_DEFAULT,
    base_port: Annotated[
        int | None,
        typer.Option(
            "--base-port",
            metavar="PORT",
            min=0,
            max=PORT_MAX,
            help="Port of the first bookie; the others use the ports after it. 0 takes any free ports. Default: the "
            f"ports that the bookies of this directory had before, or those from {BASE_PORT_DEFAULT} on.",
        ),
    ] = None,
    kafka: Annotated[
        int | None,
        typer.Option(
            "--kafka",
            metavar="PORT",
            min=0,
            max=PORT_MAX,
            help="Serve clients that speak Kafka's protocol at this port of 127.0.0.1, too. 0 takes any free port.",
        ),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return as soon as the cluster is ready and leave it running.")
    ] = False,
    ready_descriptor: Annotated[int | None, typer.Option("--ready-descriptor", hidden=True)] = None,
) -> int:
    """Run a whole cluster on this machine.

    The cluster consists of several bookies, each in a process of its own, and a metadata store. The command prints a
    line when the cluster is ready, with the metadata URI to use. Ctrl-C stops the cluster; its data stay and are there
    again after the next start. A bookie that dies is started again, unless its data or identity are wrong.

    With --detach the cluster runs in the background: `octavo status` shows it and `octavo down` stops it.
    """
    directory = data_dir.absolute()
    names = [f"bookie-{number}" for number in range(1, bookies + 1)]
    ports = choose_ports(names, base_port, read_ports(directory))
    uri = session.metadata
    if uri is None:
        uri = f"sqlite:///{directory}/metadata.db"
        _check_metadata_are_there(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot create the data directory {directory}: {error.strerror}") from error
    if detach:
        chosen: tuple[str, ...] = () if base_port is None else ("--base-port", str(base_port))
        if kafka is not None:
            chosen = (*chosen, "--kafka", str(kafka))
        await start_detached(session, directory, ("--bookies", str(bookies), *chosen))
        return EXIT_OK
    specs = [
        BookieSpec(
            name=name,
            data_dir=directory / name,
            log_file=directory / "logs" / f"{name}.log",
            port=ports[name],
            arguments=(
                *("--bookie-id", pinned_id(directory / name)),
                *("--metadata", uri, "--log-level", session.log_level.value, "--log-format", session.log_format.value),
            ),
        )
        for name in names
    ]
    from octavo.bookie.log_output import use_log_outputs  # noqa: PLC0415 - `octavo --help` needs no bookie

    use_log_outputs()  # a full disk must not end the cluster
    async with _locked(directory) as lock_descriptor:
        check_free(ports)
        cluster = _Cluster(
            specs,
            uri,
            directory,
            lock_descriptor,
            kafka_port=kafka,
            ready_descriptor=ready_descriptor,
            as_json=session.as_json,
        )
        try:
            return await cluster.run()
        except asyncio.CancelledError:
            return EXIT_OK  # the user stopped the command, and every bookie has stopped: the normal end


def _check_metadata_are_there(directory: Path) -> None:
    """Raise :class:`CommandError` if bookies have data here but the metadata of their ledgers are missing."""
    if (directory / "metadata.db").exists():
        return
    orphans = sorted(cookie.parent.name for cookie in directory.glob("bookie-*/cookie"))
    if orphans:
        raise CommandError(
            f"{directory}/metadata.db is gone, but {', '.join(orphans)} hold data of its cluster: "
            "put it back, name the metadata store with --metadata, or choose another --data-dir"
        )


class _Cluster:
    """The bookies of one ``octavo up``, each watched by a task of its own."""

    def __init__(
        self,
        specs: list[BookieSpec],
        uri: str,
        directory: Path,
        lock_descriptor: int,
        *,
        kafka_port: int | None,
        ready_descriptor: int | None,
        as_json: bool,
    ) -> None:
        self._specs = specs
        self._uri = uri
        self._directory = directory
        self._lock_descriptor = lock_descriptor
        self._ready_descriptor = ready_descriptor
        self._as_json = as_json
        self._state = ClusterState.STARTING
        self._bookie_states = {spec.name: "starting" for spec in specs}
        self._left_stopped: dict[str, str] = {}
        """Bookie that is not started again -> why."""
        self._running: dict[str, BookieProcess] = {}
        self._announced = False
        self._starting = {spec.name for spec in specs} | ({gateway.NAME} if kafka_port is not None else set())
        self._kafka_port = kafka_port
        self._kafka_address: str | None = None
        self._bookies_are_up = asyncio.Event()

    async def run(self) -> int:
        """Run until every bookie is left stopped (exit status 1) or the task is cancelled. Leaves no process behind."""
        self._write_state()
        try:
            return await self._run()
        finally:
            with contextlib.suppress(OSError):
                remove_state(self._directory)

    async def _run(self) -> int:
        try:
            async with asyncio.TaskGroup() as group:
                notices = group.create_task(self._tell_what_is_starting())
                watchers = [group.create_task(self._keep_running(spec)) for spec in self._specs]
                if self._kafka_port is not None:
                    group.create_task(self._keep_gateway(self._kafka_port))
                await asyncio.wait(watchers, return_when=asyncio.FIRST_EXCEPTION)
                notices.cancel()
        except* CommandError as errors:
            raise errors.exceptions[0] from None
        raise CommandError(f"none of the bookies can run; see {self._directory}/logs")

    async def _keep_gateway(self, port: int) -> None:
        def ready(address: str) -> None:
            self._kafka_address = address
            self._starting.discard(gateway.NAME)
            self._announce_when_all_are_up()

        await self._bookies_are_up.wait()
        await gateway.keep_gateway(self._uri, port, len(self._specs), ready)

    async def _keep_running(self, spec: BookieSpec) -> None:
        policy = RestartPolicy()
        while True:
            status, ready_seconds = await self._run_once(spec, policy)
            decision = policy.ended(status[0], ready_seconds)
            how, reason = _how_it_ended(status[0]), status[1]
            if isinstance(decision, GiveUp):
                raise CommandError(f"{spec.name} could not start: {_with_options_of_up(reason)}")
            if isinstance(decision, LeaveStopped):
                self._tell("left stopped", spec, left_stopped(spec.name, reason), reason=reason)
                self._bookie_states[spec.name] = "left stopped"
                self._left_stopped[spec.name] = reason
                self._starting.discard(spec.name)
                self._write_state()
                self._announce_when_all_are_up()
                return
            pause = decision.pause_seconds
            # A bookie that was killed could not write a reason: its last log line is about something else.
            why = f": {reason}" if status[0] > 0 else ""
            self._bookie_states[spec.name] = "restarting"
            self._write_state()
            self._tell(
                "ended",
                spec,
                f"{spec.name} {how}{why}; starting it again in {pause:g} s",
                exit_status=status[0],
                reason=reason,
            )
            await asyncio.sleep(pause)

    async def _run_once(self, spec: BookieSpec, policy: RestartPolicy) -> tuple[tuple[int, str], float | None]:
        """Run one process to its end. Returns its exit status, the reason in its log, and how long it was ready."""
        loop = asyncio.get_running_loop()
        try:
            bookie = await BookieProcess.start(spec, lock_descriptor=self._lock_descriptor)
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            if policy.was_ready:
                return (EXIT_FAILURE, reason), None  # the disk is full, for example: it is tried again
            raise CommandError(f"{spec.name} could not start: {reason}") from error
        self._running[spec.name] = bookie
        self._write_state()
        becoming_ready = asyncio.ensure_future(self._wait_ready(bookie, again=policy.was_ready))
        try:
            status = await bookie.wait_ended()
        except asyncio.CancelledError:
            self._state = ClusterState.STOPPING
            self._write_state()
            raise
        finally:
            becoming_ready.cancel()
            await finish(self._stop(bookie))
            del self._running[spec.name]
        ready_seconds = None if bookie.ready_at is None else loop.time() - bookie.ready_at
        return (status, bookie.reason()), ready_seconds

    async def _wait_ready(self, bookie: BookieProcess, *, again: bool) -> None:
        await bookie.wait_ready()
        name = bookie.spec.name
        self._bookie_states[name] = "ready"
        if again:
            self._tell("started again", bookie.spec, f"{name} is ready again", pid=bookie.pid)
        self._starting.discard(name)
        self._announce_when_all_are_up()
        self._write_state()

    @staticmethod
    async def _stop(bookie: BookieProcess) -> None:
        bookie.stop()
        ended = asyncio.ensure_future(bookie.wait_ended())
        done, _ = await asyncio.wait([ended], timeout=STOP_SECONDS_MAX)
        if not done:
            print_error(f"{bookie.spec.name} has not stopped within {STOP_SECONDS_MAX:g} s; killing it")
            bookie.kill()
        await ended

    # --- messages ----------------------------------------------------------------------------------------------------

    def _write_state(self) -> None:
        facts = []
        for spec in self._specs:
            bookie = self._running.get(spec.name)
            facts.append(
                {
                    "name": spec.name,
                    "state": self._bookie_states[spec.name],
                    "pid": None if bookie is None else bookie.pid,
                    "port": (spec.port or None) if bookie is None else bookie.port,
                    "data_dir": str(spec.data_dir),
                    "log": str(spec.log_file),
                    "reason": self._left_stopped.get(spec.name),
                }
            )
        try:
            write_state(self._directory, self._state, self._uri, facts)
        except OSError as error:
            # A full disk must not stop the bookies: other commands see an older state.
            print_error(f"cannot write {self._directory}/up.json: {error.strerror}")

    def _announce_when_all_are_up(self) -> None:
        if self._running and self._starting <= {gateway.NAME}:
            self._bookies_are_up.set()
        if self._announced or self._starting or not self._running:
            return
        self._announced = True
        self._state = ClusterState.READY
        self._write_state()
        if self._ready_descriptor is not None:
            with contextlib.suppress(OSError):  # the command that waited for it has been killed
                os.write(self._ready_descriptor, b"ready\n")
                os.close(self._ready_descriptor)
        up_now = list(self._running.values())
        self._remember_ports(up_now)
        if self._as_json:
            print_json(
                {
                    "event": "ready",
                    "metadata": self._uri,
                    "data_dir": str(self._directory),
                    **({} if self._kafka_address is None else {"kafka": self._kafka_address}),
                    "bookies": [
                        {
                            "name": bookie.spec.name,
                            "pid": bookie.pid,
                            "port": bookie.port,
                            "data_dir": str(bookie.spec.data_dir),
                            "log": str(bookie.spec.log_file),
                        }
                        for bookie in up_now
                    ],
                }
            )
            return
        print_ready(len(up_now), len(self._specs), self._uri, self._directory)
        if self._kafka_address is not None:
            print_line(f"  Kafka clients connect to {self._kafka_address}")
        print_line("Press Ctrl-C to stop it.")

    def _remember_ports(self, bookies: list[BookieProcess]) -> None:
        ports = {bookie.spec.name: bookie.port for bookie in bookies if bookie.port is not None}
        try:
            remember_ports(self._directory, ports)
        except OSError as error:
            print_error(
                f"cannot write {self._directory}/{PORTS_NAME}: {error.strerror}; the next start takes the default ports"
            )

    async def _tell_what_is_starting(self) -> None:
        with contextlib.suppress(asyncio.CancelledError), progress_bar("starting", None):
            while self._starting:
                await asyncio.sleep(_STARTING_NOTICE_SECONDS)
                if self._starting:
                    print_error(f"still waiting for {', '.join(sorted(self._starting))}; see {self._directory}/logs")

    def _tell(self, event: str, spec: BookieSpec, text: str, **facts: object) -> None:
        if self._as_json:
            print_json({"event": event, "name": spec.name, **facts})
        else:
            print_error(text)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"


def _with_options_of_up(reason: str) -> str:
    """A bookie's reason, with the options of ``octavo up`` in place of its own."""
    return reason.replace("--port", "--base-port")


# --- one `octavo up` per data directory ------------------------------------------------------------------------------


@asynccontextmanager
async def _locked(directory: Path) -> AsyncIterator[int]:
    """Hold the directory's lock; gives its descriptor, which the bookies inherit.

    Raises :class:`CommandError` naming the process that holds the lock. If that ``octavo up`` is gone, its bookies are
    stopping: this waits for them.
    """
    try:
        opened = contextlib.ExitStack()
        descriptor = opened.enter_context(opened_lock(directory))
    except OSError as error:
        raise CommandError(f"cannot write in the data directory {directory}: {error.strerror}") from error
    with opened:
        deadline = asyncio.get_running_loop().time() + LOCK_SECONDS_MAX
        while (holder := take_lock(descriptor)) is not None:
            if holder.process is not None:
                raise CommandError(
                    f"{directory} is in use by another `octavo up` (process {holder.process.process_id}); "
                    "`octavo down` stops it, or choose another --data-dir"
                )
            if asyncio.get_running_loop().time() > deadline:
                raise CommandError(
                    f"{directory} is in use by bookies of an `octavo up` that was killed; they have not stopped "
                    f"within {LOCK_SECONDS_MAX:g} s, see {directory}/logs"
                )
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        yield descriptor
