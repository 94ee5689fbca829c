"""Pieces of a stream, as readers read them: neighbouring fragments of one term with the same quorums and key. Pure.

To bookies a term is a ledger with one writer, and so is a piece of it. What is known of that ledger is given here as
:class:`~octavo.metadata.ledger.model.LedgerMetadata`, so that whatever reads ledgers reads streams. It is never stored.
Its first fragment, from entry 0 on, stands for everything before the piece; it holds nothing, and a reader that meets
it has to find the position anew.

Two kinds of pieces:

* *Settled*: fragments that have an end, as far as they are alike, from the one on that holds a position. Its ledger is
  closed. It never grows, and what is known of it changes only when repair names other bookies.
* *Growing*: the last fragment of a term that has no end yet. Its ledger is open. As the metadata change it gets further
  fragments, and at last an end: that of the term, or the first place of a fragment that is not alike (rule V1).

Fragments come in *parts*: a stream without pages, the tail of one that has pages, or a page as a stream of its own.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

from octavo.client.read.terms import PieceMovedError
from octavo.metadata.ledger.term import Term, TermState
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.metadata.stream.terms import term_from
from octavo.protocol.ids import EntryId
from octavo.protocol.light_dataclass import dataclass

type Form = tuple[int, int, int, int, int]
"""What the fragments of a piece have in common: term, E, Qw, Qa, and the number of the key."""


@dataclass(frozen=True, slots=True)
class Piece:
    """See the module."""

    fragments: tuple[StreamFragment, ...]
    last_entry_id: EntryId | None
    """Its last place; None while it grows."""
    length: int
    """Payload bytes of all positions of the stream up to there; 0 while it grows."""

    @property
    def form(self) -> Form:
        """The form that its fragments share."""
        return form_of(self.fragments[0])

    @property
    def term(self) -> int:
        """The term of the stream."""
        return self.fragments[0].term

    @property
    def leader_term(self) -> int:
        """The first of the terms that its writer has opened one after another."""
        return self.fragments[0].first_term

    @property
    def key(self) -> int:
        """The number of the key with which its entries are sealed."""
        return self.fragments[0].key

    @property
    def first_position(self) -> int:
        """Where it begins."""
        return self.fragments[0].first_position

    @property
    def base(self) -> int:
        """The number that is added to a place to get its position."""
        return self.fragments[0].first_position - self.fragments[0].first_entry_id

    @property
    def stop_position(self) -> int | None:
        """The position after its last one; None while it grows."""
        return None if self.last_entry_id is None else self.last_entry_id + self.base + 1

    def up_to(self, last_entry_id: EntryId, length: int) -> Self:
        """The same piece with an end."""
        return replace(self, last_entry_id=last_entry_id, length=length)

    def term_in(self, stream: StreamMetadata) -> Term:
        """The piece as the term that its reader takes; ``stream``: the metadata from which it was made."""
        state = TermState.ENDED
        if self.last_entry_id is None:
            state = TermState.OPEN if stream.state is StreamState.OPEN else TermState.IN_RECOVERY
        return term_from(stream, self.fragments, state, self.last_entry_id, self.length)


def form_of(fragment: StreamFragment) -> Form:
    """The form that a fragment shares with the others of its piece."""
    return fragment.term, len(fragment.bookies), fragment.write_quorum, fragment.ack_quorum, fragment.key


def piece_at(part: StreamMetadata, position: int) -> Piece | None:
    """The piece from the fragment on that holds a position, or that will be the one to hold it; None above the end.
    The position is not below the start of the part."""
    fragments = part.fragments
    at = bisect_right(fragments, position, key=_first_position) - 1
    assert at >= 0, "positions below the part are looked for elsewhere"
    is_last = at == len(fragments) - 1
    if is_last and not part.has_end:
        return Piece(fragments[at:], None, 0)
    piece = _settled(part, at)
    stop = piece.stop_position
    assert stop is not None, "a settled piece has an end"
    return piece if position < stop else None


def settled_pieces(part: StreamMetadata) -> Iterator[Piece]:
    """All settled pieces of a part, in order. What a page names is settled; of the tail, the last fragment is not while
    its term has no end."""
    at = 0
    while at < len(part.fragments):
        if at == len(part.fragments) - 1 and not part.has_end:
            return
        piece = _settled(part, at)
        at += len(piece.fragments)
        if piece.last_entry_id is not None and piece.last_entry_id >= piece.fragments[0].first_entry_id:
            yield piece


def same_piece(part: StreamMetadata, known: Piece) -> Piece:
    """A settled piece as these metadata have it: its bookies may be others. Raises :class:`PieceMovedError` if the part
    does not hold all of it any more."""
    at = bisect_right(part.fragments, known.first_position, key=_first_position) - 1
    if at >= 0 and known.last_entry_id is not None and part.fragments[at].first_position == known.first_position:
        piece = _settled(part, at)
        if piece.last_entry_id is not None and piece.last_entry_id >= known.last_entry_id:
            kept = tuple(one for one in piece.fragments if one.first_entry_id <= known.last_entry_id)
            return Piece(kept, known.last_entry_id, known.length)
    raise PieceMovedError(f"stream {part.ledger_id}: its fragments from position {known.first_position} on have moved")


def grown_piece(tail: StreamMetadata, known: Piece) -> Piece:
    """A growing piece as it is now, with an end if it has got one. ``tail``: the latest metadata, without pages.

    Raises :class:`PieceMovedError` if they do not tell: nothing of it is left there.
    """
    fragments = tail.fragments
    first_entry_id = known.fragments[0].first_entry_id
    first = next((at for at, one in enumerate(fragments) if one.first_entry_id >= first_entry_id), len(fragments))
    if first == len(fragments) or form_of(fragments[first]) != known.form:
        raise PieceMovedError(
            f"stream {tail.ledger_id}: nothing is left of its fragments from position {known.first_position} on"
        )
    last = _last_alike(fragments, first)
    if last == len(fragments) - 1 and not tail.has_end:
        return Piece(fragments[first:], None, 0)
    return _settled(tail, first)


def _settled(part: StreamMetadata, at: int) -> Piece:
    """The piece from the fragment at this index on, up to the last one alike that has an end."""
    fragments = part.fragments
    last = _last_alike(fragments, at)
    if last == len(fragments) - 1 and not part.has_end:
        last -= 1
    assert last >= at, "the fragment has an end"
    end = part.last_id_of(fragments[last])
    assert end is not None, "it is not the last fragment of an open term"
    length = part.length if last == len(fragments) - 1 else fragments[last + 1].length_before
    return Piece(fragments[at : last + 1], end, length)


def _last_alike(fragments: Sequence[StreamFragment], first: int) -> int:
    last = first
    while last + 1 < len(fragments) and form_of(fragments[last + 1]) == form_of(fragments[first]):
        last += 1
    return last


def _first_position(fragment: StreamFragment) -> int:
    return fragment.first_position
