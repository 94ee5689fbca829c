"""A write of rows into a log, by a job or a batch of a query: what is stored of it, and what is next. Pure (rule X2).

Theory of operation
===================

Tasks write their rows into ledgers that only this write knows. The driver's commit then adds the rows to the log, one
after another, as its leader. It may die at any point and be repeated, with rows that Spark has computed anew: in
another order, or others. So before it adds anything it stores, by compare-and-set, *which* ledgers hold the rows. From
then on they are the write; what a repeated attempt has written is deleted.

Row ``n`` of the write is the ``n``-th entry of those ledgers in their order, and its key in the log says so. Rows are
added in order, each only to the position behind the one before. So at any time the log holds the first rows of the
write, for some number of them, and no others.

========  =======================  ====================================================================================
state     stored                   what a commit does
========  =======================  ====================================================================================
staged    ledgers                  takes the lead, then stores the end of the log: where the write starts
started   ledgers, starts_at       takes the lead, looks in the log from ``starts_at`` on which rows are there, adds the
                                   others, then stores that it is complete
complete  neither                  nothing
========  =======================  ====================================================================================

A commit reads the log after it has taken the lead: no other leader adds to it then, also not an earlier commit that
has not noticed that it was replaced. It reads from a position that was stored before the first row was added, so it
finds each row that is there, whatever the window of the log's keys is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from octavo.metadata.encoding import decode_object, encode_object
from octavo.pipeline.base.manifest import PublishedLedger
from octavo.protocol.errors import InvalidArgumentError, MetadataError

FORMAT = 1

LEDGERS_MAX = 10_000
"""Ledgers of one write: its document has some 40 bytes for each."""


class State(Enum):
    """How far a write is."""

    STAGED = "staged"
    STARTED = "started"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class LogWrite:
    """The last write of a job, or of a streaming query, into one log."""

    log: str
    """The name of the log, to which a reader of the document comes from nothing else."""
    job: str
    """The query's id; of a job its name, or a token that is used once."""
    batch: int | None
    """The batch of the query; None for a job."""
    ledgers: tuple[PublishedLedger, ...]
    """What holds the rows, in order; empty once the write is complete."""
    may_repeat: bool
    """Whether this write may be committed again: it is a query's, or a job's that has a name."""
    starts_at: int | None = None
    """The write has no entry below this position; None before it is started."""
    is_complete: bool = False
    floor: int = -1
    """No ledger of a later batch has an id up to this one (ids ascend); -1: not known."""

    @property
    def state(self) -> State:
        """See the module."""
        if self.is_complete:
            return State.COMPLETE
        return State.STAGED if self.starts_at is None else State.STARTED

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(ledger.entries for ledger in self.ledgers)

    def covers(self, batch: int | None) -> bool:
        """Whether what a commit of this batch, or of the job, wants to write is decided by this write.

        Raises :class:`InvalidArgumentError` if one is a query's and the other a job's.
        """
        if batch is None or self.batch is None:
            if batch is not self.batch:
                raise InvalidArgumentError(f"{self.job} is the name of a job and the id of a query: name the job anew")
            return True
        return batch <= self.batch

    def started(self, end: int) -> Self:
        """The log ends there, and nothing of the write is in it."""
        assert self.state is State.STAGED, self.state
        return replace(self, starts_at=end)

    def completed(self) -> Self:
        """All rows are in the log."""
        assert self.state is not State.COMPLETE, "a write is completed once"
        floor = max([self.floor, *(ledger.ledger_id for ledger in self.ledgers)])
        return replace(self, ledgers=(), starts_at=None, is_complete=True, floor=floor)

    def key_of(self, row: int) -> str:
        """The key in the log of this row."""
        return f"{self._key_prefix}{row}"

    def row_of(self, key: str | None) -> int | None:
        """The row with this key; None if the entry is not of this write."""
        if key is None or not key.startswith(self._key_prefix):
            return None
        number = key.removeprefix(self._key_prefix)
        return int(number) if number.isascii() and number.isdecimal() else None

    @property
    def _key_prefix(self) -> str:
        return f"spark/{self.job}/" if self.batch is None else f"spark/{self.job}/{self.batch}/"

    def encode(self) -> bytes:
        """The write as a document."""
        return encode_object(
            {
                "batch": self.batch,
                "complete": self.is_complete,
                "floor": self.floor,
                "job": self.job,
                "ledgers": [list(ledger) for ledger in self.ledgers],
                "log": self.log,
                "may_repeat": self.may_repeat,
                "starts_at": self.starts_at,
            },
            format_number=FORMAT,
        )


def staged(
    log: str, job: str, batch: int | None, ledgers: Sequence[PublishedLedger], *, may_repeat: bool, floor: int = -1
) -> LogWrite:
    """A write of which nothing is in the log. Raises :class:`InvalidArgumentError` if it has too many ledgers."""
    if len(ledgers) > LEDGERS_MAX:
        raise InvalidArgumentError(
            f"{len(ledgers)} tasks have written rows for log {log}; one write has at most {LEDGERS_MAX}: "
            "coalesce the frame"
        )
    return LogWrite(log, job, batch, tuple(ledgers), may_repeat, floor=floor)


def decode_log_write(value: bytes, name: str) -> LogWrite:
    """The write in a document. Raises :class:`MetadataError` naming the document."""
    fields = decode_object(value, what=f"document {name}", format_max=FORMAT)
    try:
        return LogWrite(
            log=str(fields["log"]),
            job=str(fields["job"]),
            batch=_number(fields["batch"]),
            ledgers=tuple(PublishedLedger(*map(int, ledger)) for ledger in fields["ledgers"]),
            may_repeat=bool(fields["may_repeat"]),
            starts_at=_number(fields["starts_at"]),
            is_complete=bool(fields["complete"]),
            floor=int(fields["floor"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise MetadataError(f"document {name}: the stored metadata are damaged ({error!r})") from error


def _number(value: Any) -> int | None:
    return None if value is None else int(value)
