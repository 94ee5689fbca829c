"""The audit log: who did what on this bookie or gateway, one JSON object in a line, in a file of its own.

An event is noted on the event loop and written by a thread: a disk that hangs delays no request. What cannot be written
is counted, and a line says how much is missing once lines can be written again. Equal refusals are one line in ten
seconds, with their number. Refusals of clients whose principal is not known have a budget of lines; the others are one
line in ten seconds, with their number. So an attack neither fills the disk nor washes out what principals did.

The file is renamed when it is full (``FILE.1`` is the one before, up to ``FILE.N``), between two lines, and is opened
again on request, for tools that rename it themselves. Lines never contain keys, passwords or payloads.
"""

import asyncio
import contextlib
import json
import os
import queue
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog
from octavo.protocol.light_dataclass import dataclass
from octavo.security.token_bucket import TokenBucket

log = structlog.get_logger("octavo.security")

EQUAL_REFUSALS_SECONDS: Final = 10.0
"""Refusals that differ in nothing are one line in this time."""

_PENDING_LINES_MAX: Final = 10_000
"""Lines that wait for the disk; further ones are lost."""

_REFUSALS_MAX: Final = 1_000
"""Different refusals that are counted at a time; further ones are counted together."""

STRANGERS_LINES_PER_SECOND: Final = 1.0
"""Lines of refusals without a principal, on average: 20 MB a day, where an operator keeps 320 MB."""

STRANGERS_LINES_BURST: Final = 100
"""Of these lines at once: enough to see who attacks, and how."""

_VALUE_CHARACTERS_MAX: Final = 256
"""Longest value in a line that a client has chosen: the name as which it wanted to authenticate, for example."""


@dataclass(frozen=True, slots=True)
class AuditFile:
    """Where audit lines go."""

    path: Path
    bytes_max: int = 64 * 1024 * 1024
    """The file is renamed at this size; 0: never."""
    files_max: int = 5
    """Files kept, the one in use included."""


