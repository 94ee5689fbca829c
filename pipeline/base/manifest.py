"""The manifest of a dataset: the published ledgers, and which jobs and batches have been published. Pure.

Theory of operation
===================

The ledgers that one job, or one batch of a streaming query, has written become visible together, by one compare-and-set
of the dataset's *head*, a small named document. The head holds

* ``recent``: the ledgers published last, in order;
* ``segments``: names of documents that hold earlier ledgers, in order. A segment is written before the head that names
  it and never changes, so the head stays small whatever the number of ledgers;
* ``streams``: for each streaming query its last published batch. A batch that is repeated after a failure publishes
  nothing (exactly once);
* ``jobs``: tokens of the jobs that published last. A job whose answer was lost finds its own token here (rule M1);
* ``epoch``: number of times that ``mode("overwrite")`` has replaced the set.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from octavo.protocol.errors import MetadataError

FORMAT = 1

RECENT_MAX = 1000
"""Largest number of ledgers in the head, about 100 KiB that each commit reads and writes."""

SEGMENT_LEDGERS_MAX = 3000
"""Largest number of ledgers in one segment, so that it fits into a document."""

JOBS_REMEMBERED = 100
"""Number of job tokens that are kept. A job looks for its own token within seconds."""

KEY_CHARACTERS_MAX = 256
"""Longest key of a row; the custom metadata of the ledger holds it."""


class PublishedLedger(NamedTuple):
    """One ledger of a dataset."""

    ledger_id: int
    entries: int
    payload_bytes: int


class Publication(NamedTuple):
    """The ledgers that a job, or a batch of a query, publishes atomically."""

    ledgers: Sequence[PublishedLedger]
    job: str
    """Token of the job; for a streaming query, its query id."""
    batch: int | None = None
    """Number of the batch; None for a job."""
    replaces: bool = False
    """Whether it replaces everything published before."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a dataset."""

    epoch: int = 0
    segments: tuple[str, ...] = ()
    recent: tuple[PublishedLedger, ...] = ()
    streams: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Query id -> its last batch, and the highest ledger id published by the query."""
    jobs: tuple[str, ...] = ()

    def has(self, job: str, batch: int | None) -> bool:
        """Whether the job, or the batch of the query, has been published."""
        if batch is None:
            return job in self.jobs
        return job in self.streams and batch <= self.streams[job][0]

    def published(self, publication: Publication) -> "Head":
        """The head with the publication added; the head itself if it has been published before."""
        if self.has(publication.job, publication.batch):
            return self
        ledgers = tuple(publication.ledgers)
        head = replace(self, epoch=self.epoch + 1, segments=(), recent=()) if publication.replaces else self
        if publication.batch is None:
            head = replace(head, jobs=(*head.jobs, publication.job)[-JOBS_REMEMBERED:])
        else:
            highest = max([ledger.ledger_id for ledger in ledgers], default=self.floor(publication.job))
            head = replace(head, streams={**head.streams, publication.job: (publication.batch, highest)})
        return replace(head, recent=(*head.recent, *ledgers))

    def floor(self, query: str) -> int:
        """A ledger id below which the query's next batch has no ledger (ids ascend); -1 if it is not known."""
        return self.streams[query][1] if query in self.streams else -1

    def overflow(self) -> list[tuple[PublishedLedger, ...]]:
        """Contents of the segments into which ``recent`` must be moved, in order; empty if it fits into the head."""
        if len(self.recent) <= RECENT_MAX:
            return []
        return [
            self.recent[start : start + SEGMENT_LEDGERS_MAX]
            for start in range(0, len(self.recent), SEGMENT_LEDGERS_MAX)
        ]

    def moved(self, names: Sequence[str]) -> "Head":
        """The head with everything in ``recent`` moved to segments of these names."""
        return replace(self, segments=(*self.segments, *names), recent=())

    def encode(self) -> bytes:
        """The head as a document."""
        return _encode(
            {
                "epoch": self.epoch,
                "segments": self.segments,
                "recent": self.recent,
                "streams": {query: list(state) for query, state in self.streams.items()},
                "jobs": self.jobs,
            }
        )


def decode_head(value: bytes, name: str) -> Head:
    """The head in a document. Raises :class:`MetadataError` naming the dataset."""
    fields = _decode(value, name)
    try:
        return Head(
            int(fields["epoch"]),
            tuple(map(str, fields["segments"])),
            _ledgers(fields["recent"]),
            {str(query): (int(batch), int(highest)) for query, (batch, highest) in fields["streams"].items()},
            tuple(map(str, fields["jobs"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MetadataError(f"dataset {name}: its list of ledgers is damaged: {error!r}") from error


def encode_segment(ledgers: Sequence[PublishedLedger], *, written_at: float) -> bytes:
    """The document of a segment; ``written_at`` in seconds since 1970."""
    return _encode({"ledgers": list(ledgers), "written_at": written_at})


def decode_segment(value: bytes, name: str) -> tuple[tuple[PublishedLedger, ...], float]:
    """The ledgers of a segment, and when it was written (seconds since 1970). Raises :class:`MetadataError`."""
    fields = _decode(value, name)
    try:
        return _ledgers(fields["ledgers"]), float(fields["written_at"])
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(f"dataset {name}: a segment of its list is damaged: {error!r}") from error


def _ledgers(rows: Any) -> tuple[PublishedLedger, ...]:
    return tuple(PublishedLedger(int(ledger_id), int(entries), int(size)) for ledger_id, entries, size in rows)


def _encode(fields: Mapping[str, Any]) -> bytes:
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def _decode(value: bytes, name: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(value)
        number = fields["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise MetadataError(f"dataset {name}: its list of ledgers is damaged: {error!r}") from error
    if number != FORMAT:
        raise MetadataError(f"dataset {name} has format {number}; this version reads format {FORMAT}: upgrade Octavo")
    return dict(fields)
