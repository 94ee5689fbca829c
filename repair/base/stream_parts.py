"""Streams whose older fragments lie in pages, as repair looks at them: part by part.

A page is to repair like a stream that ends where the page ends (:func:`octavo.metadata.stream.pages.page_part`): its
fragments are settled, whatever becomes of the stream. So what is decided about a ledger is decided about each part by
itself, and a stream of any length needs the memory of one page. Which bookies a page names is kept, because pages never
change.
"""

from collections.abc import AsyncGenerator, Collection
from typing import Final, NamedTuple

import structlog
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata, as_stream
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import PageMissingError
from octavo.metadata.updates.page_out import read_again
from octavo.metadata.updates.paging import StreamPages
from octavo.protocol.errors import MetadataError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.census import Seen

log = structlog.get_logger("octavo.repair")

_PAGES_CACHED: Final = 4


class _PageFacts(NamedTuple):
    """The facts of a page that are kept."""

    bookies: frozenset[BookieId]
    spare_copies: int
    """The least that one of its fragments has: Qa - 1."""
    last_owed: int
    """The highest place of which copies are owed; -1: none. It is owed until it is truncated or the page is
    replaced."""


class StreamParts:
    """The parts of streams, for one agent of repair."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._pages = StreamPages(store, pages_max=_PAGES_CACHED)
        self._facts: dict[LedgerId, dict[PageReference, _PageFacts]] = {}
        self.damaged: dict[LedgerId, str] = {}
        """Streams with a page that could not be understood when they were last looked at, and why: it may name any
        bookie. Changed only here."""

    async def seen(self, metadata: EitherMetadata) -> Seen | None:
        """The part of a ledger or a stream that the census keeps; None if it was deleted meanwhile. A page that cannot
        be understood is left out, and noted in :attr:`damaged`. Raises :class:`MetadataUnavailableError`."""
        seen = Seen.of(metadata)
        self.damaged.pop(metadata.ledger_id, None)
        if not metadata.pages:
            return seen
        try:
            facts = await self._facts_of(as_stream(metadata))
        except NoSuchLedgerError:
            return None
        return Seen(
            seen.bookies.union(*(one.bookies for one in facts)),
            seen.closed,
            min(seen.spare_copies, *(one.spare_copies for one in facts)) if facts else seen.spare_copies,
            is_stream=True,
            owes=seen.owes or any(one.last_owed >= metadata.start_place for one in facts),
        )

    async def members(self, metadata: EitherMetadata) -> frozenset[BookieId]:
        """Every bookie that a fragment names; none of a stream that was deleted meanwhile. Raises as :meth:`seen`."""
        seen = await self.seen(metadata)
        return frozenset() if seen is None else seen.bookies

    async def naming(self, metadata: EitherMetadata, bookies: Collection[BookieId]) -> AsyncGenerator[EitherMetadata]:
        """The parts that name one of the bookies, in order; a ledger without pages is one part. The tail always counts
        as one. What changes meanwhile is left to the next look. Raises as :meth:`seen`."""
        facts = self._facts.get(metadata.ledger_id, {})
        for page in metadata.pages:
            known = facts.get(page)
            if known is None or not known.bookies.isdisjoint(bookies):
                stream = as_stream(metadata)
                try:
                    yield await self._pages.part(stream, page)
                except PageMissingError:
                    continue
                except MetadataError as error:
                    self._note_damage(stream, error)
        yield metadata.tail

    async def first_naming(
        self, stream: StreamMetadata, bookie_id: BookieId, *, first: int
    ) -> tuple[PageReference, StreamMetadata] | None:
        """The first page with positions from ``first`` on that names a bookie in a fragment that is kept, and the whole
        part in it; None if there is none. Raises :class:`PageMissingError`, :class:`MetadataError`,
        :class:`MetadataUnavailableError`."""
        known = self._facts.setdefault(stream.ledger_id, {})
        stops = [*(page.first_position for page in stream.pages[1:]), stream.tail_position]
        for page, stop in zip(stream.pages, stops, strict=False):
            facts = known.get(page)
            if stop <= first or (facts is not None and bookie_id not in facts.bookies):
                continue
            whole = await self._pages.whole_part(stream, page)
            known[page] = _facts(whole)
            if bookie_id in whole.truncated(stream.start).members:
                return page, whole
        return None

    def forget(self, ledger_ids: Collection[LedgerId]) -> None:
        """These ledgers are not looked at any more."""
        for ledger_id in ledger_ids:
            self._facts.pop(ledger_id, None)
            self.damaged.pop(ledger_id, None)

    async def _facts_of(self, stream: StreamMetadata) -> list[_PageFacts]:
        missed = 0
        while True:
            known = self._facts.get(stream.ledger_id, {})
            found: dict[PageReference, _PageFacts] = {}
            try:
                for page in stream.pages:
                    facts = known.get(page) or await self._read(stream, page)
                    if facts is not None:
                        found[page] = facts
            except PageMissingError as error:
                missed += 1
                try:
                    stream = await read_again(self._store, stream, error, missed)
                except NoSuchLedgerError:
                    self._facts.pop(stream.ledger_id, None)
                    raise
                except MetadataError as damage:
                    self._note_damage(stream, damage)
                    return list(found.values())
                continue
            self._facts[stream.ledger_id] = found
            return list(found.values())

    async def _read(self, stream: StreamMetadata, page: PageReference) -> _PageFacts | None:
        try:
            part = await self._pages.whole_part(stream, page)
        except MetadataError as error:
            self._note_damage(stream, error)
            return None
        return _facts(part)

    def _note_damage(self, stream: StreamMetadata, error: MetadataError) -> None:
        self.damaged[stream.ledger_id] = error.message
        log.warning("a page of a stream cannot be understood", ledger=int(stream.ledger_id), reason=error.message)


def _facts(part: StreamMetadata) -> _PageFacts:
    last_owed = max((debt.last for _, debt in part.debts), default=-1)
    return _PageFacts(part.members, part.spare_copies, last_owed)
