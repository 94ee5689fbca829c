"""Logging of every Octavo process: structlog, key-values, on standard error."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final, TextIO


@contextlib.contextmanager
def _without(*modules: str) -> Iterator[None]:
    """Inside the block ``import`` of these modules fails."""
    before = {name: sys.modules.get(name) for name in modules}
    for name in modules:
        sys.modules[name] = None  # type: ignore[assignment]  # importlib knows None: there is no such module
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


with _without("rich", "colorama"):
    # structlog imports rich for tracebacks of a form that is not used here, and colorama for Windows. Together they
    # take a tenth of a bookie's start.
    import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


REPEATS_BURST: Final = 100
"""Lines of one event that are written at once: enough for what happens to every client of a busy bookie."""

REPEATS_PER_SECOND: Final = 1.0
"""Lines of one event that are written after these, on average. What clients cause, they can cause without end."""


class RepeatedLines:
    """Writes no more lines of an event than :data:`REPEATS_PER_SECOND`, after a burst. The next line of the event tells
    how many were left out (``repeated``). Events are equal if their texts are: peers and reasons differ from line to
    line."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: dict[str, tuple[float, float, int]] = {}
        """Event -> lines that may be written, as of when, and lines left out. Events are words of the source code, so
        there are few."""

    def __call__(self, _logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """A processor of structlog."""
        event, now = str(line.get("event")), self._clock()
        free, at, left_out = self._events.get(event, (float(REPEATS_BURST), now, 0))
        free = min(free + (now - at) * REPEATS_PER_SECOND, REPEATS_BURST)
        if free < 1:
            self._events[event] = (free, now, left_out + 1)
            raise structlog.DropEvent
        self._events[event] = (free - 1, now, 0)
        if left_out:
            line["repeated"] = left_out
        return line


_repeated_lines = RepeatedLines()
"""Of this process: a change of the level begins no new count."""


def configure_logging(level: str, log_format: str, *, stream: TextIO | None = None) -> None:
    """Set up structlog for this process: a ``level`` of :data:`LEVELS`, a ``log_format`` of ``console`` or ``json``."""
    stream = stream or sys.stderr
    processors: list[Any] = [
        *([] if level == "debug" else [_repeated_lines]),
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if log_format == "json":
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        # By default structlog adds the values of local variables to tracebacks: payloads, and keys of ledgers.
        plain = structlog.dev.plain_traceback
        processors += [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=plain)]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream),  # one write for a line: it is written, or dropped, whole
        cache_logger_on_first_use=False,
    )
