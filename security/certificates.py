"""The certificate of a server: read at the start, and again when its files change. Existing connections stay open.

A new context is made and tried before it is used. If the files cannot be used, everything stays as it is.
"""

import asyncio
from collections.abc import Callable

import structlog
from octavo.protocol.errors import InvalidArgumentError
from octavo.security.contexts import ServerContext, ServerFiles, server_context

log = structlog.get_logger("octavo.security")


class CertificateKeeper:
    """See the module. ``changed`` is called with every new context."""

    def __init__(self, files: ServerFiles, *, reload_seconds: float) -> None:
        """Raises :class:`InvalidArgumentError` for files that cannot be used."""
        self._files = files
        self._reload_seconds = reload_seconds
        self._seen = files.state()
        self.current: ServerContext = server_context(files)
        """The context in use."""
        self.changed: Callable[[ServerContext], None] = lambda _context: None
        self.reloads_failed = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look at the files from time to time."""
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="octavo-certificates")

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def reload(self) -> bool:
        """Read the files now; whether they can be used."""
        self._seen = self._files.state()
        try:
            self.current = server_context(self._files)
        except InvalidArgumentError as error:
            self.reloads_failed += 1
            log.error("TLS files not reloaded: the certificate in use stays", reason=error.message)  # noqa: TRY400
            return False
        self.changed(self.current)
        log.info("TLS files reloaded", certificate=self._files.certificate)
        return True

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._reload_seconds)
            if self._files.state() != self._seen:
                self.reload()
