"""Readers of the pieces of one stream, for all who read it through one handle.

The last piece grows while a leader writes. One reader follows it for all who read there, asks bookies how far it can be
read, and is told what this handle has heard before. All other pieces are settled: each use has a reader of its own,
which asks bookies for entries only.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import NamedTuple

from octavo.client.log.documents.terms import log_term
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.use import Use
from octavo.client.read.reader import LedgerReader
from octavo.client.read.terms import PieceMovedError
from octavo.client.terms.piece_source import FindPart, GrowingSource, OnRoot, SettledSource
from octavo.client.terms.pieces import Form, Piece
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.entries import LedgerSecrets, derive_secrets, verifier_matches
from octavo.protocol.errors import MetadataUnavailableError, OctavoError, QuorumLostError, UnauthorizedError
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a position is, or will be: :class:`~octavo.client.log.seam.view.Place` in a stream."""

    ledger_id: LedgerId
    piece: Piece
    root: Versioned[StreamMetadata]
    """In which it was found."""

    @property
    def base(self) -> int:
        """The number that is added to a place to get its position."""
        return self.piece.base

    @property
    def stop(self) -> int | None:
        """The position after the piece's last one; None while it grows."""
        return self.piece.stop_position

    @property
    def term(self) -> int:
        """Of the leader that added the entries."""
        return log_term(self.piece.leader_term)

    @property
    def made_at_ms(self) -> int:
        """When the stream was created."""
        return int(self.root.value.created_at.timestamp() * 1000)


@dataclass(slots=True)
class _Growing:
    """The reader of the last piece."""

    form: Form
    reader: LedgerReader

    @property
    def is_over(self) -> bool:
        """Whether it does not grow any more."""
        return self.reader.closed or self.reader.ledger_closed


class ViewCalls(NamedTuple):
    """Calls by which the readers ask and tell the view that they belong to."""

    check_open: Callable[[], None]
    """Raises :class:`ClientClosedError` once the view is closed."""
    find_part: FindPart
    take_root: OnRoot
    """Told metadata of the stream that were read."""
    saw_end: Callable[[int], None]
    """Told a position below which everything can be read."""
    reach: Callable[[], tuple[int, int] | None]
    """Of the handle's own writer: its term of the stream, and the position after the last one that it has had
    acknowledged. Bookies hear of that later (rule W2)."""


class PieceReaders:
    """See the module. ``name``: of the log, for errors."""

    def __init__(self, access: LedgerAccess, name: str, ledger_id: LedgerId, password: bytes, view: ViewCalls) -> None:
        self._access = access
        self._store = access.store
        self._name = name
        self._secrets = derive_secrets(password, ledger_id)
        self._keys_checked: set[int] = set()
        self._view = view
        self._growing: _Growing | None = None
        self._confirmed: tuple[int, int] = (0, -1)
        """The latest term of which a LAC was heard, and the highest of it (rule V1)."""
        self._in_use: Counter[LedgerReader] = Counter()
        self._opening = asyncio.Lock()

    def reading(self, place: StreamPlace) -> AbstractAsyncContextManager[LedgerReader]:
        """A reader of the piece, for the time of a block. Readers of the last piece are one."""
        return Use(partial(self._take, place), partial(self._give_back, place))

    def learn_confirmed(self, place: StreamPlace, reader: LedgerReader) -> None:
        """Note how far a reader of the last piece has found that it can be read."""
        last = reader.last_add_confirmed
        if last is not None:
            self._confirmed = max(self._confirmed, (place.piece.term, last))
            self._view.saw_end(last + place.base + 1)

    def know_as(self, other: "PieceReaders") -> None:
        """Take over what other readers of the stream have heard of its terms: that holds as long as a term goes on."""
        self._confirmed = other._confirmed

    async def forget_growing(self) -> None:
        """The last piece is not what it was: the next use there gets another reader."""
        async with self._opening:
            await self._drop_growing()

    async def close(self) -> None:
        """Close all readers."""
        growing = [] if self._growing is None else [self._growing.reader]
        for reader in {*growing, *self._in_use}:
            await reader.close()
        self._growing = None

    async def _take(self, place: StreamPlace) -> LedgerReader:
        reader = await (self._settled_reader(place) if place.stop is not None else self._growing_reader(place))
        self._in_use[reader] += 1
        return reader

    async def _give_back(self, place: StreamPlace, reader: LedgerReader, _error: BaseException | None) -> None:
        if place.stop is None and not reader.closed:
            self.learn_confirmed(place, reader)
        self._in_use[reader] -= 1
        if not self._in_use[reader]:
            del self._in_use[reader]
            if self._growing is None or self._growing.reader is not reader:
                await reader.close()

    async def _settled_reader(self, place: StreamPlace) -> LedgerReader:
        view = self._view
        source = SettledSource(self._store, place.piece, place.root, view.find_part, view.take_root)
        view.check_open()
        return await self._access.read(source, self._secrets_of(place))

    async def _growing_reader(self, place: StreamPlace) -> LedgerReader:
        async with self._opening:
            growing = self._growing
            if growing is None or growing.form != place.piece.form or growing.is_over:
                await self._drop_growing()
                self._view.check_open()
                source = GrowingSource(self._store, place.piece, place.root, self._view.take_root)
                try:
                    reader = await self._access.read(source, self._secrets_of(place))
                except QuorumLostError as error:
                    with contextlib.suppress(MetadataUnavailableError):
                        await self._check_current(place, error)
                    raise
                growing = self._growing = _Growing(place.piece.form, reader)
        self._tell_confirmed(place.piece, growing.reader)
        return growing.reader

    async def _check_current(self, place: StreamPlace, error: OctavoError) -> None:
        """Bookies that were asked by a root of long ago tell nothing. Raises :class:`PieceMovedError` if it has changed
        since, so that those of now are asked (rule T14)."""
        root = await self._store.read_stream(place.ledger_id)
        if root.version != place.root.version:
            self._view.take_root(root)
            raise PieceMovedError(error.message) from error

    def _tell_confirmed(self, piece: Piece, reader: LedgerReader) -> None:
        """Tell a reader what this handle has heard of its term before, and what its own writer knows."""
        term, last = self._confirmed
        if term == piece.term:
            reader._learn_confirmed(last)
        reach = self._view.reach()
        if reach is not None and reach[0] == piece.term:
            reader._learn_confirmed(EntryId(reach[1] - 1 - piece.base))

    async def _drop_growing(self) -> None:
        growing, self._growing = self._growing, None
        if growing is not None and not self._in_use[growing.reader]:
            await growing.reader.close()

    def _secrets_of(self, place: StreamPlace) -> LedgerSecrets:
        """Raises :class:`UnauthorizedError` where a part of the stream was written with another password."""
        key_number = place.piece.key
        if key_number not in self._keys_checked:
            key = place.root.value.keys[key_number]
            if not verifier_matches(key.verifier, self._secrets, key.digest, key.salt):
                raise UnauthorizedError(
                    f"log {self._name}: what lies from position {place.piece.first_position} on was written with "
                    "another password"
                )
            self._keys_checked.add(key_number)
        return self._secrets
