"""The archived front of a stream: fragments whose entries lie in objects (rule J4). Pure.

The archived fragments are the first ones, without a hole, and each has its words. The root says where they end
(``archived_before``), so that a client sees without reading pages whether there are any. It is stored in a format of
its own: a version that knows no words would count copies that may be gone, and refuses the stream.

Words of fragments of the tail are written by :class:`ArchiveTail`, those of fragments in a page by naming a page that
has them (:class:`ArchivePage`). Both are refused unless the words follow the front and hold the whole of each fragment,
and neither reaches the last fragment that holds an entry: takeovers read its last entry.
"""

from collections.abc import Sequence
from dataclasses import replace

from octavo.metadata.ledger.archive_word import ArchiveWords
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import Page, repaired_page
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError
from octavo.protocol.ids import EntryId
from octavo.protocol.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FragmentWords:
    """The words that a fragment gets."""

    first_entry_id: EntryId
    """Of the fragment."""
    last_entry_id: EntryId
    """The last place of the fragment that holds an entry, as the mover has read it."""
    words: ArchiveWords


@dataclass(frozen=True, slots=True)
class ArchiveTail:
    """A bookie has moved the entries of consecutive fragments of the tail into objects, which it has read back."""

    fragments: tuple[FragmentWords, ...]
    """At least one, in order."""

    def decide(self, current: StreamMetadata) -> Write[StreamMetadata] | Settled | Refuse:
        wanted = {one.first_entry_id: one for one in self.fragments}
        kept = [fragment for fragment in current.fragments if fragment.first_entry_id in wanted]
        if kept and all(one.archive and one.archive == wanted[one.first_entry_id].words for one in kept):
            return Settled()
        if len(kept) != len(wanted):
            return _conflict(current, "fragments that were moved have been truncated or paged out since")
        try:
            return Write(_with_words(current, current, self.fragments, is_first=not current.pages, following=None))
        except InvalidArgumentError as error:
            return _conflict(current, error.message)


@dataclass(frozen=True, slots=True)
class TakeBackTail:
    """A bookie has found that an object is gone for which it has written words (:class:`ArchiveTail`). The archived
    front ends before them again."""

    fragments: tuple[FragmentWords, ...]
    """As they were given to :class:`ArchiveTail`."""

    def decide(self, current: StreamMetadata) -> Write[StreamMetadata] | Settled | Refuse:
        words = {one.first_entry_id: one.words for one in self.fragments}
        if current.pages and self.fragments[-1].first_entry_id < current.fragments[0].first_entry_id:
            return _conflict(current, "fragments whose words are to be taken back have been paged out")
        named = [one for one in current.fragments if one.archive and one.archive == words.get(one.first_entry_id)]
        if not named:
            return Settled()
        at = current.fragments.index(named[-1]) + 1
        if at == len(current.fragments) or current.archived_before != current.fragments[at].first_entry_id:
            return _conflict(current, "words of later fragments follow those that are to be taken back")
        fragments = tuple(replace(one, archive=()) if one in named else one for one in current.fragments)
        return Write(replace(current, fragments=fragments, archived_before=named[0].first_entry_id))


@dataclass(frozen=True, slots=True)
class ArchivePage:
    """The same of fragments of one page: the page that has their words takes the place of the one without them."""

    replaced: PageReference
    page: PageReference
    """The document exists."""
    archived_from: EntryId | None
    """Where the archived front ended when the page was made."""
    archived_before: EntryId
    """Where it ends with this page."""

    def decide(self, current: StreamMetadata) -> Write[StreamMetadata] | Settled | Refuse:
        if self.page in current.pages:
            return Settled()
        if self.replaced not in current.pages or current.revision != self.page.revision:
            return _conflict(current, "other pages have been named since its words were made")
        if current.archived_before != self.archived_from:
            return _conflict(current, "other fragments have been moved since its words were made")
        named = current.with_pages({self.replaced: self.page})
        return Write(replace(named, archived_before=self.archived_before))


