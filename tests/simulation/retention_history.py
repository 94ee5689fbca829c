"""What retention may drop from a log, judged from outside (rule P8).

Which list and which cursors a leader decided from is not seen here, only when its change of the list arrives. In
between a log only grows, cursors only go forward and clocks go on: what might be dropped then may be dropped now.
"""

from collections import defaultdict
from typing import NamedTuple

from octavo.client.log.document import LogDocument
from simulation.history import Violation


class _Piece(NamedTuple):
    """A segment or a page, which retention drops as a whole."""

    bytes: int
    newest_ms: int
    """When its newest entry was sealed."""


class RetentionHistory:
    """The history of one log, as far as retention goes."""

    def __init__(self, document: LogDocument) -> None:
        self._pieces: defaultdict[int, set[_Piece]] = defaultdict(set)
        """Position after it -> the segments and pages that ended there, at any time."""
        self._cursors_lowest: int | None = None
        """The highest position that all cursors of a time had reached; None while there was no cursor."""
        self.saw_list(document)

    def saw_list(self, document: LogDocument) -> None:
        """Record a version of the list."""
        for page in document.pages:
            self._pieces[page.stop_position].add(_Piece(page.bytes, page.sealed_at_ms))
        for segment in document.segments:
            if segment.stop_position is not None and segment.end is not None:
                newest_ms = segment.end.sealed_at_ms or segment.created_at_ms
                self._pieces[segment.stop_position].add(_Piece(segment.end.bytes, newest_ms))

    def saw_cursors(self, cursors: dict[str, int]) -> None:
        """Record a version of the cursors. In a universe none is idle for long enough to be ignored."""
        if cursors:
            self._cursors_lowest = max(self._cursors_lowest or 0, min(cursors.values()))

    def check(self, document: LogDocument, store_ms: int) -> None:
        """Check a list whose beginning retention has just moved. ``store_ms``: the time by the store's clock."""
        cut, retention = document.first_position, document.retention
        where = f"log {document.name}: retention dropped everything below {cut}"
        if retention.cursors and (self._cursors_lowest is None or cut > self._cursors_lowest):
            raise Violation("P8", f"{where}, cursors hold it at {self._cursors_lowest}")
        if retention.bytes is None and retention.seconds is None:
            return
        kept = sum(page.bytes for page in document.pages)
        kept += sum(segment.end.bytes for segment in document.segments if segment.end is not None)
        last = self._pieces[cut]
        too_many = retention.bytes is not None and any(kept + piece.bytes > retention.bytes for piece in last)
        too_old = retention.seconds is not None and any(
            store_ms - piece.newest_ms > retention.seconds * 1000 for piece in last
        )
        if not too_many and not too_old:
            raise Violation("P8", f"{where}: {last} were to be kept, with {kept} bytes above; by the store it is "
                            f"{store_ms} ms")  # fmt: skip
