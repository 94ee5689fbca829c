"""Pages: documents that hold the older fragments of a stream, so that its metadata stay small. Pure.

The metadata of a stream are one value, the *root*, and only the root ever changes (rule U1). A stream that is written
for ever gets ever more fragments, so the older ones move into pages. A page is made before the compare-and-set that
names it, and is never changed (rule U2). What a page holds is changed by naming another page: one with more fragments
(paging out), or one with other bookies (repair).

Names. A page is made from a root of some revision, and its name begins with that revision. Naming pages raises the
revision, in the same compare-and-set. So a page whose revision is below that of a root which does not name it was named
before or never, and will not be named again: it can be deleted by any client, however old that root is. A page whose
revision is not below the root's may be about to be named. The rest of the name is a digest of the contents: two clients
that make the same page make the same document, and a page that was damaged, or mixed up with another, is noticed.

A reader that finds no document for a page reads the root again: another client has named another page, or has truncated
or deleted the stream. Positions and places of what is left have not changed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

from octavo.metadata.encoding import FieldReader, decode_object, encode_texts, with_checksum
from octavo.metadata.stream.encoding import decode_fragment, fragment_text, fragments_bytes, fragments_text
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.metadata.stream.page_reference import PageReference, parse_page_name
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError
from octavo.protocol.ids import ID_MAX, BookieId, EntryId, LedgerId
from octavo.protocol.light_dataclass import dataclass

FORMAT: Final = 1
ARCHIVED_FORMAT: Final = 2
"""Of a page with fragments whose entries lie in objects (rule J4)."""

PAGES_PREFIX: Final = "stream/"
"""What the documents of all pages start with."""

PAGE_FRAGMENTS_MAX: Final = 1024
PAGE_BYTES_MAX: Final = 256 * 1024
"""A page is one document of the metadata store, which holds twice as much (rule U3)."""

TAIL_FRAGMENTS_MAX: Final = 24
"""Fragments of the tail above which the oldest are paged out: 5.5 KiB with names of usual length (rule U3). A takeover
writes the root twice and every follower reads it, so that a fragment in the tail costs more than one in a page."""

TAIL_BYTES_MAX: Final = 128 * 1024
"""Largest stored size of the tail. No change makes it larger: the oldest fragments are paged out first (rule U3)."""

TAIL_BYTES_DUE: Final = 3 * TAIL_BYTES_MAX // 4
"""Size from which the tail is paged out in the background, so that a writer hardly ever has to wait for that."""

MOVED_FRAGMENTS_MAX: Final = 16
"""Fragments that are paged out at a time. A third of the tail stays: most readers want what was just written."""

_REMADE_FRAGMENTS_MAX: Final = 128
"""A page with at most so many fragments is made anew without those that were truncated. Of a larger one, which takes
too long to decode, they stay until all of it is truncated."""

_CHECKSUM_BYTES: Final = len('{"crc32c":"01234567')
"""What an encoded object begins with."""

_DIGEST_BYTES: Final = 12
"""Of the digest of a page in its name. Only pages of one revision of one stream must differ."""


class PageMissingError(MetadataConflictError):
    """A page does not exist any more: the metadata that named it are out of date, and must be read again."""


class Page(NamedTuple):
    """A page that is to be made: what the root will say of it, and the document's value."""

    reference: PageReference
    value: bytes


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The fragments to be paged out of a root."""

    moved: tuple[StreamFragment, ...]
    """The oldest fragments of the tail."""
    replaced: PageReference | None
    """The last page, which the new one takes the place of and whose fragments it holds, too."""
    page: Page


# --- names ------------------------------------------------------------------------------------------------------------


def pages_prefix(ledger_id: LedgerId) -> str:
    """The common beginning of the documents of a stream's pages."""
    return f"{PAGES_PREFIX}{ledger_id}/"


def page_document(ledger_id: LedgerId, page: PageReference) -> str:
    """The document that holds a page."""
    return pages_prefix(ledger_id) + page.name


class PageName(NamedTuple):
    """The parts of the name of a page's document."""

    ledger_id: LedgerId
    revision: int


def parse_document(name: str) -> PageName | None:
    """The stream and the revision of a page's document; None if it is none."""
    words = name.removeprefix(PAGES_PREFIX).split("/")
    if not name.startswith(PAGES_PREFIX) or len(words) != 2 or not words[0].isdecimal():
        return None
    found = parse_page_name(words[1])
    ledger_id = int(words[0])
    if found is None or ledger_id > ID_MAX or str(ledger_id) != words[0]:
        return None
    return PageName(LedgerId(ledger_id), found[0])


