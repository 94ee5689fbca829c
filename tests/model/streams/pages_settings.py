"""Settings and canaries of the metadata-alone model of streams (:mod:`model.streams.pages_world`)."""

from dataclasses import dataclass, replace

from model.streams.pages_world import (
    Deleter,
    Pager,
    PagesWorld,
    Repairer,
    Sweeper,
    Taker,
    Truncator,
    Writer,
    check_nothing,
    decode_mutated,
)
from octavo.metadata.ledger.decisions import Write
from octavo.metadata.stream.changes import PageOut, Truncate
from octavo.metadata.stream.model import StreamMetadata
from octavo.metadata.stream.pages import page_document, parse_document
from support.metadata.stream_metadata import open_stream, stream_fragment

PAGES_SETTINGS = {
    "two pagers, a repair and a sweep": PagesWorld((Pager(2), Pager(), Repairer(1), Sweeper())),
    "pager, truncation, repair and a sweep": PagesWorld((Pager(2), Truncator(2), Repairer(1), Sweeper())),
    "pager, writer, takeover and a sweep": PagesWorld((Pager(3), Writer(2), Taker(), Sweeper())),
    "pager, truncation, takeover and a repair": PagesWorld((Pager(2), Truncator(2), Taker(), Repairer(2))),
    "pager and two truncations": PagesWorld((Pager(2), Truncator(2), Truncator(1), Writer())),
    "pages of their own, a writer, a repair and a sweep": PagesWorld(
        (Pager(2, merges=False), Writer(), Repairer(0), Truncator(1), Sweeper())
    ),
    "pager, two repairs and a writer": PagesWorld((Pager(2), Repairer(0), Repairer(2), Writer())),
    "pagers and a deletion": PagesWorld((Pager(2), Pager(), Deleter())),
}
"""By what happens at the same time. Each is exhausted."""


def _also_the_newest(root: StreamMetadata, name: str) -> bool:
    found = parse_document(name)
    named = {page_document(root.ledger_id, page) for page in root.pages}
    return found is not None and found.revision <= root.revision and name not in named


class _AnyRevision(PageOut):
    """Named whatever else has been named since."""

    __slots__ = ()

    def decide(self, current: StreamMetadata):  # type: ignore[no-untyped-def]
        if self.page in current.pages or current.revision < self.page.revision:
            return super().decide(current)
        lowered = replace(self.page, revision=current.revision)
        decision = PageOut(self.moved, self.replaced, lowered).decide(current)
        if isinstance(decision, Write):
            pages = tuple(self.page if page == lowered else page for page in decision.metadata.pages)
            return Write(replace(decision.metadata, pages=pages))
        return decision


class _AnyFragments(PageOut):
    """Moves as many fragments as it has read, whatever they have become."""

    __slots__ = ()

    def decide(self, current: StreamMetadata):  # type: ignore[no-untyped-def]
        moved = current.fragments[: len(self.moved)]
        same = [one.first_entry_id for one in moved] == [one.first_entry_id for one in self.moved]
        return PageOut(moved if same else self.moved, self.replaced, self.page).decide(current)


class _StartMayFall(Truncate):
    """Writes the position that it was asked for, whatever the start has become."""

    __slots__ = ()

    def decide(self, current: StreamMetadata):  # type: ignore[no-untyped-def]
        if current.pages or not current.fragments[0].first_position <= self.before < current.start:
            return super().decide(current)
        return Write(replace(current, start=self.before))


LONG_FIRST = open_stream(stream_fragment(1, 0, 0), stream_fragment(1, 3, 3, "abd", 30))
"""Both truncations end in its first fragment."""


@dataclass(frozen=True)
class PagesCanary:
    """A rule broken on purpose."""

    name: str
    promise: str
    broken: PagesWorld
    healthy: PagesWorld


PAGES_CANARIES = (
    PagesCanary(
        "mutable pages",
        "N3",
        PagesWorld((Pager(2, check=check_nothing), Writer(), Repairer(1, mutates=True)), decode=decode_mutated),
        PagesWorld((Pager(2), Writer(), Repairer(1))),
    ),
    PagesCanary(
        "a sweep takes pages of the present revision",
        "N6",
        PagesWorld((Pager(), Sweeper(_also_the_newest))),
        PagesWorld((Pager(), Sweeper())),
    ),
    PagesCanary(
        "a page is named at any revision",
        "N6",
        PagesWorld((Pager(2, change=_AnyRevision, merges=False), Writer(), Repairer(0), Sweeper())),
        PagesWorld((Pager(2, merges=False), Writer(), Repairer(0), Sweeper())),
    ),
    PagesCanary(
        "a page is named although its fragments have changed",
        "N3",
        PagesWorld((Pager(change=_AnyFragments), Repairer(1))),
        PagesWorld((Pager(), Repairer(1))),
    ),
    PagesCanary(
        "a page is named before it is made",
        "N6",
        PagesWorld((Pager(names_first=True),)),
        PagesWorld((Pager(),)),
    ),
    PagesCanary(
        "the start may fall",
        "N5",
        PagesWorld((Truncator(2), Truncator(1, change=_StartMayFall)), beginning=LONG_FIRST),
        PagesWorld((Truncator(2), Truncator(1)), beginning=LONG_FIRST),
    ),
)
