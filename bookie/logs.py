"""Logging of every Octavo process: structlog, key-values, on standard error."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import Any, TextIO


@contextlib.contextmanager
def _without_rich() -> Iterator[None]:
    """Inside the block ``import rich`` fails."""
    before = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]  # importlib knows None: there is no such module
    try:
        yield
    finally:
        del sys.modules["rich"]
        if before is not None:
            sys.modules["rich"] = before


with _without_rich():
    # structlog imports rich for tracebacks of a form that is not used here. That takes a tenth of a bookie's start.
    import structlog

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(level: str, log_format: str, *, stream: TextIO | None = None) -> None:
    """Set up structlog for this process: a ``level`` of :data:`LEVELS`, a ``log_format`` of ``console`` or ``json``."""
    stream = stream or sys.stderr
    processors: list[Any] = [
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
