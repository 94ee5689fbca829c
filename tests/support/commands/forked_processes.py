"""Long-lived commands of ``octavo``, forked from a process that has imported everything.

:class:`OctavoProcess` runs what ``python -P -m octavo.cli.main`` would run, without the half second of processor for
imports. ``octavo up`` starts bookies, and :mod:`support.commands.forked_children` has them forked, too.

Tests that are about starting a process start ``support.commands.processes.OCTAVO`` instead, and the pages of the
documents call what is installed.
"""

import io
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock, Thread
from typing import IO, Any, Final, Self

from support.commands.command_server import server_address

_STREAMS: Final = ("stdin", "stdout", "stderr")


class OctavoProcess:
    """``octavo`` with these arguments, with the face of a ``subprocess.Popen`` as far as tests need it. As there,
    leaving its block closes the streams and waits for the end of the process."""

    def __init__(
        self,
        arguments: Sequence[object],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        env: dict[str, str],
        cwd: Path | None = None,
        text: bool = False,
    ) -> None:
        """A stream is a file, a descriptor, ``subprocess.PIPE`` or ``DEVNULL``; None: that of this process."""
        self.args = ["octavo", *map(str, arguments)]
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self.returncode: int | None = None
        self._waiting = Lock()
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ExitStack() as stack:
            theirs = []
            for number, (name, given) in enumerate(zip(_STREAMS, (stdin, stdout, stderr), strict=True)):
                if given == subprocess.PIPE:
                    read, write = os.pipe()
                    ours, end = (write, read) if name == "stdin" else (read, write)
                    stack.callback(os.close, end)
                    raw = io.FileIO(ours, "w" if name == "stdin" else "r")
                    stream: IO[Any] = io.BufferedWriter(raw) if name == "stdin" else io.BufferedReader(raw)
                    setattr(self, name, io.TextIOWrapper(stream, "utf-8", write_through=True) if text else stream)
                elif given == subprocess.DEVNULL:
                    end = os.open(os.devnull, os.O_RDWR)
                    stack.callback(os.close, end)
                elif given is None:
                    end = number
                else:
                    end = given if isinstance(given, int) else given.fileno()
                theirs.append(end)
            self._channel.connect(server_address())
            request = {"arguments": self.args[1:], "cwd": str(cwd or Path.cwd()), "env": env}
            socket.send_fds(self._channel, [json.dumps(request).encode()], theirs)
            self.pid: int = json.loads(self._channel.recv(64))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit status (negative: the signal that ended it); None while it runs."""
        return self._status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status once it has ended. Raises :class:`subprocess.TimeoutExpired`."""
        status = self._status(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return status

    def _status(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._has_ended(timeout):
            with self._waiting:
                if self.returncode is None:
                    said = self._channel.recv(64)
                    assert said, "the server of commands ended before the command"
                    self.returncode = json.loads(said)
                    self._channel.close()
        return self.returncode

    def _has_ended(self, timeout: float | None) -> bool:
        poll = select.poll()  # select() takes no descriptors above 1023
        poll.register(self._channel, select.POLLIN)
        return bool(poll.poll(None if timeout is None else max(0.0, 1000 * timeout)))

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close its input, and wait for its end: all that it writes. Raises :class:`subprocess.TimeoutExpired`."""
        outputs: dict[str, Any] = {"stdout": None, "stderr": None}

        def read(name: str, stream: IO[Any]) -> None:
            outputs[name] = stream.read()

        readers = [
            Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self.stdout), ("stderr", self.stderr))
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return outputs["stdout"], outputs["stderr"]