class Audit:
    """See the module. Without a file nothing is noted."""

    def __init__(self, file: AuditFile | None = None, *, wall_clock: Callable[[], float] | None = None) -> None:
        """:meth:`start` before events are written."""
        self.bookie_id = ""
        """Of a bookie; stands in each line, once it is known."""
        self.gateway = ""
        """The address of a gateway; stands in each line, once it is known."""
        self._writer = _Writer(file) if file is not None else None
        self._wall_clock = wall_clock
        self._refusals: dict[tuple[Any, ...], int] = {}
        """Refusal -> how often it has happened again since it was written."""
        self._timers: dict[tuple[Any, ...], asyncio.TimerHandle] = {}
        self._strangers_lines = TokenBucket(STRANGERS_LINES_PER_SECOND, STRANGERS_LINES_BURST)
        self._unlisted = 0
        """Refusals without a line of their own since the last line that told their number."""
        self._unlisted_timer: asyncio.TimerHandle | None = None

    @property
    def enabled(self) -> bool:
        """Whether events are written."""
        return self._writer is not None

    @property
    def lines(self) -> int:
        """Lines written since the start."""
        return self._writer.lines if self._writer is not None else 0

    @property
    def lines_lost(self) -> int:
        """Lines that could not be written since the start."""
        return self._writer.lost if self._writer is not None else 0

    def start(self) -> None:
        """Begin to write. Raises OSError if the file cannot be opened: an operator who asked for an audit log must
        learn at the start that there is none."""
        if self._writer is not None:
            self._writer.start()

    async def stop(self) -> None:
        """Write what has been noted, and stop."""
        for timer in (*self._timers.values(), self._unlisted_timer):
            if timer is not None:
                timer.cancel()
        self._tell_unlisted()
        for key in list(self._refusals):
            self._end_of_window(key)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.stop)

    def reopen(self) -> None:
        """Open the file again: another program has renamed it."""
        if self._writer is not None:
            self._writer.reopen()

    def note(self, event: str, *, principal: str | None = None, peer: str | None = None, **facts: Any) -> None:
        """Something was done. ``facts`` are values of JSON; None is left out."""
        if self._writer is not None:
            self._writer.put(self._line(event, {"principal": principal, "peer": peer, "outcome": "ok", **facts}))

    def refused(
        self, event: str, reason: str, *, principal: str | None = None, peer: str | None = None, **facts: Any
    ) -> None:
        """Something was refused. Refusals are equal if they differ in the port of the peer only."""
        writer = self._writer
        if writer is None:
            return
        host = peer.rpartition(":")[0] if peer is not None else None
        short = {name: value[:_VALUE_CHARACTERS_MAX] if type(value) is str else value for name, value in facts.items()}
        key = (event, reason, principal, host, *sorted(short.items()))
        loop = asyncio.get_running_loop()
        if key in self._refusals:
            self._refusals[key] += 1
            return
        if len(self._refusals) >= _REFUSALS_MAX or (
            principal is None and not self._strangers_lines.take_if_there(loop.time())
        ):
            self._count_unlisted(loop)
            return
        writer.put(self._line(event, _refusal(key, peer)))
        self._refusals[key] = 0
        self._timers[key] = loop.call_later(EQUAL_REFUSALS_SECONDS, self._end_of_window, key)

    def _count_unlisted(self, loop: asyncio.AbstractEventLoop) -> None:
        """One more refusal that gets no line of its own."""
        if not self._unlisted:
            self._unlisted_timer = loop.call_later(EQUAL_REFUSALS_SECONDS, self._tell_unlisted)
        self._unlisted += 1

    def _tell_unlisted(self) -> None:
        count, self._unlisted = self._unlisted, 0
        if count and self._writer is not None:
            self._writer.put(self._line("refusals", {"outcome": "refused", "reason": "many", "count": count}))

    def _end_of_window(self, key: tuple[Any, ...]) -> None:
        count = self._refusals.pop(key)
        self._timers.pop(key, None)
        if count and self._writer is not None:
            self._writer.put(self._line(key[0], {**_refusal(key, key[3]), "count": count}))

    def _line(self, event: str, facts: dict[str, Any]) -> bytes:
        now = datetime.now(UTC) if self._wall_clock is None else datetime.fromtimestamp(self._wall_clock(), UTC)
        fields = {
            "time": now.isoformat(timespec="milliseconds"),
            "event": event,
            "bookie": self.bookie_id or None,
            "gateway": self.gateway or None,
            **facts,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        return json.dumps(known, separators=(",", ":")).encode() + b"\n"


def _refusal(key: tuple[Any, ...], peer: str | None) -> dict[str, Any]:
    _, reason, principal, _, *facts = key
    return {"principal": principal, "peer": peer, "outcome": "refused", "reason": reason, **dict(facts)}


class _Writer:
    """The thread that writes, and its queue."""

    def __init__(self, file: AuditFile) -> None:
        self._file = file
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._descriptor: int | None = None
        self._size = 0
        self._reopen = False
        self._untold = 0
        """Lines lost of which no line tells yet."""
        self._counting = threading.Lock()
        self.lines = 0
        self.lost = 0

    def start(self) -> None:
        self._open()
        self._thread = threading.Thread(target=self._run, name="octavo-audit", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._close()

    def reopen(self) -> None:
        self._reopen = True

    def put(self, line: bytes) -> None:
        if self._queue.qsize() >= _PENDING_LINES_MAX:
            self._lose(1)
        else:
            self._queue.put(line)

    def _run(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                self._write(line)
            except OSError as error:
                self._close()  # perhaps another descriptor can write
                if not self._untold:
                    log.error("audit log cannot be written", path=str(self._file.path), reason=error.strerror)  # noqa: TRY400
                self._lose(1)

    def _write(self, line: bytes) -> None:
        if self._reopen:
            self._reopen = False
            self._close()
        if self._descriptor is None:
            self._open()
        if self._file.bytes_max and self._size and self._size + len(line) > self._file.bytes_max:
            self._rotate()
        if self._untold:
            untold = self._untold
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._append(json.dumps({"time": now, "event": "audit_lost", "count": untold}).encode() + b"\n")
            with self._counting:
                self._untold -= untold
        self._append(line)
        self.lines += 1

    def _append(self, line: bytes) -> None:
        assert self._descriptor is not None, "opened before it is written"
        written = os.write(self._descriptor, line)
        self._size += written
        if written < len(line):
            # The disk is full: take the torn line away, so that every line of the file is whole.
            os.ftruncate(self._descriptor, self._size - written)
            raise OSError(28, "No space left on device", str(self._file.path))

    def _rotate(self) -> None:
        self._close()
        path = self._file.path
        for number in range(self._file.files_max - 1, 0, -1):
            older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            with contextlib.suppress(FileNotFoundError):
                older.rename(path.with_name(f"{path.name}.{number}"))
        if self._file.files_max == 1:
            path.unlink(missing_ok=True)
        self._open()

    def _open(self) -> None:
        self._descriptor = os.open(
            self._file.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        self._size = os.fstat(self._descriptor).st_size

    def _close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _lose(self, count: int) -> None:
        with self._counting:
            self.lost += count
            self._untold += count
