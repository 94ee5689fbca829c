"""Where a reader has its term from."""

from collections.abc import Callable
from typing import Protocol

from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.ledger.term import Term
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned, Watch
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.protocol.errors import OctavoError

type OnTerm = Callable[[Versioned[Term] | None], object]
type OnEnd = Callable[[OctavoError], object]


class Watching(Protocol):
    """A watch that has begun."""

    def stop(self) -> None:
        """Call nothing any more."""


class TermSource(Protocol):
    """Reads the metadata of a ledger, or of a stream of which a piece is read, and gives the term that they tell of
    (:mod:`octavo.client.terms.piece_source`)."""

    @property
    def term(self) -> Versioned[Term]:
        """The term as it was when the reader was opened, and the version of the metadata."""

    @property
    def stored(self) -> EitherMetadata:
        """The latest metadata that were read."""

    async def read_term(self) -> Versioned[Term]:
        """The term as it stands now. Raises :class:`NoSuchLedgerError`, also for a piece that is not there any more as
        it was; :class:`MetadataUnavailableError`."""

    def watch_term(self, on_term: OnTerm, on_end: OnEnd) -> Watching:
        """Call ``on_term`` with the term, and whenever it has changed; with None when the ledger does not exist or has
        been deleted. ``on_end`` is called with what :meth:`read_term` raises, or ``on_term``: the watch has ended."""


class LedgerTerm:
    """:class:`TermSource` of a ledger, of which the caller has read these metadata."""

    def __init__(self, store: MetadataStore, ledger: Versioned[LedgerMetadata]) -> None:
        self._store = store
        self._latest = ledger
        self.term = Versioned(ledger.value.current_term, ledger.version)

    @property
    def stored(self) -> LedgerMetadata:
        """As :attr:`TermSource.stored`."""
        return self._latest.value

    async def read_term(self) -> Versioned[Term]:
        """As :meth:`TermSource.read_term`."""
        return self._adopt(await self._store.read_ledger(self._latest.value.ledger_id))

    def watch_term(self, on_term: OnTerm, on_end: OnEnd) -> Watching:
        """As :meth:`TermSource.watch_term`."""
        return watch_terms(self._store.watch_ledger(self._latest.value.ledger_id), self._adopt, on_term, on_end)

    def _adopt(self, ledger: Versioned[LedgerMetadata]) -> Versioned[Term]:
        if ledger.version > self._latest.version:
            self._latest = ledger
        return Versioned(ledger.value.current_term, ledger.version)


def watch_terms[M: StoredLedger](
    watch: Watch[Versioned[M] | None],
    term_of: Callable[[Versioned[M]], Versioned[Term]],
    on_term: OnTerm,
    on_end: OnEnd,
) -> Watching:
    """As :meth:`TermSource.watch_term`, of metadata in which ``term_of`` finds the term."""
    return watch.begin(lambda found: on_term(None if found is None else term_of(found)), on_end)
