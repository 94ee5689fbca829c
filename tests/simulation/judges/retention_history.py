"""What retention may drop from a log, judged from outside (rule P8).

Which metadata and which cursors a leader decided from is not seen here, only when its change arrives. In between a log
only grows, cursors only go forward and clocks go on: what might be dropped then may be dropped now.
"""

from collections import defaultdict
from typing import NamedTuple

from octavo.client.log.documents.chain import Retention
from simulation.judges.history import Violation


class Piece(NamedTuple):
    """A segment, a page of segments or a fragment, which retention drops as a whole."""

    bytes: int
    seen_at: float
    """When the metadata told of it first, by the world's time: all of its entries were sealed before. What leaders'
    clocks said is no evidence (rule P19)."""


class RetentionHistory:
    """The history of one log, as far as retention goes."""

    def __init__(self, name: str, retention: Retention) -> None:
        self._name = name
        self._retention = retention
        self._pieces: defaultdict[int, set[Piece]] = defaultdict(set)
        """Position after it -> the pieces that ended there, at any time."""
        self.judges_by_the_world = False
        """Whether ages are judged by the entries; otherwise by what the metadata told of them."""
        self._cursors_lowest: int | None = None
        """The position that all cursors have reached, as they are stored now; None while there is none."""

    @property
    def is_limited(self) -> bool:
        """Whether anything is ever dropped."""
        return self._retention != Retention()

    def saw_piece(self, stop_position: int, piece: Piece) -> None:
        """Record a piece that ends before a position, when it is seen first."""
        if all(known.bytes != piece.bytes for known in self._pieces[stop_position]):
            self._pieces[stop_position].add(piece)

    def saw_cursors(self, cursors: dict[str, int]) -> None:
        """Record a version of the cursors. In a universe none is idle for long enough to be ignored."""
        if cursors:
            self._cursors_lowest = min(cursors.values())

    def check(self, cut: int, stop: int, kept_bytes: int, *, youngest_made_at: float | None, now: float) -> None:
        """Check that retention may have dropped everything below ``cut`` just now, which ends or lies within the piece
        that ends at ``stop``. ``kept_bytes``: of the pieces above that. ``now``: the world's time.
        ``youngest_made_at``: when the youngest dropped entry was added, if that is known."""
        retention, where = self._retention, f"log {self._name}: retention dropped everything below {cut}"
        if retention.cursors and (self._cursors_lowest is None or cut > self._cursors_lowest):
            raise Violation("P8", f"{where}, cursors hold it at {self._cursors_lowest}")
        if retention.bytes is None and retention.seconds is None:
            return
        last = self._pieces[stop]
        too_many = retention.bytes is not None and any(kept_bytes + piece.bytes > retention.bytes for piece in last)
        too_old = retention.seconds is not None and any(now - piece.seen_at > retention.seconds for piece in last)
        if self.judges_by_the_world and retention.seconds is not None and not too_many:
            age = retention.seconds if youngest_made_at is None else now - youngest_made_at
            if age < retention.seconds:
                raise Violation("P8", f"{where}, of which an entry was {age:.3f} s old")
            return
        if not too_many and not too_old:
            raise Violation("P8", f"{where}: {last} were to be kept, with {kept_bytes} bytes above; it is {now:.3f} s")
