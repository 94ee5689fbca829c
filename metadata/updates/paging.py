"""Reads and deletes the pages of streams, and has them made, on any metadata store.

:mod:`octavo.metadata.stream.pages` decides what is in them, when they are made, and which of them can be deleted.

:class:`StreamPages` finds fragments for readers; :func:`walk_stream` gives all of them to what looks after streams.
:func:`tidy_stream`, :func:`truncate_stream` and :func:`delete_stream` keep the metadata of a stream small. Each step of
them can be done by any client at any time, and begun again after a crash.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Versioned
from octavo.metadata.stream.any_metadata import EitherMetadata, as_stream
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import (
    PAGES_PREFIX,
    PageMissingError,
    is_left_over,
    page_document,
    pages_prefix,
    paging_is_due,
    parse_document,
)
from octavo.metadata.updates.compare_and_set import ATTEMPTS_MAX
from octavo.metadata.updates.page_out import page_out, read_again, read_page, read_page_value
from octavo.metadata.updates.update import update_stream
from octavo.protocol.errors import MetadataConflictError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, EntryId, LedgerId

PAGES_CACHED: Final = 16
"""Pages that a reader keeps: 16,000 fragments, in about 10 MB."""


# --- reading ----------------------------------------------------------------------------------------------------------


class FragmentSpan(NamedTuple):
    """A fragment, and where its entries end."""

    fragment: StreamFragment
    last_entry_id: EntryId | None
    """Its last place that holds an entry; one below the first place if it is empty; None while that is not known: it is
    the last one, and its term has no end."""


class StreamPages:
    """Finds the fragments of a stream in one version of its metadata, wherever they lie. Reads a page once, and keeps
    the pages used last: they never change.

    The metadata are given to each call. A *part* is a consecutive piece of the stream: all fragments of one page, or
    the tail. It is a :class:`StreamMetadata` without pages, whose lookups work as those of a stream: ``place_at``,
    ``last_id_of``, ``fragments``. A part that was a page is CLOSED at its end, which says nothing of the stream.

    Every method raises :class:`PageMissingError` if the metadata are out of date: read them again, and go on with the
    same positions and places, because those never change (rule T5). All raise :class:`MetadataUnavailableError`.
    """

    def __init__(self, store: MetadataStore, *, pages_max: int = PAGES_CACHED) -> None:
        self._store = store
        self._pages_max = pages_max
        self._parts: OrderedDict[tuple[LedgerId, PageReference], StreamMetadata] = OrderedDict()
        self.pages_read = 0

    async def part(self, stream: StreamMetadata, page: PageReference) -> StreamMetadata:
        """The part in a page, from :attr:`StreamMetadata.start` on."""
        return (await self.whole_part(stream, page)).truncated(stream.start)

    async def whole_part(self, stream: StreamMetadata, page: PageReference) -> StreamMetadata:
        """The part in a page, with the fragments that were truncated."""
        key = (stream.ledger_id, page)
        found = self._parts.get(key)
        if found is None:
            found = await read_page(self._store, stream, page)
            self.pages_read += 1
            self._parts[key] = found
            if len(self._parts) > self._pages_max:
                self._parts.popitem(last=False)
        else:
            self._parts.move_to_end(key)
        return found

    async def part_at(self, stream: StreamMetadata, position: int) -> StreamMetadata:
        """The part that holds a position; the tail for one above the end. Raises :class:`InvalidArgumentError` for a
        position that was truncated."""
        page = stream.page_at(position)
        return stream.tail if page is None else await self.part(stream, page)

    async def span_at(self, stream: StreamMetadata, position: int) -> FragmentSpan:
        """The fragment that holds a position, or would be the one to hold it. Raises as :meth:`part_at`."""
        part = await self.part_at(stream, position)
        return _span(part, part.fragment_at(position))

    async def place_at(self, stream: StreamMetadata, position: int) -> EntryId | None:
        """As :meth:`StreamMetadata.place_at`, for any position."""
        return (await self.part_at(stream, position)).place_at(position)

    async def span_of(self, stream: StreamMetadata, entry_id: int) -> FragmentSpan | None:
        """The fragment that holds a place; None if no fragment does: the place lies between two terms, or below the
        start. In a fragment whose end is not known, any place of the term counts as held."""
        if entry_id < stream.start_place:
            return None
        page = stream.page_of(entry_id)
        part = stream.tail if page is None else await self.part(stream, page)
        fragment = part.fragment_of(entry_id)
        span = _span(part, fragment)
        is_held = span.last_entry_id is None or entry_id <= span.last_entry_id
        return span if is_held else None

    async def end_of_term(self, stream: StreamMetadata, term: int) -> EntryId | None:
        """As :meth:`StreamMetadata.end_of_term`, also if a page must be read to tell it."""
        page = stream.page_of_term(term)
        return stream.end_of_term(term) if page is None else (await self.part(stream, page)).end_of_term(term)

    async def parts(self, stream: StreamMetadata, *, first: int | None = None) -> AsyncGenerator[StreamMetadata]:
        """All parts in order, the tail last; from the one on that holds the position ``first``."""
        first = stream.start if first is None else first
        stops = [*(page.first_position for page in stream.pages[1:]), stream.tail_position]
        for page, stop in zip(stream.pages, stops, strict=False):
            if stop > first:
                yield await self.part(stream, page)
        yield stream.tail

    async def spans(self, stream: StreamMetadata, *, first: int | None = None) -> AsyncGenerator[FragmentSpan]:
        """All fragments in order; from the one on that holds the position ``first``."""
        first = stream.start if first is None else max(first, stream.start)
        async for part in self.parts(stream, first=first):
            for fragment in part.truncated(first).fragments:
                yield _span(part, fragment)


def _span(part: StreamMetadata, fragment: StreamFragment) -> FragmentSpan:
    return FragmentSpan(fragment, part.last_id_of(fragment))


async def walk_stream(
    store: MetadataStore, stream: StreamMetadata, *, pages: StreamPages | None = None
) -> AsyncGenerator[StreamMetadata]:
    """All parts of a stream in order, the tail last, through changes that other clients make meanwhile: each position
    is in one part, unless it is truncated meanwhile. The parts are those of the given metadata if nothing changes.

    Raises :class:`NoSuchLedgerError` when the stream is deleted meanwhile, :class:`MetadataError` for a damaged or
    missing page, :class:`MetadataUnavailableError`.
    """
    pages = pages or StreamPages(store)
    position, missed = stream.start, 0
    while True:
        try:
            async for part in pages.parts(stream, first=position):
                rest = part.truncated(position)
                yield rest
                position, missed = (rest.end_position or 0) + 1, 0
        except PageMissingError as error:
            missed += 1
            stream = await read_again(store, stream, error, missed)
            position = max(position, stream.start)
        else:
            return


async def parts_of(store: MetadataStore, metadata: EitherMetadata) -> AsyncGenerator[EitherMetadata]:
    """A ledger as it is, and all parts of a stream, as :func:`walk_stream`."""
    if not metadata.pages:
        yield metadata
        return
    async for part in walk_stream(store, as_stream(metadata)):
        yield part


async def members_of(store: MetadataStore, metadata: EitherMetadata) -> frozenset[BookieId]:
    """Every bookie that a fragment of a ledger or a stream names, also in pages. Raises as :func:`walk_stream`."""
    if not metadata.pages:
        return metadata.members
    return frozenset([name async for part in walk_stream(store, as_stream(metadata)) for name in part.members])


async def stored_pages(store: MetadataStore, stream: StreamMetadata) -> tuple[StreamMetadata, list[tuple[str, bytes]]]:
    """The metadata of a stream and the documents of exactly the pages that they name, for a copy of both. The metadata
    are those given, or later ones. Raises as :func:`walk_stream`."""
    missed = 0
    while True:
        found: list[tuple[str, bytes]] = []
        try:
            for page in stream.pages:
                name = page_document(stream.ledger_id, page)
                found.append((name, await read_page_value(store, stream, page)))
        except PageMissingError as error:
            missed += 1
            stream = await read_again(store, stream, error, missed)
        else:
            return stream, found


# --- keeping the root small -------------------------------------------------------------------------------------------


async def tidy_stream(
    store: MetadataStore,
    ledger_id: LedgerId,
    *,
    writer_token: str,
    known: Versioned[StreamMetadata] | None = None,
) -> Versioned[StreamMetadata]:
    """Page out while that is due, in the background (rule U3). Costs nothing while it is not, if the metadata are
    given. Raises as :func:`page_out`."""
    current = known or await store.read_stream(ledger_id)
    while paging_is_due(current.value):
        current = await page_out(store, ledger_id, writer_token=writer_token, known=current)
    return current


async def truncate_stream(
    store: MetadataStore,
    ledger_id: LedgerId,
    before: int,
    *,
    writer_token: str,
    pages: StreamPages | None = None,
    known: Versioned[StreamMetadata] | None = None,
) -> Versioned[StreamMetadata]:
    """Remove the positions below ``before``, but none of the last fragment: one change of the root, whatever it removes
    (rule U4). Returns what is then stored. The pages that have left the root are deleted.

    Raises :class:`NoSuchLedgerError`, :class:`MetadataUnavailableError` (the truncation may have been made), and
    :class:`MetadataError` for a damaged page.
    """
    pages = pages or StreamPages(store)
    current = known or await store.read_stream(ledger_id)
    from octavo.metadata.stream.changes import Truncate  # noqa: PLC0415 - readers make no changes

    for missed in range(ATTEMPTS_MAX):
        stream = current.value
        try:
            # The position may be paged out until the change is made: so the place is given wherever it is known.
            place = await pages.place_at(stream, before) if stream.start < before else None
        except PageMissingError as error:
            await read_again(store, stream, error, missed)
            current = await store.read_stream(ledger_id)
            continue
        change = Truncate(before, place)
        try:
            after = await update_stream(store, ledger_id, change, writer_token=writer_token, known=current)
        except MetadataConflictError:
            current = await store.read_stream(ledger_id)
            continue
        for page in set(stream.pages) - set(after.value.pages):
            await store.delete_document(page_document(ledger_id, page))
        return after
    raise MetadataConflictError(
        f"stream {ledger_id} changed {ATTEMPTS_MAX} times while this client tried to truncate it",
        may_have_happened=False,
    )


async def delete_stream(store: MetadataStore, ledger_id: LedgerId) -> None:
    """Delete a stream: its root, then its pages (rule U8). Later reads raise :class:`NoSuchLedgerError`.

    Raises :class:`NoSuchLedgerError`; pages that a client left behind which died in the middle are deleted before.
    """
    try:
        await store.delete_ledger(ledger_id)
    except NoSuchLedgerError:
        if await store.confirm_absent([ledger_id]):
            await _delete_pages(store, ledger_id)
        raise
    await _delete_pages(store, ledger_id)


async def _delete_pages(store: MetadataStore, ledger_id: LedgerId) -> int:
    deleted = 0
    async for name in store.list_documents(pages_prefix(ledger_id)):
        await store.delete_document(name)
        deleted += 1
    return deleted


async def sweep_stream(store: MetadataStore, stream: StreamMetadata) -> int:
    """Delete the pages of a stream that no metadata name any more; their number (rule U2). Any client may do it, with
    metadata of any age. Raises :class:`MetadataUnavailableError`."""
    deleted = 0
    if stream.revision:
        async for name in store.list_documents(pages_prefix(stream.ledger_id)):
            if is_left_over(stream, name):
                await store.delete_document(name)
                deleted += 1
    return deleted


async def sweep_all(store: MetadataStore) -> int:
    """Delete the pages of all streams that have been deleted, and those that no metadata name any more; their number
    (rules U2 and U8). Raises :class:`MetadataError`, :class:`MetadataUnavailableError`."""
    deleted = 0
    ledger_ids: dict[LedgerId, None] = {}
    async for name in store.list_documents(PAGES_PREFIX):
        found = parse_document(name)
        if found is not None:
            ledger_ids[found.ledger_id] = None
    # Not answered from stale data: a stream that was just created and paged out is not taken for a deleted one.
    absent = set(await store.confirm_absent(list(ledger_ids)))
    for ledger_id in ledger_ids:
        if ledger_id in absent:
            deleted += await _delete_pages(store, ledger_id)
            continue
        try:
            deleted += await sweep_stream(store, (await store.read_stream(ledger_id)).value)
        except NoSuchLedgerError:
            continue  # deleted just now: the next sweep finds its pages
    return deleted