def archived_page(
    stream: StreamMetadata, replaced: PageReference, part: StreamMetadata, fragments: Sequence[FragmentWords]
) -> tuple[Page, ArchivePage]:
    """The page that has these words, to be made, and the change that names it. ``part``: the fragments of the page that
    it replaces, all of them.

    Raises:
        InvalidArgumentError: the words do not follow the archived front, or do not hold their fragments.
    """
    at = stream.pages.index(replaced)
    # A page is followed by fragments, so none of its own is the last one of the stream.
    following = stream.pages[at + 1] if at + 1 < len(stream.pages) else stream.fragments[0]
    with_words = _with_words(stream, part, fragments, is_first=at == 0, following=following.first_entry_id)
    page = repaired_page(stream, replaced, with_words)
    assert with_words.archived_before is not None
    return page, ArchivePage(replaced, page.reference, stream.archived_before, with_words.archived_before)


def next_to_archive(stream: StreamMetadata, part: StreamMetadata, *, is_first: bool) -> int | None:
    """The index of the fragment of ``part`` whose words the next change may write; None if it is not in this part.
    ``part``: the stream's tail, or a page of it. ``is_first``: no other part lies before it."""
    front = stream.archived_before
    if front is not None and front > stream.start_place:
        return next((at for at, one in enumerate(part.fragments) if one.first_entry_id == front), None)
    if not is_first:
        return None
    # Nothing that is left is archived: the front begins at the fragment that holds the start.
    last_ids = enumerate(map(part.last_id_of, part.fragments))
    return next((at for at, last in last_ids if last is None or last >= stream.start_place), None)


def _with_words(
    stream: StreamMetadata,
    part: StreamMetadata,
    fragments: Sequence[FragmentWords],
    *,
    is_first: bool,
    following: EntryId | None,
) -> StreamMetadata:
    """The part with words for some of its fragments. ``following``: the first place behind a page; None: the part is
    the tail. Raises InvalidArgumentError."""
    at = next_to_archive(stream, part, is_first=is_first)
    if at is None or not fragments or fragments[0].first_entry_id != part.fragments[at].first_entry_id:
        raise _wrong(stream, "what was moved does not follow its archived front")
    if at + len(fragments) > len(part.fragments):
        raise _wrong(stream, "more fragments were moved than there are")
    changed: list[StreamFragment] = []
    for fragment, given in zip(part.fragments[at:], fragments, strict=False):
        first, last = max(fragment.first_entry_id, stream.start_place), part.last_id_of(fragment)
        if (fragment.first_entry_id, last) != (given.first_entry_id, given.last_entry_id):
            raise _wrong(stream, f"the fragment at {given.first_entry_id} is not the one that was moved")
        if not given.words or given.words[0].first > first or given.words[-1].last < given.last_entry_id:
            raise _wrong(stream, f"the objects do not hold the whole fragment at {fragment.first_entry_id}")
        changed.append(replace(fragment, archive=given.words))
    rest = part.fragments[at + len(changed) :]
    if following is None and not _holds_an_entry(rest, part.last_entry_id):
        raise _wrong(stream, "its last fragment that holds an entry is not archived")
    before = rest[0].first_entry_id if rest else following
    assert before is not None
    return replace(part, fragments=(*part.fragments[:at], *changed, *rest), archived_before=before)


def _holds_an_entry(rest: Sequence[StreamFragment], last_entry_id: EntryId | None) -> bool:
    """Whether one of the last fragments of a stream certainly holds an entry: it is followed by another one, or the
    term has its end in it."""
    return len(rest) > 1 or (len(rest) == 1 and last_entry_id is not None and last_entry_id >= rest[0].first_entry_id)


def _wrong(stream: StreamMetadata, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"stream {stream.ledger_id}: {reason}")


def _conflict(current: StreamMetadata, reason: str) -> Refuse:
    return Refuse(MetadataConflictError(f"stream {current.ledger_id}: {reason}", may_have_happened=False))