def is_left_over(stream: StreamMetadata, name: str) -> bool:
    """Whether the document called ``name`` is a page of this stream that no root names now or ever will (rule U2). The
    root need not be the latest one."""
    found = parse_document(name)
    if found is None or found.ledger_id != stream.ledger_id or found.revision >= stream.revision:
        return False
    return all(name != page_document(stream.ledger_id, page) for page in stream.pages)


# --- the stored form --------------------------------------------------------------------------------------------------


def make_page(stream: StreamMetadata, fragments: Sequence[StreamFragment], following: StreamFragment) -> Page:
    """A page of consecutive fragments of ``stream``, for its present revision. ``following``: the fragment after
    them."""
    first, last = fragments[0], fragments[-1]
    value = _encode(stream, fragments)
    reference = PageReference(
        revision=stream.revision,
        token=_digest(value),
        fragments=len(fragments),
        first_entry_id=first.first_entry_id,
        first_position=first.first_position,
        last_entry_id=EntryId(last.first_entry_id + following.first_position - last.first_position - 1),
        length_before=first.length_before,
        length_after=following.length_before,
        opened_at_ms=first.opened_at_ms,
    )
    return Page(reference, value)


def _encode(stream: StreamMetadata, fragments: Sequence[StreamFragment]) -> bytes:
    texts = {"ledger_id": str(stream.ledger_id), "fragments": fragments_text(fragments)}
    archived = any(fragment.archive for fragment in fragments)
    return encode_texts(texts, format_number=ARCHIVED_FORMAT if archived else FORMAT)


def decode_page(stream: StreamMetadata, page: PageReference, value: bytes) -> StreamMetadata:
    """The stored page as a :func:`page_part` of the stream, the whole of it. Raises :class:`MetadataError` when it is
    damaged, or not what the root says."""
    what = _what(stream, page)
    reader = FieldReader(decode_object(value, what=what, format_max=ARCHIVED_FORMAT), what)
    check_page(stream, page, value)
    if reader.get("ledger_id", int) != stream.ledger_id:
        raise reader.damaged(f"it is of ledger {reader.get('ledger_id', int)}")
    fragments = tuple(decode_fragment(entry, what) for entry in reader.get("fragments", list))
    try:
        part = page_part(stream, page, fragments)
    except InvalidArgumentError as error:
        raise reader.damaged(error.message) from error
    return part


def check_page(stream: StreamMetadata, page: PageReference, value: bytes) -> None:
    """Raise :class:`MetadataError` unless this is the value that the page was made with."""
    if _digest(value) != page.token:
        raise FieldReader({}, _what(stream, page)).damaged("it is another page than its name says")


def _what(stream: StreamMetadata, page: PageReference) -> str:
    return f"stream {stream.ledger_id}, page {page.name}"


def extended_page(
    stream: StreamMetadata,
    page: PageReference,
    value: bytes,
    moved: Sequence[StreamFragment],
    following: StreamFragment,
) -> Page | None:
    """As :func:`make_page`, of all fragments of the last page and those ``moved`` behind them. Nothing of the page is
    decoded or encoded again, which would take tens of milliseconds; what is truncated of it stays with it. None if it
    would have too many fragments, or if the page is not of the form that this version writes."""
    count = page.fragments + len(moved)
    # Fragments with words lie at the front of a stream: those behind a page without any have none.
    number = ARCHIVED_FORMAT if b'","format":%d,' % ARCHIVED_FORMAT in value[: _CHECKSUM_BYTES + 16] else FORMAT
    assert number == ARCHIVED_FORMAT or not moved[0].archive
    before, behind = b'","format":%d,"fragments":[' % number, b'],"ledger_id":%d}' % stream.ledger_id
    checksum, found, rest = value.partition(before)
    if count > PAGE_FRAGMENTS_MAX or len(checksum) != _CHECKSUM_BYTES or not found or not rest.endswith(behind):
        return None
    kept, added = rest.removesuffix(behind).decode("ascii"), ",".join(map(fragment_text, moved))
    extended = with_checksum("", f'"format":{number},"fragments":[{kept},{added}],"ledger_id":{stream.ledger_id}')
    last = moved[-1]
    reference = replace(
        page,
        revision=stream.revision,
        token=_digest(extended),
        fragments=count,
        last_entry_id=EntryId(last.first_entry_id + following.first_position - last.first_position - 1),
        length_after=following.length_before,
    )
    return Page(reference, extended)


