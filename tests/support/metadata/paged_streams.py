"""Streams whose older fragments lie in pages, for tests."""

from collections.abc import Sequence
from dataclasses import replace

from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState
from octavo.metadata.stream.pages import Page, make_page
from octavo.protocol.ids import EntryId, LedgerId
from support.metadata.stream_metadata import open_stream, stream_fragment


def many_fragments(
    count: int, *, names: Sequence[str] = ("abc", "abd", "bcd"), entries: int = 3, term_every: int = 5
) -> tuple[StreamFragment, ...]:
    """Fragments of ``entries`` entries of 10 bytes each, with a new term after every ``term_every``."""
    fragments: list[StreamFragment] = []
    for at in range(count):
        term, within = divmod(at, term_every)
        position = at * entries
        fragments.append(
            stream_fragment(
                term + 1, within * entries, position, names[at % len(names)], 10 * position, opened_at_ms=1000 * at
            )
        )
    return tuple(fragments)


def paged(stream: StreamMetadata, *counts: int) -> tuple[StreamMetadata, list[Page]]:
    """The stream with its oldest fragments in pages of these sizes, and the pages."""
    pages: list[Page] = []
    for count in counts:
        page = make_page(stream, stream.fragments[:count], stream.fragments[count])
        stream = stream.with_page(page.reference, moved=count, replaces_last=False)
        pages.append(page)
    return stream, pages


def paged_stream(count: int, *counts: int, ledger_id: int = 7) -> tuple[StreamMetadata, list[Page]]:
    """As :func:`paged`, of a new stream of ``count`` fragments."""
    return paged(replace(open_stream(*many_fragments(count)), ledger_id=LedgerId(ledger_id)), *counts)


def resting(stream: StreamMetadata, entries: int = 2) -> StreamMetadata:
    """The open stream at rest, with this number of entries of 10 bytes in its last fragment."""
    last = stream.last_fragment
    end = EntryId(last.first_entry_id + entries - 1)
    return replace(stream, state=StreamState.AT_REST, last_entry_id=end, length=last.length_before + 10 * entries)
