"""The logs of one client: create, open, list, delete; and what must be closed with the client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final, Literal

from octavo.client.arguments import Protection, check_flag, check_password, check_text, checked_protection
from octavo.client.awaitable_context import Opening
from octavo.client.log.cursors.keeper import CursorKeeper, CursorKeepers
from octavo.client.log.documents.chain import LogDocument, Retention, check_retention
from octavo.client.log.documents.key_window import KeyWindow, check_key_window
from octavo.client.log.documents.names import check_log_name
from octavo.client.log.documents.passwords import log_password_matches
from octavo.client.log.documents.reading import read_document
from octavo.client.log.documents.stream import AnyLogDocument
from octavo.client.log.layout import LogLayout
from octavo.client.log.log import Log
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.stream.layout import open_stream_layout
from octavo.metadata.ledger.debts import FullCopies
from octavo.protocol.entries import Digest
from octavo.protocol.errors import (
    InvalidArgumentError,
    LogExistsError,
    NoSuchLogError,
    OctavoError,
    UnauthorizedError,
)
from octavo.protocol.quorums import Quorums, quorums_of

if TYPE_CHECKING:
    from octavo.client.log.writer.writer import LogWriter

type Layout = Literal["chain", "stream"]

_CREATION_WAITS_MAX: Final = 8
"""Times ``log_duel_pause_seconds``: the longest wait for other clients that create the same log."""


class Logs:
    """See the module."""

    def __init__(
        self,
        access: LedgerAccess,
        random_bytes: Callable[[int], bytes],
        *,
        warns_if_unclosed: Callable[[], bool],
    ) -> None:
        """``warns_if_unclosed``: whether handles and writers belong to an application, which is to close them."""
        self._access = access
        self._random_bytes = random_bytes
        self._warns_if_unclosed = warns_if_unclosed
        self._handles: dict[Log, None] = {}
        self._writers: dict[LogWriter, None] = {}
        self._cursors = CursorKeepers(self._keeper_of)

    @property
    def handles(self) -> Collection[Log]:
        """Those that are not closed."""
        return self._handles.keys()

    @property
    def writers(self) -> Collection["LogWriter"]:
        """Those that are not closed."""
        return self._writers.keys()

    async def create(
        self,
        name: str,
        quorums: Quorums,
        protection: Protection,
        retention: Retention,
        layout: Layout,
        *,
        full_copies: FullCopies | None = None,
        keys: KeyWindow | None = None,
    ) -> Log:
        """Make the log, and open it. Raises :class:`LogExistsError`. ``full_copies`` and ``keys``: of a stream."""
        from octavo.client.log.creation import LogMaker  # noqa: PLC0415 - most clients open logs that are there

        maker = LogMaker(self._access, self._random_bytes)
        document: AnyLogDocument
        if layout == "stream":
            document = (
                await maker.create_stream(name, quorums, protection, retention, full_copies=full_copies, keys=keys)
            ).value
        else:
            document = (await maker.create_chain(name, quorums, protection, retention)).value
        return await self._opened(document, protection.password, asyncio.get_running_loop().time())

    async def open(self, name: str, password: bytes) -> Log:
        """A handle on the log. Raises :class:`NoSuchLogError`, :class:`UnauthorizedError`."""
        began_at = asyncio.get_running_loop().time()
        return await self._opened((await read_document(self._access.store, name)).value, password, began_at)

    async def open_or_create(self, name: str, password: bytes, create: Callable[[], Awaitable[Log]]) -> Log:
        """A handle on the log, which is created if there is none.

        Of several clients that create a log at once each may replace what another has begun, and none can tell whether
        the other still lives. They wait longer and longer, each its own time: one of them ends before the next begins.
        """
        pause_seconds = self._access.options.log_duel_pause_seconds
        waits = 0
        while True:
            with contextlib.suppress(NoSuchLogError):
                return await self.open(name, password)
            with contextlib.suppress(LogExistsError):
                return await create()
            waits = min(waits + 1, _CREATION_WAITS_MAX)
            await asyncio.sleep(self._access.uniform(0, waits) * pause_seconds)

    def names(self, prefix: str) -> AsyncIterator[str]:
        """The names of all logs that start with ``prefix``, in bounded memory. Logs being deleted are left out."""
        from octavo.client.log.overview import names_of_logs  # noqa: PLC0415 - most clients know the names

        return names_of_logs(self._access.store, prefix)

    async def delete(self, name: str) -> None:
        """Delete the log with its ledgers, or finish what a client that died has begun (rule P13). Raises
        :class:`NoSuchLogError`."""
        from octavo.client.log.creation import delete_log  # noqa: PLC0415 - seldom done

        await delete_log(self._access, (await read_document(self._access.store, name, deleted=True)).value)

    async def close(self) -> None:
        """Close writers, then handles. Raises the first failure, once all are closed."""
        failures: list[OctavoError] = []
        writers, handles = list(self._writers), list(self._handles)
        for closings in (
            [one._close_with_client for one in writers],
            [self._cursors.flush_left, *(one.close for one in handles)],
        ):
            results = await asyncio.gather(*(close() for close in closings), return_exceptions=True)
            # Those whose entries lack copies that they require: the next leader's takeover records what is missing.
            await asyncio.gather(*(one._abandon() for one in writers if not one.closed))
            for result in results:
                if isinstance(result, OctavoError):
                    failures.append(result)
                elif isinstance(result, BaseException):
                    raise result
        await self._cursors.stop()
        if failures:
            raise failures[0]

    async def _opened(self, document: AnyLogDocument, password: bytes, known_at: float) -> Log:
        log = Log(
            self._access,
            await self._layout_of(document, password),
            self._cursors.join(document.name, document.log_id),
            on_writer=self._note_writer,
            on_close=self._handle_closed,
            on_truncated=self._truncated,
            known_at=known_at,
            on_writer_closed=lambda writer: self._writers.pop(writer, None),
        )
        self._handles[log] = None
        await log._start()
        log._warns_if_unclosed = self._warns_if_unclosed()
        return log

    def _truncated(self, log: Log) -> None:
        """All handles of this client keep to it at once (rule P7)."""
        for other in self._handles:
            if other.log_id == log.log_id:
                other._begin_at(log.first_position)

    async def _handle_closed(self, log: Log) -> None:
        self._handles.pop(log, None)
        await self._cursors.leave(log.log_id)

    def _keeper_of(self, name: str, log_id: str) -> CursorKeeper:
        access = self._access
        return CursorKeeper(
            access.store,
            name,
            log_id,
            access.clock_ms,
            access.options.cursor_flush_seconds,
            uniform=access.uniform,
            on_failure=access.counts.note_cursors_not_stored,
        )

    def _note_writer(self, writer: "LogWriter") -> None:
        writer._warns_if_unclosed = self._warns_if_unclosed()
        self._writers[writer] = None

    async def _layout_of(self, document: AnyLogDocument, password: bytes) -> LogLayout:
        """How the log is stored, for a handle. Raises :class:`UnauthorizedError`."""
        if not isinstance(document, LogDocument):
            return await open_stream_layout(self._access, document, password)
        if not log_password_matches(document.verifier, password, document.log_id, document.salt):
            raise UnauthorizedError(f"log {document.name}: wrong password")
        from octavo.client.log.chain.layout import ChainLayout  # noqa: PLC0415 - most programs have streams only

        return ChainLayout(self._access, document, password)


class LogFace:
    """The methods of a client that are about logs."""

    _logs: Logs

    def _check_open(self) -> None:
        raise NotImplementedError

    def create_log(
        self,
        name: str,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        *,
        password: bytes = b"",
        digest: Digest = Digest.CRC32C,
        private: bool = False,
        retention: Retention | None = None,
        layout: Layout = "stream",
        full_copies: Literal["recorded", "required"] | None = None,
        keys: KeyWindow | None = None,
        exist_ok: bool = False,
    ) -> Opening[Log]:
        """Create a log; ``await`` it, or ``async with`` it.

        Nothing is written yet: become its leader with ``log.lead()``. Each entry is stored on ``write_quorum`` of
        ``ensemble_size`` bookies and acknowledged by ``ack_quorum``. Names are 1 to 255 letters, digits and ``._-``,
        with ``/`` between parts. ``retention``: what the leader drops from the front; by default nothing. ``private``:
        bookies give the entries only to clients that have the password, and to repairs.

        ``full_copies``, with ``layout="stream"`` only; an add returns with ``ack_quorum`` copies whatever it says. With
        ``"recorded"`` the metadata name the entries that may have fewer than ``write_quorum`` copies, for repair to
        copy. Closing the leader's writer waits up to ``full_copies_patience_seconds`` for missing copies. With
        ``"required"`` the leader keeps the bytes of such entries and copies them itself: they take room in its window,
        so adds wait once it is full, and closing fails with ``UnderReplicatedError``, while fewer than
        ``write_quorum`` bookies can be written. What a leader that is gone has left is recorded as with ``"recorded"``.

        ``keys``, with ``layout="stream"`` only: entries may have keys, and within this window an add with a key that is
        there gives the position of its entry instead of adding another (rule P21). It cannot be changed later.

        With ``exist_ok`` a log of this name that is there is opened, as ``open_log()`` does; it stays as it was
        created, whatever the other arguments say.

        Examples:
            >>> retention = octavo.Retention(seconds=7 * 24 * 3600)
            >>> async with client.create_log("payments", retention=retention) as log:
            ...     log.first_position, log.end
            (0, 0)
            >>> async with client.create_log("payments", exist_ok=True) as log:
            ...     log.name
            'payments'

        Raises:
            LogExistsError: There is a log with this name.
            UnauthorizedError: With ``exist_ok``: there is one, and the password is wrong.
            InvalidArgumentError: An argument is wrong, the name for example.
        """
        check_log_name(name)
        quorums = quorums_of(ensemble_size, write_quorum, ack_quorum)
        protection = checked_protection(password, digest, private)
        check_flag("exist_ok", exist_ok)
        if retention is not None:
            check_retention(retention)
        if layout not in ("chain", "stream"):
            raise InvalidArgumentError(f"layout must be 'chain' or 'stream', not {layout!r}")
        if full_copies not in (None, "recorded", "required"):
            raise InvalidArgumentError(
                f"full_copies of a log must be 'recorded', 'required' or None, not {full_copies!r}"
            )
        if full_copies is not None and layout != "stream":
            raise InvalidArgumentError("full_copies is for logs with layout='stream' only")
        if keys is not None:
            check_key_window(keys)
            if layout != "stream":
                raise InvalidArgumentError(
                    "keys are for logs with layout='stream': versions that know no keys read chains, and would give "
                    "a key as a part of the payload"
                )
        kept = None if full_copies is None else FullCopies(full_copies)

        async def create() -> Log:
            self._check_open()
            keep = retention or Retention()
            return await self._logs.create(name, quorums, protection, keep, layout, full_copies=kept, keys=keys)

        async def create_or_open() -> Log:
            self._check_open()
            return await self._logs.open_or_create(name, password, create)

        return Opening(create_or_open if exist_ok else create, f"create_log({name!r})")

    def open_log(self, name: str, *, password: bytes = b"") -> Opening[Log]:
        """Open a log; ``await`` it, or ``async with`` it. Opening disturbs no leader and fences nothing.

        Examples:
            >>> async with client.create_log("payments"):
            ...     pass
            >>> async with client.open_log("payments") as log:
            ...     [entry.payload async for entry in log.entries()]
            []

        Raises:
            NoSuchLogError: There is no such log, or it has been deleted.
            UnauthorizedError: The password is wrong.
            InvalidArgumentError: This can be no name of a log, or no password.
        """
        check_log_name(name)
        check_password(password)

        async def open_log() -> Log:
            self._check_open()
            return await self._logs.open(name, password)

        return Opening(open_log, f"open_log({name!r})")

    async def list_logs(self, prefix: str = "") -> AsyncIterator[str]:
        """Iterate over the names of all logs that start with ``prefix``, in bounded memory.

        Logs that are being deleted are left out.

        Examples:
            >>> for name in ("payments/eu", "payments/us", "orders"):
            ...     async with client.create_log(name):
            ...         pass
            >>> [name async for name in client.list_logs("payments/")]
            ['payments/eu', 'payments/us']
        """
        check_text("prefix", prefix)
        self._check_open()
        async for name in self._logs.names(prefix):
            yield name
            self._check_open()

    async def delete_log(self, name: str) -> None:
        """Delete a log, with its ledgers and cursors.

        A leader's next add or change fails; readers get ``NoSuchLogError``.

        Examples:
            >>> async with client.create_log("payments"):
            ...     pass
            >>> await client.delete_log("payments")

        Raises:
            NoSuchLogError: There is no such log.
        """
        check_log_name(name)
        self._check_open()
        await self._logs.delete(name)
