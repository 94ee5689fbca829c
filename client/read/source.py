"""Where a reader has its term from."""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.ledger.term import Term
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned, Watch
from octavo.metadata.stream.any_metadata import EitherMetadata


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

    def watch_term(self) -> Watch[Versioned[Term] | None]:
        """Follow the term; None when the ledger does not exist or has been deleted. Raises as :meth:`read_term`."""


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

    def watch_term(self) -> Watch[Versioned[Term] | None]:
        """As :meth:`TermSource.watch_term`."""
        return TermWatch(self._store.watch_ledger(self._latest.value.ledger_id), self._adopt)

    def _adopt(self, ledger: Versioned[LedgerMetadata]) -> Versioned[Term]:
        if ledger.version > self._latest.version:
            self._latest = ledger
        return Versioned(ledger.value.current_term, ledger.version)


class TermWatch[M: StoredLedger](Watch[Versioned[Term] | None]):
    """Follows metadata, and gives the term that ``term_of`` finds in them."""

    def __init__(self, watch: Watch[Versioned[M] | None], term_of: Callable[[Versioned[M]], Versioned[Term]]) -> None:
        self._watch = watch
        self._values = watch
        """What entering the watch has given."""
        self._term_of = term_of

    async def __aenter__(self) -> Self:
        self._values = await self._watch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._watch.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Versioned[Term] | None:
        found = await anext(self._values)
        return None if found is None else self._term_of(found)
