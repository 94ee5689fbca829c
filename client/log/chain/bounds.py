"""How large the list of a log and its pages may become (rule P9). Pure.

A document of the metadata store has a limit (``DOCUMENT_BYTES_MAX``), and a list that reached it could not be changed
any more: the log could not be led. So each part of the list has a bound:

=================  ============================================================================================
segments           the oldest move into a page when there are too many of them, or the list has too many bytes
pages              neighbours are merged into a larger page when there are too many
``making``         a candidate that notes one too many lets the oldest be dropped: its maker is dead, or loses
``dropped``        a candidate that finds too many deletes some first; truncation drops a few thousand at a time
``terms``          the latest
=================  ============================================================================================

So a list outgrows its document only after some five million segments, or thousands of gaps that operators gave up.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from octavo.client.log.documents.chain import LogDocument, PageReference

LIST_BYTES_MAX: Final = 192 * 1024
"""Bytes of a list above which its oldest segments move into a page, however few they are: three eighths of a document.
"""

_LIST_SEGMENTS_MAX: Final = 2000
"""Segments of a list, whatever the size of a page. One takes at most some 160 bytes."""

_SEGMENTS_UNCOUNTED_MAX: Final = 500
"""This number of segments stays in the list whatever else is in it; their bytes need not be counted."""

PAGE_SEGMENTS_MAX: Final = 2000
"""Segments of a merged page."""

_PAGES_MAX: Final = 1000
"""Pages of a list, whatever their size. One takes at most some 200 bytes."""

MAKING_MAX: Final = 64
"""Ledgers noted in ``making``: more candidates than ever take a log over at the same time."""

DROPPED_MAX: Final = 256
"""Dropped ledgers that a candidate leaves to the housekeeping of the leader that it becomes."""

DROPPED_AT_ONCE_MAX: Final = 4000
"""Ledgers that one change of the list drops, but for those of a single page."""


def segments_max(page_segments: int) -> int:
    """Segments that a list keeps before the oldest ``page_segments`` move into a page."""
    return min(10 * page_segments, _LIST_SEGMENTS_MAX)


def pages_max(page_segments: int) -> int:
    """Pages that a list keeps before some are merged, where the smallest have ``page_segments``."""
    return min(10 * page_segments, _PAGES_MAX)


def segments_to_fold(document: LogDocument, page_segments: int) -> int:
    """How many of the oldest segments are to move into a page now; 0 for none. The last two never do."""
    count = len(document.segments)
    if count > segments_max(page_segments):
        return page_segments
    if count > _SEGMENTS_UNCOUNTED_MAX and len(document.encode()) > LIST_BYTES_MAX:
        return count // 2
    return 0


def pages_to_merge(
    pages: Sequence[PageReference], pages_most: int, *, segments_most: int = PAGE_SEGMENTS_MAX
) -> Sequence[PageReference]:
    """Neighbouring pages that are to become one, because there are more than ``pages_most``; none if every two
    neighbours have more than ``segments_most`` segments.

    As many as possible, up to half of all, and of those runs the one with the fewest segments: so each segment is
    copied only a few times, and the number of pages falls by a good share at once.
    """
    if len(pages) <= pages_most:
        return ()
    sums = [0, *accumulate(page.segments for page in pages)]
    count = len(pages)
    while count > 2:
        count = max(2, count // 2)
        fewest, at = min((sums[at + count] - sums[at], at) for at in range(len(pages) - count + 1))
        if fewest <= segments_most:
            return pages[at : at + count]
    return ()
