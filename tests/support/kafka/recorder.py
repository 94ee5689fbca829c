"""A server between clients and a gateway that keeps what they say to each other (:mod:`support.kafka.captures`)."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Self

from support.kafka.captures import PREFIX_BYTES, Exchange

_NUMBER_AT = 4
"""In a request: behind its key and version."""
_NUMBER_BYTES = 4


class Recorder:
    """``with Recorder() as recorder``: clients connect to :attr:`address`, which the gateway advertises; it listens on
    :attr:`gateway_port`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.gateway_port = 0
        self.exchanges: list[Exchange] = []
        """Of all connections, answered or ended."""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _run(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                gateway = socket.create_connection(("127.0.0.1", self.gateway_port))
            except OSError:
                return
            self._sockets += [client, gateway]
            waiting: dict[bytes, bytes] = {}
            self._run(partial(self._carry, client, gateway, waiting, is_client=True))
            self._run(partial(self._carry, gateway, client, waiting, is_client=False))

    def _carry(
        self, source: socket.socket, target: socket.socket, waiting: dict[bytes, bytes], *, is_client: bool
    ) -> None:
        """``waiting``: the requests of the connection without an answer, by their numbers."""
        with suppress(OSError), source.makefile("rb") as stream:
            while prefix := stream.read(PREFIX_BYTES):
                frame = stream.read(int.from_bytes(prefix))
                if is_client:
                    waiting[frame[_NUMBER_AT : _NUMBER_AT + _NUMBER_BYTES]] = frame
                else:
                    self.exchanges.append(Exchange(waiting.pop(frame[:_NUMBER_BYTES]), frame))
                target.sendall(prefix + frame)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)
        if is_client:
            self.exchanges += [Exchange(frame, b"") for frame in list(waiting.values())]