def page_part(stream: StreamMetadata, page: PageReference, fragments: tuple[StreamFragment, ...]) -> StreamMetadata:
    """The fragments of a page as a *part* of their stream: a stream that begins where the page begins, and has its end
    where the page ends. Whatever looks at settled fragments does the same for parts and for whole streams.

    Raises :class:`InvalidArgumentError` if these cannot be the fragments of the page.
    """
    if len(fragments) != page.fragments:
        raise InvalidArgumentError(f"{len(fragments)} fragments instead of {page.fragments}")
    first = fragments[0]
    told = (page.first_entry_id, page.first_position, page.length_before, page.opened_at_ms)
    if (first.first_entry_id, first.first_position, first.length_before, first.opened_at_ms) != told:
        raise InvalidArgumentError("its first fragment is another one than the root says")
    # The constructor refuses a last fragment that is empty: its length is not that of the page.
    return replace(
        stream,
        state=StreamState.CLOSED,
        term=fragments[-1].term,
        terms_skipped=0,
        fragments=fragments,
        pages=(),
        start=first.first_position,
        start_entry_id=None,
        last_entry_id=page.last_entry_id,
        length=page.length_after,
    )


def _digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()[: 2 * _DIGEST_BYTES]


# --- when and what to page out ----------------------------------------------------------------------------------------


def paging_is_due(stream: StreamMetadata) -> bool:
    """Whether the oldest fragments of the tail should be paged out, in the background (rule U3)."""
    if len(stream.fragments) > TAIL_FRAGMENTS_MAX:
        return True
    # The names of bookies are what makes a fragment large. Most roots are far too small to be measured.
    return len(stream.fragments) > 1 and _may_be_large(stream) and fragments_bytes(stream.fragments) > TAIL_BYTES_DUE


def _may_be_large(stream: StreamMetadata) -> bool:
    return sum(512 + sum(map(len, fragment.bookies)) for fragment in stream.fragments) > TAIL_BYTES_DUE


def plan_paging(stream: StreamMetadata, last_page: bytes | None) -> PagePlan | None:
    """The fragments to page out of the root now, whether or not that is due; None if its tail has one fragment only,
    which is the writer's. ``last_page``: the value of the last page, checked (:func:`check_page`), or None if there is
    none."""
    moved = stream.fragments[: _moved_count(stream)]
    if not moved:
        return None
    following = stream.fragments[len(moved)]
    if last_page is not None:
        replaced = stream.pages[-1]
        if stream.start > replaced.first_position and replaced.fragments <= _REMADE_FRAGMENTS_MAX:
            kept = tuple(decode_page(stream, replaced, last_page).truncated(stream.start).fragments)
            page: Page | None = make_page(stream, (*kept, *moved), following)
        else:
            page = extended_page(stream, replaced, last_page, moved, following)
        if page is not None and len(page.value) <= PAGE_BYTES_MAX:
            return PagePlan(moved, replaced, page)
    return PagePlan(moved, None, make_page(stream, moved, following))


def _moved_count(stream: StreamMetadata) -> int:
    """How many fragments of the tail to move: up to the limit, but at most half the bytes of the tail."""
    sizes = [fragments_bytes((fragment,)) for fragment in stream.fragments[:-1]]
    half = max(sum(sizes) // 2, TAIL_BYTES_MAX // 2)
    within = sum(1 for total in accumulate(sizes) if total <= half)
    return min(MOVED_FRAGMENTS_MAX, max(within, 1), len(sizes))


# --- repair -----------------------------------------------------------------------------------------------------------


def with_members(part: StreamMetadata, replacements: Mapping[tuple[EntryId, int], BookieId]) -> StreamMetadata:
    """The part with other bookies at some positions of the ensembles of fragments, named by their first ids."""
    for (first_entry_id, position), bookie_id in replacements.items():
        part = part.with_member(first_entry_id, position, bookie_id)
    return part


def repaired_page(stream: StreamMetadata, page: PageReference, part: StreamMetadata) -> Page:
    """The page with the fragments of ``part``, for the present revision of the root: it differs from the old one in
    bookies only. Fragments that are truncated are kept, so that the root can say the same of it."""
    value = _encode(stream, part.fragments)
    return Page(replace(page, revision=stream.revision, token=_digest(value)), value)
