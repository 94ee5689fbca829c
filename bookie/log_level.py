"""The level of the log, which an operator may change for some time."""

import asyncio

import structlog
from octavo.bookie.logs import configure_logging

log = structlog.get_logger("octavo.bookie")


class LogLevel:
    """The configured level, and the one in force. Logging has been set up with the configured one."""

    def __init__(self, configured: str, log_format: str) -> None:
        self._configured = configured
        self._format = log_format
        self._timer: asyncio.TimerHandle | None = None
        self.current = configured

    def change(self, level: str, seconds: float) -> None:
        """Log at ``level``, and after ``seconds`` at the configured level again. A later call replaces this one."""
        self._stop_timer()
        self._apply(level)
        log.warning("log level changed", level=level, seconds=seconds)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._fall_back)

    def configure(self, level: str) -> None:
        """The configuration has changed: log at ``level`` from now on."""
        self._stop_timer()
        self._configured = level
        self._apply(level)

    def _fall_back(self) -> None:
        self._timer = None
        log.warning("log level falls back", level=self._configured)
        self._apply(self._configured)

    def _apply(self, level: str) -> None:
        self.current = level
        configure_logging(level, self._format)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
