"""A cluster in threads of this process: :func:`cluster`."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from octavo.client.connect import connect
from octavo.protocol.errors import InvalidArgumentError
from octavo.testing.bookie_thread import BookieServer, config_of
from octavo.testing.server_thread import ServerThread

BOOKIES_MAX: Final = 16

LEASE_SECONDS_DEFAULT: Final = 2.0
"""How long what is paused, or does not answer, keeps what it holds. A fifth of production's: tests wait for it."""

_MEMORY_FOLDER: Final = Path("/dev/shm")


def cluster(*, bookies: int = 3, lease_seconds: float = LEASE_SECONDS_DEFAULT) -> "Cluster":
    """A cluster for tests, which lives as long as a ``with`` or ``async with`` block.

    ``bookies`` is their number. ``lease_seconds`` is how long a bookie that is paused keeps its registration; give
    ``octavo.connect`` the option of the same name, and a leader that is paused loses its lead as soon.

    The bookies keep their files in memory, and the metadata are an SQLite file in a temporary folder. All of it is gone
    at the end.

    Examples:
        >>> with octavo.testing.cluster() as cluster:
        ...     async with octavo.connect(cluster.uri) as client:
        ...         async with client.create_log("orders") as log, log.lead() as writer:
        ...             await writer.add(b"payload")
        0

    Raises:
        InvalidArgumentError: A number is out of range.
    """
    if type(bookies) is not int or not 1 <= bookies <= BOOKIES_MAX:
        raise InvalidArgumentError(f"bookies is a whole number from 1 to {BOOKIES_MAX}, not {bookies!r}")
    if type(lease_seconds) not in (int, float) or not 1 <= lease_seconds <= 600:
        raise InvalidArgumentError(f"lease_seconds is a number from 1 to 600, not {lease_seconds!r}")
    return Cluster(bookies, float(lease_seconds))


