"""The offsets of a streaming query over a log, and how they advance. Pure.

An offset is the position after the last that was read. It names the log by its id, so that a checkpoint is not used for
another log of the same name. ``begins`` is the position at which the batch that ends at the offset began to read: it is
above the previous offset where the log was truncated and the query continues without what is lost. So a batch follows
from its two offsets alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from octavo.pipeline.base.planning import Piece
from octavo.pipeline.source.offsets import Limits
from octavo.protocol.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class LogOffset:
    """The offset of a query."""

    log_id: str
    position: int
    """The first position that has not been read."""
    begins: int = 0
    """Where the batch before began, if that is above the offset before."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The offset that :meth:`to_json` wrote. Raises :class:`InvalidArgumentError` for anything else."""
        try:
            return cls(str(value["log"]), int(value["position"]), int(value["begins"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"the checkpoint holds offsets of another source or version ({error!r}); use a new checkpoint location"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """The offset as plain values."""
        return {"log": self.log_id, "position": self.position, "begins": self.begins}


def batch_positions(start: LogOffset, end: LogOffset) -> tuple[int, int]:
    """The positions that the batch between two offsets reads, ``first`` included and ``stop`` excluded."""
    return max(start.position, end.begins), end.position


def within_limits(pieces: Sequence[Piece], limits: Limits) -> int:
    """How many entries, from the first on, one batch takes: at least one if there is one."""
    count = sum(piece.range.count for piece in pieces)
    if limits.entries is not None:
        count = min(count, limits.entries)
    if limits.payload_bytes is None:
        return count
    budget, taken = float(limits.payload_bytes), 0
    for piece in pieces:
        fits = min(piece.range.count, int(budget // max(1.0, piece.entry_bytes)))
        taken += fits
        budget -= fits * piece.entry_bytes
        if fits < piece.range.count:
            break
    return max(1, min(count, taken)) if count else 0
