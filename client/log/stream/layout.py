"""The layout of a log that is one stream: what a handle does with it besides reading.

A handle that only reads loads no changes, and nothing that leads.
"""

# ruff: noqa: PLC0415 - see above

from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.client.log.documents.chain import Retention
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.documents.reading import read_root
from octavo.client.log.documents.stream import StreamLogDocument, Truncating
from octavo.client.log.layout import LayoutStatus, changed_in_a_loop, check_not_beyond
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.end_moved import EndMovedError
from octavo.client.log.seam.entries import Gap
from octavo.client.log.stream.status import segments_of_stream
from octavo.client.log.stream.update import update_stream_log
from octavo.client.log.stream.view import StreamView
from octavo.client.log.writer.lock import LogLock
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.updates.compare_and_set import ATTEMPTS_MAX
from octavo.metadata.updates.update import update_stream
from octavo.protocol.entries import derive_secrets, verifier_matches
from octavo.protocol.errors import InvalidArgumentError, UnauthorizedError

if TYPE_CHECKING:
    from octavo.client.log.stream.housekeeping import StreamHousekeeper
    from octavo.client.log.stream.lead import StreamLead
    from octavo.client.log.writer.writer import LogWriter


async def open_stream_layout(access: LedgerAccess, document: StreamLogDocument, password: bytes) -> "StreamLayout":
    """The layout for a handle on a log. Raises :class:`UnauthorizedError` for a wrong password, before anything is
    fenced (rule F0); :class:`NoSuchLogError`, :class:`LogDamagedError`."""
    root = await read_root(access.store, document)
    key = root.value.keys[root.value.last_fragment.key]
    if not verifier_matches(key.verifier, derive_secrets(password, document.ledger_id), key.digest, key.salt):
        raise UnauthorizedError(f"log {document.name}: wrong password")
    return StreamLayout(access, document, root, password)


class StreamLayout:
    """See the module; :class:`~octavo.client.log.layout.LogLayout` of a stream."""

    def __init__(
        self,
        access: LedgerAccess,
        document: StreamLogDocument,
        root: Versioned[StreamMetadata],
        password: bytes,
    ) -> None:
        self._access = access
        self._store = access.store
        self._name = document.name
        self._log_id = document.log_id
        self._password = password
        self._made_housekeeper: StreamHousekeeper | None = None
        self._leading: tuple[StreamLead, LogWriter] | None = None
        """The latest lead of this handle and its writer, until that is closed."""
        self.view = StreamView(access, document, root, password, reach=self._reach)

    # --- leading ------------------------------------------------------------------------------------------------------

    def get_ready(self) -> None:
        """Load what taking over needs."""
        import octavo.client.log.stream.lead  # noqa: F401

        self._access.load_streams()

    async def take_over(self, lease: LogLock | None, on_close: "Callable[[LogWriter], object]") -> "LogWriter":
        """Take the log over at once."""
        from octavo.client.log.stream.housekeeping import StreamHousekeeper
        from octavo.client.log.stream.lead import take_over_stream

        def closed(writer: "LogWriter") -> None:
            if self._leading is not None and self._leading[1] is writer:
                self._leading = None
            on_close(writer)

        self._leading = await take_over_stream(
            self._access,
            self.view.document,
            self.view.root,
            self._password,
            upkeep=StreamHousekeeper(self._access, self._name, self._log_id),
            lease=lease,
            on_close=closed,
            on_root=self.view.take_root,
        )
        return self._leading[1]

    def _reach(self) -> tuple[int, int] | None:
        if self._leading is None:
            return None
        lead, writer = self._leading
        return lead.reach(writer.end)

    @property
    def _housekeeper(self) -> "StreamHousekeeper":
        """That of the handle. A leader has its own."""
        if self._made_housekeeper is None:
            from octavo.client.log.stream.housekeeping import StreamHousekeeper

            self._made_housekeeper = StreamHousekeeper(self._access, self._name, self._log_id)
        return self._made_housekeeper

    # --- what is kept -------------------------------------------------------------------------------------------------

    async def truncate(self, before: int) -> None:
        """Remove the entries below ``before``.

        Below the last fragment, or the end in the root, nothing can be lost any more. Else an operator may
        accept a loss (rule O4) after the end was looked for, and a leader then add below ``before``. So the truncation
        is noted before the last look. A leader that begins after that finds the note, and takes it away, or begins
        above; one that had begun before is seen by the look (rule P7).
        """
        from octavo.client.log.stream.changes import NoteTruncation

        noted: Truncating | None = None
        for _ in range(ATTEMPTS_MAX):
            end, root = await self.view.find_end(before)
            if before > end:
                await self._forget(noted)
                check_not_beyond(self._name, before, end)
            if before <= self.view.first_position:
                await self._forget(noted)
                return
            told = root.end_position
            if noted is None and before > (root.last_fragment.first_position if told is None else told + 1):
                noted = Truncating(before, self._access.random_token())
                await update_stream_log(self._store, self._name, NoteTruncation(noted), log_id=self._log_id)
                continue
            try:
                known, after = await self._housekeeper.truncate(before, noted)
            except EndMovedError:
                noted = None
                continue
            self.view.take(known.value)
            self.view.take_root(after)
            return
        raise changed_in_a_loop(self._name)

    async def _forget(self, noted: Truncating | None) -> None:
        if noted is not None:
            from octavo.client.log.stream.changes import ForgetTruncation

            await update_stream_log(self._store, self._name, ForgetTruncation(noted), log_id=self._log_id)

    async def retain(self) -> None:
        """Apply the retention now."""
        known, root = await self._housekeeper.tidy()
        self.view.take(known.value)
        self.view.take_root(root)

    async def set_retention(self, retention: Retention) -> None:
        """Change what retention drops."""
        from octavo.client.log.stream.changes import SetStreamRetention

        known = await update_stream_log(self._store, self._name, SetStreamRetention(retention), log_id=self._log_id)
        self.view.take(known.value)

    async def would_drop(self, retention: Retention) -> int:
        """The position below which this retention would let entries go now."""
        return await self._housekeeper.would_drop(retention)

    async def seal(self) -> None:
        """Let no client add anything any more. A leader loses its leadership."""
        from octavo.metadata.stream.changes import SealStream

        if not self.view.is_sealed:
            writer = await self.take_over(None, lambda _writer: None)
            await writer.close()
        root = await read_root(self._store, self.view.document)
        change = SealStream(root.value.term)
        self.view.take_root(
            await update_stream(
                self._store, root.value.ledger_id, change, writer_token=self._access.random_token(), known=root
            )
        )

    async def give_up(self, ledger_id: int, last: int | None) -> Gap:
        """Raises :class:`InvalidArgumentError`."""
        raise InvalidArgumentError(
            f"log {self._name} is a stream: it has no ledgers that can be lost one by one, so none can be given up"
        )

    async def status(self, cursors: dict[str, CursorState]) -> LayoutStatus:
        """The status in the metadata."""
        document, stream, housekeeper = self.view.document, self.view.root.value, self._housekeeper
        clocks = await housekeeper.ages.clocks()
        return LayoutStatus(
            clocks=clocks,
            layout="stream",
            retention=document.retention,
            drops_below=max(self.view.first_position, await housekeeper.retention_cut(document, stream)),
            segments=segments_of_stream(stream),
            paged_segments=sum(page.fragments for page in stream.pages),
            bytes=stream.settled_bytes,
            idle_cursors=await housekeeper.idle_cursors(document, stream, cursors),
            gaps=(),
            quorums=stream.last_fragment.quorums,
            full_copies=None if stream.full_copies is None else stream.full_copies.value,
        )
