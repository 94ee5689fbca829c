"""The client processes of a benchmark, as their parent sees them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from octavo.cli.bench.requests import LINE_BYTES_MAX
from octavo.cli.event_loop import finish
from octavo.cli.session import CommandError, Session


class ClientProcess:
    """One client process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, session: Session, arguments: Sequence[str]) -> "ClientProcess":
        """Start `octavo bench` with these arguments; its first :meth:`answer` says that it is ready."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "octavo.cli.main", "bench", *arguments),
            *("--metadata", session.metadata_uri, "--log-level", session.log_level, "--log-format", session.log_format),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            # Ctrl-C on the terminal goes to the parent only, which then lets its children clean up.
            start_new_session=True,
        )
        return cls(process)

    async def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer. Raises :class:`CommandError` when the request failed or the process has
        ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            await self._process.stdin.drain()
        except ConnectionError:
            pass  # it has ended: its last answer or its exit status tells why
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        """The next answer; the first says that the process is ready. Raises as :meth:`ask`."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise CommandError(f"a client process of the benchmark ended with status {await self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise CommandError(answer["error"])
        return answer

    async def close(self) -> None:
        """Let the process clean up and end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


@asynccontextmanager
async def client_processes(
    session: Session, commands: Sequence[Sequence[str]]
) -> AsyncIterator[Sequence[ClientProcess]]:
    """A client for each command of `octavo bench`, ready; they end when the block is left. Raises
    :class:`CommandError`."""
    processes: list[ClientProcess] = []
    try:
        for arguments in commands:
            process = await ClientProcess.start(session, arguments)
            processes.append(process)
        await asyncio.gather(*(process.answer() for process in processes))
        yield processes
    finally:
        await finish(_close_all(processes))


async def _close_all(processes: Sequence[ClientProcess]) -> None:
    await asyncio.gather(*(process.close() for process in processes))


async def ask_all(processes: Sequence[ClientProcess], **request: Any) -> list[dict[str, Any]]:
    """Send a request to all clients at once; returns their answers."""
    return await asyncio.gather(*(process.ask(**request) for process in processes))
