"""The histories of all logs of a universe, whatever their layouts: hands every change of the metadata to the log that
it is about.
"""

import itertools
import sys
from collections.abc import Callable

from octavo.client.log.documents.chain import LogDocument, decode_page
from octavo.client.log.documents.cursors import decode_cursors
from octavo.client.log.documents.names import list_document, name_of_document
from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import AnyLogDocument, StreamLogDocument, decode_any_log
from octavo.metadata.ledger.model import LOG_KEY, LedgerMetadata
from octavo.metadata.memory import MemoryServer
from octavo.metadata.store.driver import Kind
from octavo.metadata.stream.any_metadata import decode_either
from octavo.metadata.stream.pages import PAGES_PREFIX
from octavo.protocol.ids import LedgerId
from simulation.engine.loop import Process
from simulation.judges.chain_history import ChainHistory
from simulation.judges.history import LedgerHistory, Violation
from simulation.judges.log_history import LogHistory
from simulation.judges.log_store import LogStore
from simulation.judges.stream_history import StreamLogHistory

GATEWAY_LOGS = "kafka/"
"""What the names of a gateway's logs begin with."""

LISTS, CURSORS, PAGES = "logs/n", "log-cursors/", "log-pages/"
"""What the names of a log's documents begin with."""


class LogHistories:
    """See the module."""

    def __init__(
        self,
        server: MemoryServer,
        versions: dict[LedgerId, list[LedgerMetadata]],
        *,
        now: Callable[[], float],
    ) -> None:
        """As :class:`LogStore`."""
        self.store = LogStore(server, versions, now)
        self.all: dict[str, LogHistory] = {}
        """Log id -> history."""
        self._numbers = itertools.count(1)
        self._current: dict[str, str] = {}
        """Document -> the log id in it."""
        self._streams: dict[LedgerId, StreamLogHistory] = {}
        self._late: dict[LedgerId, Process] = {}
        """Ledger made for a chain that no document names any more -> the process that made it."""

    def of(self, log_id: str) -> LogHistory:
        """The history of a log that exists or existed."""
        return self.all[log_id]

    def targets(self) -> list[LedgerHistory]:
        """What is being written, as ledgers."""
        found = (log.target() for log in self.all.values())
        return [target for target in found if target is not None]

    def streams(self) -> list[StreamLogHistory]:
        """The logs that are streams, and exist."""
        return [log for log in self._streams.values() if log.roots.extents and not log.roots.deleted]

    def last_recovered(self, ledger_id: LedgerId) -> int | None:
        """The last term of a stream below its present one of which a takeover has begun; None: there is none."""
        stream = self._streams.get(ledger_id)
        if stream is None or not stream.roots.extents:
            return None
        return max((term for term in stream.roots.recovered if term < stream.roots.current.term), default=None)

    # --- documents --------------------------------------------------------------------------------------------------

    def document_changed(self, key: str, value: bytes | None) -> str | None:
        """Record and check a new version of a document; None: it was deleted. Returns what to note in the trace."""
        if key.startswith(PAGES) and value is not None:
            self.store.pages[key] = decode_page(value, key)
        elif key.startswith(PAGES_PREFIX):
            self._stream_page_changed(key, value)
        elif key.startswith(CURSORS):
            log = self.all.get(key.removeprefix(CURSORS))
            if log is not None and not log.deleted:
                stored = {} if value is None else decode_cursors(value, key).cursors
                log.cursors_changed({name: cursor.position for name, cursor in stored.items()})
        elif key.startswith(LISTS):
            self._log_changed(key, value)
            return self._describe(key)
        return None

    def _stream_page_changed(self, key: str, value: bytes | None) -> None:
        if value is not None:
            self.store.stream_page_changed(key, value)
        elif any(log.roots.names(key) for log in self.streams()):
            raise Violation("N6", f"page {key} was deleted, and is named")

    def _log_changed(self, key: str, value: bytes | None) -> None:
        if value is None:
            log = self.all[self._current[key]]
            if not log.deleted:
                raise Violation("P13", f"log {log.name}: its document was deleted before it was marked")
            return
        document = decode_any_log(value, name_of_document(key))
        before = self._current.get(key)
        if before is not None and before != document.log_id:
            self._replaced(self.all[before])
        self._current[key] = document.log_id
        log = self.all.get(document.log_id) or self._made(document)
        if isinstance(log, StreamLogHistory):
            assert isinstance(document, StreamLogDocument), "the layout of a log never changes"
            log.changed(document)
        elif isinstance(log, ChainHistory):
            assert isinstance(document, LogDocument), "the layout of a log never changes"
            log.changed(document)

    def _made(self, document: AnyLogDocument) -> LogHistory:
        if isinstance(document, StreamLogDocument):
            stream = StreamLogHistory(self.store, document, self._numbers)
            self._streams[document.ledger_id] = stream
            self.all[document.log_id] = stream
            if document.name.startswith(GATEWAY_LOGS):
                stream.asked_before = sys.maxsize  # a gateway truncates it by itself
            return stream
        return self.all.setdefault(document.log_id, ChainHistory(self.store, document, self._numbers))

    def _replaced(self, log: LogHistory) -> None:
        """Another log has the name now."""
        if log.deleted:
            return
        if not isinstance(log, StreamLogHistory) or log.document.state is not LogState.MAKING:
            raise Violation("P13", f"log {log.name}: another one has taken its name, and it was not deleted")
        log.deleted = True

    def _describe(self, key: str) -> str:
        log = self.all[self._current[key]]
        if log.deleted:
            return f"log {log.name} is deleted; left: {log.left_over() or 'nothing'}"
        return log.describe()

    # --- ledgers ----------------------------------------------------------------------------------------------------

    def stream_of(self, ledger_id: LedgerId) -> StreamLogHistory:
        """The log whose stream this is."""
        return self._streams[ledger_id]

    def ledger_made(self, metadata: LedgerMetadata, maker: Process | None) -> None:
        """Record a ledger that is made for a log when that has been deleted. Its maker deletes it, unless it dies."""
        name = metadata.custom_metadata.get(LOG_KEY)
        if (
            name is not None
            and maker is not None
            and list_document(name.decode()) not in self.store.server.records[Kind.DOCUMENT]
        ):
            self._late[metadata.ledger_id] = maker

    def ledger_deleted(self, ledger_id: LedgerId) -> None:
        """Check that a deleted ledger is in no list (rule L3), and of no log that exists (rule P13)."""
        if ledger_id in self._streams:
            self._streams[ledger_id].stream_deleted()
        for log in self.all.values():
            if isinstance(log, ChainHistory) and ledger_id in log.listed():
                raise Violation("L3", f"log {log.name}: ledger {ledger_id} was deleted, and the list has it")

    # --- the end ----------------------------------------------------------------------------------------------------

    def left_over(self) -> str:
        """Ledgers that were made for a log and belong to none, and pages that no stream names; empty when there is
        nothing. What a request of a creator that has died makes after the log was deleted does not count (the limit of
        rule P13)."""
        wanted = {stream.document.ledger_id for stream in self.streams() if not stream.deleted}
        for log in self.all.values():
            if isinstance(log, ChainHistory):
                wanted.update(log.listed())
        wanted.update(ledger_id for ledger_id, maker in self._late.items() if not maker.alive)
        ledgers = []
        for key, stored in self.store.server.records[Kind.LEDGER].items():
            ledger_id = LedgerId(int(key))
            if LOG_KEY in decode_either(ledger_id, stored.value).custom_metadata and ledger_id not in wanted:
                ledgers.append(int(ledger_id))
        pages = [key for key, page in self.store.stream_pages_there().items() if page.ledger_id not in wanted]
        return f"ledgers {ledgers}, pages {pages}" if ledgers or pages else ""