class Cluster:
    """A running cluster, and the faults that a test may want. Made by :func:`cluster`.

    The methods return when what they do has happened, at the latest after a few hundred milliseconds, and may be called
    with or without an event loop. A bookie is named as in :attr:`bookies`.
    """

    def __init__(self, bookies: int, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._names = tuple(f"bookie-{number}" for number in range(1, bookies + 1))
        self._threads: dict[str, ServerThread] = {}
        self._gateway: ServerThread | None = None
        self._kafka = ""
        self._folder: Path | None = None

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._folder is not None:
            raise InvalidArgumentError("the cluster has been started already: call octavo.testing.cluster() again")
        memory = _MEMORY_FOLDER if os.access(_MEMORY_FOLDER, os.W_OK | os.X_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="octavo-testing-", dir=memory))
        try:
            self._threads = {
                name: ServerThread(BookieServer(config_of(name, self.uri, lease_seconds=self._lease_seconds)))
                for name in self._names
            }
            starts = {name: thread.begin() for name, thread in self._threads.items()}
            for name, start in starts.items():
                self._threads[name].keep_address(start.result())
        except BaseException:
            self._end(ServerThread.kill)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end(ServerThread.kill)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self._end(ServerThread.kill)

    def _end(self, end: Callable[[ServerThread], None]) -> None:
        threads, self._threads = self._threads, {}
        gateway, self._gateway = self._gateway, None
        try:
            for thread in [*([] if gateway is None else [gateway]), *threads.values()]:
                end(thread)
        finally:
            assert self._folder is not None
            shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<octavo.testing.Cluster {self._folder or 'not started'}>"

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def uri(self) -> str:
        """For ``octavo.connect``, and for ``--metadata`` of the ``octavo`` command; good in other processes, too."""
        if self._folder is None:
            raise InvalidArgumentError(
                "the cluster has not been started: use `with octavo.testing.cluster() as cluster`"
            )
        return f"sqlite:///{self._folder}/metadata.db"

    @property
    def bookies(self) -> tuple[str, ...]:
        """The names of all bookies, running or not."""
        return self._names

    @property
    def running(self) -> tuple[str, ...]:
        """The names of the bookies that run; one that is paused does."""
        return tuple(name for name, thread in self._threads.items() if thread.is_running)

    # --- Kafka clients -----------------------------------------------------------------------------------------------

    def serve_kafka(self) -> str:
        """Start a gateway for clients of Kafka's protocol, unless there is one; where they connect: ``HOST:PORT``.

        Its name is ``gateway``: :meth:`kill`, :meth:`stop`, :meth:`start`, :meth:`pause` and :meth:`resume` take it as
        they take that of a bookie. It keeps its port. One that was paused for longer than ``lease_seconds`` has ended;
        start it again.

        Examples:
            >>> from aiokafka import AIOKafkaProducer
            >>> with octavo.testing.cluster() as cluster:
            ...     address = cluster.serve_kafka()
            ...     async with AIOKafkaProducer(bootstrap_servers=address) as producer:
            ...         (await producer.send_and_wait("orders", b"one")).offset
            0

        Raises:
            InvalidArgumentError: The cluster does not run.
            ModuleNotFoundError: Octavo is installed without its extra ``kafka``.
        """
        from octavo.testing.gateway_server import GatewayServer  # noqa: PLC0415 - needs the extra `kafka`

        if not self._threads:
            raise InvalidArgumentError("the cluster does not run")
        if self._gateway is None:
            server = GatewayServer(self.uri, bookies=len(self._names), lease_seconds=self._lease_seconds)
            gateway = ServerThread(server)
            try:
                self._kafka = gateway.begin().result()
            except BaseException:
                gateway.kill()
                raise
            gateway.keep_address(self._kafka)
            self._gateway = gateway
        return self._kafka

    # --- faults -------------------------------------------------------------------------------------------------------

    def kill(self, bookie: str) -> None:
        """Kill a bookie: as ``kill -9``. Its files stay. Does nothing if it does not run."""
        self._thread(bookie).kill()

    def stop(self, bookie: str) -> None:
        """Stop a bookie in order: as SIGTERM. Its files stay. Does nothing if it does not run."""
        self._thread(bookie).stop()

    def start(self, bookie: str) -> None:
        """Start a bookie that was killed or stopped, on its files and its port. Does nothing if it runs.

        Raises:
            BookieStartError: The bookie cannot start, for example as another program has taken its port.
        """
        thread = self._thread(bookie)
        if not thread.is_running:
            try:
                thread.begin().result()
            except BaseException:
                thread.kill()
                raise

    def pause(self, bookie: str) -> None:
        """Stop a bookie from running without ending it: as SIGSTOP. Its connections stay open, and nothing is answered.
        Beyond ``lease_seconds`` it loses its registration. Does nothing if it does not run."""
        self._thread(bookie).pause()

    def resume(self, bookie: str) -> None:
        """Let a bookie that was paused run again: as SIGCONT. Does nothing if it is not paused."""
        self._thread(bookie).resume()

    def lose_lead(self, log: str, *, password: bytes | None = None) -> None:
        """Take the lead of a log from the client that has it. Its writer finds out with its next add, or a moment
        later, as if another process had taken over; no client leads the log afterwards.

        Raises:
            NoSuchLogError: There is no log with this name.
            OctavoError: As ``Log.take_over`` raises it.
        """

        async def take_over() -> None:
            given = {} if password is None else {"password": password}
            async with connect(self.uri) as client, client.open_log(log, **given) as opened, opened.take_over():
                pass

        _run_apart(take_over)

    def _thread(self, bookie: str) -> ServerThread:
        found = self._gateway if bookie == "gateway" else self._threads.get(bookie)
        if found is None:
            state = f"there are {', '.join(self._names)}" if self._threads else "the cluster does not run"
            raise InvalidArgumentError(f"there is no bookie {bookie!r}: {state}")
        return found


def _run_apart(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a thread of its own: the caller may be in an event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="octavo-testing") as executor:
        executor.submit(lambda: asyncio.run(work())).result()
