"""What the metadata store holds of logs besides their own documents: pages, and the ledgers of segments."""

from collections.abc import Callable

from octavo.client.log.documents.chain import Segment
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.memory import MemoryServer
from octavo.metadata.store.driver import Kind, ledger_key
from octavo.metadata.stream.pages import PageName, parse_document
from octavo.protocol.ids import LedgerId
from simulation.judges.history import Violation


class LogStore:
    """See the module."""

    def __init__(
        self,
        server: MemoryServer,
        versions: dict[LedgerId, list[LedgerMetadata]],
        now: Callable[[], float],
    ) -> None:
        """``versions``: every version of the metadata of every segment, which another part records. ``now``: the
        world's time."""
        self.server = server
        self.now = now
        self.ages_by_the_world = False
        """Whether ages are judged by the entries; otherwise by what the metadata told of them."""
        self.versions = versions
        self.pages: dict[str, tuple[Segment, ...]] = {}
        """Pages of the lists of chains, also those that have been deleted."""
        self.stream_pages: dict[str, bytes] = {}
        """Document -> its value: the pages of streams, also those that have been deleted."""

    def exists(self, ledger_id: LedgerId) -> bool:
        """Whether there is such a ledger now."""
        return ledger_key(ledger_id) in self.server.records[Kind.LEDGER]

    def has_document(self, key: str) -> bool:
        """Whether there is such a document now."""
        return key in self.server.records[Kind.DOCUMENT]

    def entries_of(self, ledger_id: LedgerId) -> int | None:
        """Entries of a closed ledger; None if it is not closed."""
        versions = self.versions.get(ledger_id)
        if not versions or not versions[-1].is_closed:
            return None
        last = versions[-1].last_entry_id
        return 0 if last is None else last + 1

    def stream_page_changed(self, key: str, value: bytes) -> None:
        """Record a page of a stream. No page ever changes (rule U2)."""
        if self.stream_pages.setdefault(key, value) != value:
            raise Violation("N6", f"page {key} has changed")

    def stream_pages_there(self) -> dict[str, PageName]:
        """The pages of streams that exist now -> the parts of the name of each."""
        found = {key: parse_document(key) for key in self.server.records[Kind.DOCUMENT]}
        return {key: name for key, name in found.items() if name is not None}
