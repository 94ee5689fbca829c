"""Begins and ends the administration of a bookie: its sockets, its operator's switch, its jobs.

It begins as soon as the directories are locked, before anything is read: a bookie with much to replay can be asked how
it is. The lock is also what makes it safe to replace the socket of an earlier run.
"""

import time
from collections.abc import Awaitable, Callable

import structlog
from octavo._version import __version__
from octavo.bookie.admin.administered import Subject
from octavo.bookie.admin.endpoints import ENDPOINTS, Administration
from octavo.bookie.admin.http import Answerer
from octavo.bookie.admin.http_messages import HttpAnswer, HttpError, HttpRequest
from octavo.bookie.admin.jobs import Jobs
from octavo.bookie.admin.openapi import describe
from octavo.bookie.admin.process import ProcessStatistics
from octavo.bookie.admin.read_only_file import load_read_only, save_read_only
from octavo.bookie.admin.router import Router
from octavo.bookie.admin.server import AdminServer
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.filesystem import FileSystem
from octavo.bookie.identity.errors import BookieStartError
from octavo.bookie.log_level import LogLevel
from octavo.metadata.cluster.registration import split_address
from octavo.security.audit import Audit
from octavo.security.loopback import is_loopback

log = structlog.get_logger("octavo.bookie")


class Attendant:
    """See the module. Its :meth:`attend` is an argument of ``Bookie.start``."""

    def __init__(
        self,
        config: BookieConfig,
        filesystem: FileSystem,
        process: ProcessStatistics,
        log_level: LogLevel,
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit or Audit()
        self._config = config
        self._filesystem = filesystem
        self._process = process
        self._log_level = log_level
        self._jobs = Jobs(time.time)
        self.answer: Answerer = _answer_nothing
        """Answers a request; from :meth:`attend` on."""

    async def attend(self, subject: Subject) -> Callable[[], Awaitable[None]]:
        """Begin; returns what ends it. Raises :class:`BookieStartError`."""
        config = self._config
        try:
            subject.operator_read_only = await load_read_only(self._filesystem, config.data_dir)
        except OSError as error:
            raise BookieStartError(f"cannot read the operator's read-only switch: {error}") from error
        if subject.operator_read_only is not None:
            log.warning("an operator has made this bookie read-only", reason=subject.operator_read_only)
        admin = Administration(
            subject=subject,
            process=self._process,
            jobs=self._jobs,
            save_read_only=lambda reason: save_read_only(self._filesystem, config.data_dir, reason),
            set_log_level=self._log_level.change,
            log_level=lambda: self._log_level.current,
            describe=lambda: describe(ENDPOINTS, version=__version__),
        )
        host, port = split_address(config.admin_listen) if config.admin_listen else ("", 0)
        self.answer = Router(ENDPOINTS, admin, [host] if host else [], audit=self._audit).answer
        server = AdminServer(self.answer)
        where = str(config.admin_socket_path)
        try:
            await server.listen_at(config.admin_socket_path)
            if host:
                where = config.admin_listen
                if is_loopback(host):
                    await server.listen_on(host, port)
                else:
                    assert subject.tls_context is not None, "the settings are checked: other hosts need TLS"
                    await server.listen_with_tls(host, port, subject.tls_context)
        except OSError as error:
            await server.stop()
            raise BookieStartError(f"cannot listen for administration at {where}: {error.strerror or error}") from error
        log.info("administration listens", socket=str(config.admin_socket_path), address=config.admin_listen or None)
        return server.stop

    async def stop_jobs(self) -> None:
        """Cancel what operators have begun; before the bookie stops."""
        await self._jobs.stop()


async def _answer_nothing(_request: HttpRequest) -> HttpAnswer:
    raise HttpError(503, "Starting", "the bookie is starting", retryable=True)
