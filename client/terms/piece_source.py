"""Gives the readers of pieces of a stream the metadata of what they read (:mod:`octavo.client.terms.pieces`)."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from octavo.client.terms.pieces import Piece, grown_piece, same_piece
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned, Watch
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.ids import LedgerId

type FindPart = Callable[[StreamMetadata, int], Awaitable[StreamMetadata]]
"""Gives the part of a stream that holds a position. Raises :class:`PieceMovedError` if that cannot be told from these
metadata."""

type OnRoot = Callable[[Versioned[StreamMetadata]], None]
"""Told each version of the stream's metadata that was read."""


class SettledSource:
    """Of a piece that has an end. Its ledger is closed, so it is not watched; it is read again if entries are missing
    (rule V5)."""

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
        self.ledger = Versioned(piece.ledger(made_from.value), made_from.version)
        """The piece as it was when it was found."""
        self._find_part = find_part
        self._on_root = on_root

    async def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """The piece as it stands now. Raises :class:`PieceMovedError` if no one piece holds all of it."""
        root = await self._store.read_stream(ledger_id)
        if root.version <= self.ledger.version:
            return self.ledger
        self._on_root(root)
        part = await self._find_part(root.value, self._piece.first_position)
        return Versioned(same_piece(part, self._piece).ledger(root.value), root.version)

    def watch_ledger(self, ledger_id: LedgerId) -> Watch[Versioned[LedgerMetadata] | None]:
        """Readers watch open ledgers only."""
        raise AssertionError(f"stream {ledger_id}: a settled piece is not watched")


class GrowingSource:
    """Of a piece that has no end yet (rules V1 and V4)."""

    def __init__(
        self, store: MetadataStore, piece: Piece, made_from: Versioned[StreamMetadata], on_root: OnRoot
    ) -> None:
        self._store = store
        self._piece = piece
        self.ledger = Versioned(piece.ledger(made_from.value), made_from.version)
        """The piece as it was when it was found."""
        self._on_root = on_root

    async def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """The piece as it stands now. Raises :class:`PieceMovedError` if nothing of it is left in the tail."""
        return self.adopt(await self._store.read_stream(ledger_id))

    def watch_ledger(self, ledger_id: LedgerId) -> Watch[Versioned[LedgerMetadata] | None]:
        """Raises :class:`PieceMovedError` while iterating, as :meth:`read_ledger`."""
        return _PieceWatch(self._store.watch_stream(ledger_id), self.adopt)

    def adopt(self, root: Versioned[StreamMetadata]) -> Versioned[LedgerMetadata]:
        """The piece in these metadata, of which the owner is told. What is older than the piece says nothing of it: a
        watch may begin with metadata in which its fragment is not there yet."""
        if root.version <= self.ledger.version:
            return self.ledger
        self._on_root(root)
        return Versioned(grown_piece(root.value, self._piece).ledger(root.value), root.version)


class _PieceWatch(Watch[Versioned[LedgerMetadata] | None]):
    def __init__(
        self,
        watch: Watch[Versioned[StreamMetadata] | None],
        adopt: Callable[[Versioned[StreamMetadata]], Versioned[LedgerMetadata]],
    ) -> None:
        self._watch = watch
        self._roots = watch
        """What entering the watch has given."""
        self._adopt = adopt

    async def __aenter__(self) -> Self:
        self._roots = await self._watch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._watch.__aexit__(kind, error, traceback)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Versioned[LedgerMetadata] | None:
        root = await anext(self._roots)
        return None if root is None else self._adopt(root)
