"""``octavo up``: a whole cluster on this machine.

The data directory holds ``metadata.db`` (unless the metadata are elsewhere), ``bookie-1`` and so on, ``logs`` and the
lock of the ``octavo up`` that runs on it.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from octavo.cli.local.bookie_process import BookieProcess, BookieSpec
from octavo.cli.local.restarts import GiveUp, LeaveStopped, RestartPolicy
from octavo.cli.output import print_json, print_line, progress_bar
from octavo.cli.session import EXIT_OK, CommandError, LogLevel, Session, command, finish, print_error
from octavo.protocol.errors import InvalidArgumentError

STOP_SECONDS_MAX = 20.0
"""How long a bookie told to stop may take before it is killed: twice what it takes itself for draining."""

LOCK_SECONDS_MAX = 15.0
"""How long to wait for bookies that another ``octavo up``, killed outright, left stopping."""

_LOCK_POLL_SECONDS = 0.05
_STARTING_NOTICE_SECONDS = 10.0
_PORT_MAX = 65535


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app, log_level_default=LogLevel.INFO)(up)


async def up(
    session: Session,
    bookies: Annotated[int, typer.Option("--bookies", min=1, max=64, help="How many bookies.")] = 3,
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="Where all data are.")] = Path(
        "octavo-data"
    ),
    base_port: Annotated[
        int,
        typer.Option("--base-port", min=0, max=_PORT_MAX, help="The first bookie's port; the others' follow. 0: any."),
    ] = 3181,
) -> int:
    """Run a whole cluster on this machine: bookies, each a process of its own, and the embedded metadata store.

    Says when it is ready, with the URI to use. Ctrl-C stops it; started again it has all its data. A bookie that dies
    is started again, unless it says that its data are wrong.
    """
    if base_port and base_port + bookies - 1 > _PORT_MAX:
        raise InvalidArgumentError(f"--base-port {base_port}: {bookies} bookies would need ports above {_PORT_MAX}")
    directory = data_dir.absolute()
    uri = session.metadata
    if uri is None:
        uri = f"sqlite:///{directory}/metadata.db"
        _check_metadata_are_there(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot make the data directory {directory}: {error.strerror}") from error
    specs = [
        BookieSpec(
            name=f"bookie-{number}",
            data_dir=directory / f"bookie-{number}",
            log_file=directory / "logs" / f"bookie-{number}.log",
            port=base_port + number - 1 if base_port else 0,
            arguments=(
                *("--metadata", uri, "--log-level", session.log_level.value, "--log-format", session.log_format.value),
            ),
        )
        for number in range(1, bookies + 1)
    ]
    async with _locked(directory) as lock_descriptor:
        cluster = _Cluster(specs, uri, directory, lock_descriptor, as_json=session.as_json)
        try:
            return await cluster.run()
        except asyncio.CancelledError:
            return EXIT_OK  # told to stop, and everything has stopped: that is how this command ends when all is well


def _check_metadata_are_there(directory: Path) -> None:
    """Bookies must not be offered an empty metadata store: what their ledgers are stood in the one that is gone.

    Raises CommandError.
    """
    if (directory / "metadata.db").exists():
        return
    orphans = sorted(cookie.parent.name for cookie in directory.glob("bookie-*/cookie"))
    if orphans:
        raise CommandError(
            f"{directory}/metadata.db is gone, but {', '.join(orphans)} hold data of the cluster that it described: "
            "put it back, give --metadata, or take another --data-dir"
        )


class _Cluster:
    """The bookies of one ``octavo up``, each watched by a task of its own."""

    def __init__(
        self, specs: list[BookieSpec], uri: str, directory: Path, lock_descriptor: int, *, as_json: bool
    ) -> None:
        self._specs = specs
        self._uri = uri
        self._directory = directory
        self._lock_descriptor = lock_descriptor
        self._as_json = as_json
        self._running: dict[str, BookieProcess] = {}
        self._announced = False
        self._starting = {spec.name for spec in specs}

    async def run(self) -> int:
        """Run until every bookie is left stopped (exit status 1) or the task is cancelled. Leaves no process behind."""
        try:
            async with asyncio.TaskGroup() as group:
                notices = group.create_task(self._tell_what_is_starting())
                watchers = [group.create_task(self._keep_running(spec)) for spec in self._specs]
                await asyncio.wait(watchers, return_when=asyncio.FIRST_EXCEPTION)
                notices.cancel()
        except* CommandError as errors:
            raise errors.exceptions[0] from None
        raise CommandError("no bookie is left that could run")

    async def _keep_running(self, spec: BookieSpec) -> None:
        policy = RestartPolicy()
        while True:
            status, ready_seconds = await self._run_once(spec, policy)
            decision = policy.ended(status[0], ready_seconds)
            how, reason = _how_it_ended(status[0]), status[1]
            if isinstance(decision, GiveUp):
                raise CommandError(f"{spec.name} could not start: {reason}")
            if isinstance(decision, LeaveStopped):
                self._tell("left stopped", spec, f"{spec.name} will not be started again: {reason}", reason=reason)
                self._starting.discard(spec.name)
                self._announce_when_all_are_up()
                return
            pause = decision.pause_seconds
            # One that was killed had no time to say why: its last line tells of something else.
            why = f": {reason}" if status[0] > 0 else ""
            self._tell(
                "ended",
                spec,
                f"{spec.name} {how}{why}; starting it again in {pause:g} s",
                exit_status=status[0],
                reason=reason,
            )
            await asyncio.sleep(pause)

    async def _run_once(self, spec: BookieSpec, policy: RestartPolicy) -> tuple[tuple[int, str], float | None]:
        """One process from start to end: its exit status with its last words, and how long it was ready."""
        loop = asyncio.get_running_loop()
        try:
            bookie = await BookieProcess.start(spec, lock_descriptor=self._lock_descriptor)
        except OSError as error:
            raise CommandError(f"{spec.name} could not start: {error.filename}: {error.strerror}") from error
        self._running[spec.name] = bookie
        becoming_ready = asyncio.ensure_future(self._wait_ready(bookie, again=policy.was_ready))
        try:
            status = await bookie.wait_ended()
        finally:
            becoming_ready.cancel()
            await finish(self._stop(bookie))
            del self._running[spec.name]
        ready_seconds = None if bookie.ready_at is None else loop.time() - bookie.ready_at
        return (status, bookie.last_words()), ready_seconds

    async def _wait_ready(self, bookie: BookieProcess, *, again: bool) -> None:
        await bookie.wait_ready()
        name = bookie.spec.name
        if again:
            self._tell("started again", bookie.spec, f"{name} is up again", pid=bookie.pid)
        self._starting.discard(name)
        self._announce_when_all_are_up()

    @staticmethod
    async def _stop(bookie: BookieProcess) -> None:
        bookie.stop()
        ended = asyncio.ensure_future(bookie.wait_ended())
        done, _ = await asyncio.wait([ended], timeout=STOP_SECONDS_MAX)
        if not done:
            print_error(f"{bookie.spec.name} does not stop; killing it")
            bookie.kill()
        await ended

    # --- what the user is told ---------------------------------------------------------------------------------------

    def _announce_when_all_are_up(self) -> None:
        if self._announced or self._starting or not self._running:
            return
        self._announced = True
        up_now = list(self._running.values())
        if self._as_json:
            print_json(
                {
                    "event": "ready",
                    "metadata": self._uri,
                    "data_dir": str(self._directory),
                    "bookies": [
                        {
                            "name": bookie.spec.name,
                            "pid": bookie.pid,
                            "port": bookie.spec.port,
                            "data_dir": str(bookie.spec.data_dir),
                            "log": str(bookie.spec.log_file),
                        }
                        for bookie in up_now
                    ],
                }
            )
            return
        missing = "" if len(up_now) == len(self._specs) else f" of {len(self._specs)}"
        print_line(f"Octavo is ready: {len(up_now)}{missing} bookies. Data and logs are in {self._directory}")
        print_line(f"  export OCTAVO_METADATA={self._uri}")
        print_line("Ctrl-C stops it.")

    async def _tell_what_is_starting(self) -> None:
        with contextlib.suppress(asyncio.CancelledError), progress_bar("starting", None):
            while self._starting:
                await asyncio.sleep(_STARTING_NOTICE_SECONDS)
                if self._starting:
                    print_error(f"still starting: {', '.join(sorted(self._starting))}; see {self._directory}/logs")

    def _tell(self, event: str, spec: BookieSpec, text: str, **facts: object) -> None:
        if self._as_json:
            print_json({"event": event, "name": spec.name, **facts})
        else:
            print_error(text)


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


# --- one `octavo up` per data directory ------------------------------------------------------------------------------


@asynccontextmanager
async def _locked(directory: Path) -> AsyncIterator[int]:
    """Hold the directory's lock; gives the descriptor that carries it, for children to inherit.

    Raises :class:`CommandError` naming the process that holds it. A holder that is gone left children that are
    stopping: they are waited for.
    """
    with _opened(directory / "up.lock") as descriptor:
        deadline = asyncio.get_running_loop().time() + LOCK_SECONDS_MAX
        while not _try_lock(descriptor):
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            if _is_alive(holder):
                raise CommandError(f"{directory} is in use by another `octavo up` (process {holder})")
            if asyncio.get_running_loop().time() > deadline:
                raise CommandError(f"{directory} is in use by bookies that another `octavo up` left behind")
            await asyncio.sleep(_LOCK_POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield descriptor


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(process_id: str) -> bool:
    if not process_id.isdigit():
        return False
    try:
        os.kill(int(process_id), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
