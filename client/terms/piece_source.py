"""Gives the readers of pieces of a stream the term that they read (:mod:`octavo.client.terms.pieces`)."""

from collections.abc import Awaitable, Callable

from octavo.client.read.source import OnEnd, OnTerm, Watching, watch_terms
from octavo.client.terms.pieces import Piece, grown_piece, same_piece
from octavo.metadata.ledger.term import Term
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamMetadata

type FindPart = Callable[[StreamMetadata, int], Awaitable[StreamMetadata]]
"""Gives the part of a stream that holds a position. Raises :class:`PieceMovedError` if that cannot be told from these
metadata."""

type OnRoot = Callable[[Versioned[StreamMetadata]], None]
"""Told each version of the stream's metadata that was read."""


class SettledSource:
    """:class:`~octavo.client.read.source.TermSource` of a piece that has an end. It is not watched; it is read again if
    entries are missing (rule V5)."""

    def __init__(
        self,
        store: MetadataStore,
        piece: Piece,
        made_from: Versioned[StreamMetadata],
        find_part: FindPart,
        on_root: OnRoot,
    ) -> None:
        self._store = store
        self._piece = piece
        self.stored = made_from.value
        self.term = Versioned(piece.term_in(made_from.value), made_from.version)
        """The piece as it was when it was found."""
        self._find_part = find_part
        self._on_root = on_root

    async def read_term(self) -> Versioned[Term]:
        """The piece as it stands now. Raises :class:`PieceMovedError` if no one piece holds all of it."""
        root = await self._store.read_stream(self.stored.ledger_id)
        if root.version <= self.term.version:
            return self.term
        self.stored = root.value
        self._on_root(root)
        part = await self._find_part(root.value, self._piece.first_position)
        return Versioned(same_piece(part, self._piece).term_in(root.value), root.version)

    def watch_term(self, on_term: OnTerm, on_end: OnEnd) -> Watching:
        """Readers watch what grows only."""
        del on_term, on_end
        raise AssertionError(f"stream {self.stored.ledger_id}: a settled piece is not watched")


class GrowingSource:
    """:class:`~octavo.client.read.source.TermSource` of a piece that has no end yet (rules V1 and V4)."""

    def __init__(
        self, store: MetadataStore, piece: Piece, made_from: Versioned[StreamMetadata], on_root: OnRoot
    ) -> None:
        self._store = store
        self._piece = piece
        self.stored = made_from.value
        self.term = Versioned(piece.term_in(made_from.value), made_from.version)
        """The piece as it was when it was found."""
        self._on_root = on_root

    async def read_term(self) -> Versioned[Term]:
        """The piece as it stands now. Raises :class:`PieceMovedError` if nothing of it is left in the tail."""
        return self.adopt(await self._store.read_stream(self.stored.ledger_id))

    def watch_term(self, on_term: OnTerm, on_end: OnEnd) -> Watching:
        """It ends with :class:`PieceMovedError`, as :meth:`read_term` does."""
        return watch_terms(self._store.watch_stream(self.stored.ledger_id), self.adopt, on_term, on_end)

    def adopt(self, root: Versioned[StreamMetadata]) -> Versioned[Term]:
        """The piece in these metadata, of which the owner is told. What is older than the piece says nothing of it: a
        watch may begin with metadata in which its fragment is not there yet."""
        if root.version <= self.term.version:
            return self.term
        self.stored = root.value
        self._on_root(root)
        return Versioned(grown_piece(root.value, self._piece).term_in(root.value), root.version)
