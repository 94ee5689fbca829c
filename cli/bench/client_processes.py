"""The client processes of ``octavo bench create``, as their parent sees them."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from octavo.cli.bench.create_client import ANSWER_BYTES_MAX
from octavo.cli.session import CommandError, Session, finish


class ClientProcess:
    """One client process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, session: Session, shape: Mapping[str, int], *, keep: bool) -> "ClientProcess":
        """Start a client; its first :meth:`answer` says that it is ready."""
        sizes = (shape["ensemble_size"], shape["write_quorum"], shape["ack_quorum"])
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "octavo.cli.main", "bench", "create-client"),
            *("--metadata", session.metadata_uri, "--log-level", session.log_level, "--log-format", session.log_format),
            *(text for option, size in zip("EWA", sizes, strict=True) for text in (f"-{option}", str(size))),
            *(["--keep"] if keep else []),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=ANSWER_BYTES_MAX,
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
    session: Session, number: int, shape: Mapping[str, int], *, keep: bool
) -> AsyncIterator[Sequence[ClientProcess]]:
    """This number of clients, ready; they end when the block is left. Raises :class:`CommandError`."""
    processes: list[ClientProcess] = []
    try:
        for _ in range(number):
            process = await ClientProcess.start(session, shape, keep=keep)
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
