"""The part of each selected ledger and stream that a job looks at, and the part that it does not look at (rule X1).

A closed ledger is looked at to its end. Of a stream, that is all fragments that have an end: of terms that are over,
and of the running one. What has no end yet is left out and named: whether an entry there is acknowledged, and on which
bookies it is then, only its writer knows.
"""

import enum
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.client.client import Client
from octavo.client.terms.pieces import settled_pieces
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.ledger.term import Term
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.pages import PageMissingError
from octavo.metadata.updates.paging import StreamPages, walk_stream
from octavo.pipeline.base.cluster import either_of_each
from octavo.pipeline.base.planning import Piece, pieces_of
from octavo.pipeline.base.selection import Selection
from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.ids import LedgerId

_ATTEMPTS_MAX = 10
"""Of finding a place of a stream whose pages are replaced meanwhile: each needs a change of the stream."""


class Why(enum.StrEnum):
    """Why something that is selected is not looked at."""

    OPEN_LEDGER = "open-ledger"
    """It has no end yet. The last segment of a log that is a chain is one."""
    RUNNING_TERM = "running-term"
    """The last fragment of a stream has no end yet. All before it is looked at."""
    GONE = "gone"
    """It is named by its id, or a member of the dataset, and does not exist."""


WORDS = {
    Why.OPEN_LEDGER: "open ledgers (their end is not known before they are closed)",
    Why.RUNNING_TERM: "streams whose last fragment is being written (the rest of them was looked at)",
    Why.GONE: "ledgers that do not exist",
}
"""What stands behind the number of each, for people."""


class NotCovered(NamedTuple):
    """Something that is selected and not looked at."""

    ledger_id: int
    first: int
    """The first entry id, or of a stream the first position, that is not looked at."""
    why: Why


@dataclass(slots=True)
class Coverage:
    """The parts of the selected ledgers and streams that are looked at."""

    pieces: list[Piece] = field(default_factory=list)
    not_covered: list[NotCovered] = field(default_factory=list)


async def coverage_of(client: Client, ids: Iterable[int], selection: Selection, required: Collection[int]) -> Coverage:
    """Of those of ``ids`` that are selected. ``required`` must exist."""
    covered = Coverage()
    there: set[int] = set()
    async with aclosing(either_of_each(client, ids)) as found:
        async for metadata in found:
            there.add(metadata.ledger_id)
            if selection.matches(metadata.ledger_id, metadata.custom_metadata):
                await _add(client, covered, metadata)
    covered.not_covered += [NotCovered(gone, 0, Why.GONE) for gone in sorted(set(required) - there)]
    return covered


async def _add(client: Client, covered: Coverage, metadata: EitherMetadata) -> None:
    if not isinstance(metadata, LedgerMetadata):
        covered.pieces += [piece async for piece in _of_stream(client, metadata)]
        if not metadata.has_end:
            first = metadata.last_fragment.first_position
            covered.not_covered.append(NotCovered(metadata.ledger_id, first, Why.RUNNING_TERM))
    elif not metadata.is_closed:
        covered.not_covered.append(NotCovered(metadata.ledger_id, 0, Why.OPEN_LEDGER))
    elif metadata.last_entry_id is not None:
        covered.pieces += pieces_of(metadata.current_term, 0, metadata.last_entry_id, metadata.length)


async def _of_stream(client: Client, stream: StreamMetadata) -> AsyncGenerator[Piece]:
    try:
        async for part in walk_stream(client._store, stream):
            for settled in settled_pieces(part):
                term = settled.term_in(part)
                assert term.last_entry_id is not None, "it is settled"
                first = max(settled.fragments[0].first_entry_id, part.start_place)
                for piece in pieces_of(term, first, term.last_entry_id, term.length, base=settled.base):
                    yield piece
    except NoSuchLedgerError:
        return  # deleted meanwhile: nothing is missing


class Kept(NamedTuple):
    """A ledger, or a settled piece of a stream, and the first entry id that is kept of it."""

    term: Term
    first_kept: int


async def kept_of(client: Client, ledger_id: int, entry_id: int) -> Kept | None:
    """The ledger, or the piece of the stream, that holds an entry of which :func:`coverage_of` said that it is settled;
    None if it was truncated meanwhile. Raises :class:`NoSuchLedgerError` if it was deleted."""
    pages = StreamPages(client._store)
    for _ in range(_ATTEMPTS_MAX):
        metadata = (await client._store.read_either(LedgerId(ledger_id))).value
        if isinstance(metadata, LedgerMetadata):
            return Kept(metadata.current_term, 0)
        if entry_id < metadata.start_place:
            return None
        page = metadata.page_of(entry_id)
        try:
            part = metadata.tail if page is None else await pages.part(metadata, page)
        except PageMissingError:
            continue
        for settled in settled_pieces(part):
            last = settled.last_entry_id
            if last is not None and settled.fragments[0].first_entry_id <= entry_id <= last:
                return Kept(settled.term_in(part), metadata.start_place)
        return None
    raise PageMissingError(f"stream {ledger_id}: its pages were replaced {_ATTEMPTS_MAX} times while it was read")
