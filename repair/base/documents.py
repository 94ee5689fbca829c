"""The documents through which auditor, targets and operators work together. Pure.

=============================  ==================  ===================================================================
document                       written by          contents
=============================  ==================  ===================================================================
``repair/bookies``             auditor, operators  conditions of bookies (:mod:`octavo.metadata.cluster.repair_states`)
``repair/work/BOOKIE``         auditor             the plan of one target
``repair/done/BOOKIE``         the target          which jobs of which plan are done, and what could not be done
``repair/summary``             auditor             what ``octavo repair status`` shows
``repair/checks``              operators, auditor  ledgers that are to be checked, and the results
``repair/blocked/BOOKIE``      the bookie          what the bookie itself cannot make whole: its doubt, its damage
``repair/accepted/LEDGER``     operators           that the loss of entries was accepted, by whom and why
=============================  ==================  ===================================================================

``BOOKIE`` is the id in hexadecimal digits: an id may hold ``:``, the name of a document may not. Every document is
changed by compare-and-set. All but the last are hints: a document that is lost, or written by an auditor that is no
longer elected, costs work, and harms nothing (rules C1 to C5 are checked against the metadata of the ledger).

No document exceeds the store's limit, however long the names in it are (rule A12): a list of what is blocked ends where
its share of the bytes is used up.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from itertools import islice
from typing import Any, Final, Self

from octavo.metadata.encoding import FieldReader, decode_object, encode_object, value_text
from octavo.protocol.ids import ID_MAX, BookieId, LedgerId, is_bookie_id
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.planning import JOBS_MAX, Blocked, BlockedClass, Job, Why

AUDITOR_LOCK: Final = "repair/auditor"
"""The lock whose holder is the auditor."""

SUMMARY: Final = "repair/summary"
CHECKS: Final = "repair/checks"
WORK_PREFIX: Final = "repair/work/"
BLOCKED_PREFIX: Final = "repair/blocked/"
ACCEPTED_PREFIX: Final = "repair/accepted/"

FORMAT: Final = 1

BLOCKED_MAX: Final = 1000
"""Blocked ledgers that the summary names; its counts are of all."""

CHECKS_MAX: Final = 1000
"""Ledgers that wait for a check at a time."""

LIST_BYTES_MAX: Final = 256 * 1024
"""Bytes for the items of one list: half of what the store takes as a document. The other half is for the rest of the
summary, and for the shortest form of every failure of a plan."""

_REASON_CHARACTERS_MAX: Final = 300

_SHORT_REASON_CHARACTERS_MAX: Final = 20
"""Of a failure that is reported in its shortest form: without the bookies on which it depends."""


def work_name(bookie_id: BookieId) -> str:
    """Name of the document with a target's plan."""
    return f"{WORK_PREFIX}{bookie_id.encode().hex()}"


def done_name(bookie_id: BookieId) -> str:
    """Name of the document with a target's report."""
    return f"repair/done/{bookie_id.encode().hex()}"


def blocked_name(bookie_id: BookieId) -> str:
    """Name of the document with what a bookie cannot make whole of its own copies."""
    return f"{BLOCKED_PREFIX}{bookie_id.encode().hex()}"


def accepted_name(ledger_id: LedgerId, term: int | None = None) -> str:
    """Name of the document that records an accepted loss."""
    return f"{ACCEPTED_PREFIX}{ledger_id}" if term is None else f"{ACCEPTED_PREFIX}{ledger_id}-{term}"


def target_of_work(name: str) -> BookieId | None:
    """The target whose plan has this name; None for a name that no plan has."""
    try:
        text = bytes.fromhex(name.removeprefix(WORK_PREFIX)).decode()
    except ValueError:
        return None
    return BookieId(text) if name.startswith(WORK_PREFIX) and is_bookie_id(text) else None


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """The jobs of one target. ``number`` rises with every plan of a target."""

    number: int
    jobs: tuple[Job, ...]
    carried: int = 0
    """So many of the first jobs were in the target's previous plan, and no report said that they were done. If they are
    done in truth, they need not be done again; every other job must be done even if the target has done it before."""


@dataclass(frozen=True, slots=True)
class Report:
    """How far a target is with a plan."""

    plan: int
    """Number of the plan."""
    done: frozenset[int] = frozenset()
    """Jobs of the plan that are done, by their places in it; also those that could not be done."""
    entries_copied: int = 0
    """Entries copied since the target's process began."""
    bytes_copied: int = 0
    failures: tuple[Blocked, ...] = ()
    """Jobs among the done ones that could not be done."""


@dataclass(frozen=True, slots=True)
class BookieFigures:
    """The figures of one bookie in the summary."""

    ledgers: int
    """Ledgers that name it."""
    ledgers_at_margin: int
    """Of those, the ledgers that also name another bookie which is not available."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The knowledge of the auditor, as of its last change. Times are milliseconds since 1970."""

    round_at_ms: int
    """When the last round ended."""
    ledgers: int = 0
    queued: int = 0
    """Ledgers that are to be repaired and are in no plan."""
    copying: int = 0
    """Ledgers in plans that are not done."""
    blocked_counts: Mapping[str, int] = field(default_factory=dict)
    """Blocked ledgers by class."""
    bookies: Mapping[BookieId, BookieFigures] = field(default_factory=dict)
    entries_copied: int = 0
    bytes_copied: int = 0
    bytes_per_second: float = 0.0
    ledgers_per_second: float = 0.0
    queued_since_ms: int | None = None
    """Since when there has been something to do; None when there is nothing."""
    blocked: tuple[Blocked, ...] = ()
    """The first :data:`BLOCKED_MAX` blocked ledgers."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is queued, copied or blocked."""
        return not (self.queued or self.copying or any(self.blocked_counts.values()))


@dataclass(frozen=True, slots=True)
class Check:
    """A ledger that an operator wants checked."""

    ledger_id: LedgerId
    asked_at_ms: int
    short: bool | None = None
    """None until it has been checked; whether anything that it should hold could not be found."""


# --- encoding -----------------------------------------------------------------------------------------------------


def encode_plan(plan: WorkPlan) -> bytes:
    """The stored form."""
    jobs = [[int(job.ledger_id), job.old, job.why.value] for job in plan.jobs]
    return encode_object({"number": plan.number, "jobs": jobs, "carried": plan.carried}, format_number=FORMAT)


def decode_plan(value: bytes, name: str) -> WorkPlan:
    """From the stored form. Raises :class:`MetadataError` naming the document."""
    reader = _reader(value, name)
    jobs = _each(reader, "jobs", _decode_job, JOBS_MAX)
    carried = _number(reader, "carried")
    if carried > len(jobs):
        raise reader.damaged("more jobs are carried over than there are")
    return WorkPlan(_number(reader, "number"), jobs, carried)


def encode_report(report: Report) -> bytes:
    """The stored form. The done jobs are a number in hexadecimal digits with one bit per job.

    Every failure is in it, since a job that is done and has not failed counts as a success. Failures for which there is
    no room in full are shortened to their ledger, interval and class.
    """
    full = _within(map(_blocked_fields, report.failures), LIST_BYTES_MAX)
    short = [_blocked_fields(replace(one, bookies=(), reason=one.reason[:_SHORT_REASON_CHARACTERS_MAX]))
             for one in report.failures[len(full):]]  # fmt: skip
    return encode_object(
        {
            "plan": report.plan,
            "done": f"{sum(1 << at for at in report.done):x}",
            "entries_copied": report.entries_copied,
            "bytes_copied": report.bytes_copied,
            "failures": full + short,
        },
        format_number=FORMAT,
    )


def decode_report(value: bytes, name: str) -> Report:
    """From the stored form. Raises :class:`MetadataError` naming the document."""
    reader = _reader(value, name)
    digits = reader.get("done", str)
    try:
        mask = int(digits, 16)
    except ValueError as error:
        raise reader.damaged("done is not a hexadecimal number") from error
    if mask < 0 or mask >> JOBS_MAX:
        raise reader.damaged(f"done has bits beyond {JOBS_MAX} jobs")
    return Report(
        _number(reader, "plan"),
        frozenset(at for at in range(mask.bit_length()) if mask >> at & 1),
        _number(reader, "entries_copied"),
        _number(reader, "bytes_copied"),
        _each(reader, "failures", _decode_blocked, JOBS_MAX),
    )


def encode_summary(summary: Summary) -> bytes:
    """The stored form. Blocked ledgers and figures of bookies for which there is no room are left out; the counts of
    blocked ledgers are of all."""
    figures = ([name, [one.ledgers, one.ledgers_at_margin]] for name, one in sorted(summary.bookies.items()))
    return encode_object(
        {
            "round_at_ms": summary.round_at_ms,
            "ledgers": summary.ledgers,
            "queued": summary.queued,
            "copying": summary.copying,
            "blocked_counts": dict(summary.blocked_counts),
            "bookies": dict(_within(figures, LIST_BYTES_MAX // 2)),
            "entries_copied": summary.entries_copied,
            "bytes_copied": summary.bytes_copied,
            "bytes_per_second": float(summary.bytes_per_second),
            "ledgers_per_second": float(summary.ledgers_per_second),
            "queued_since_ms": summary.queued_since_ms,
            "blocked": _within(map(_blocked_fields, summary.blocked[:BLOCKED_MAX]), LIST_BYTES_MAX),
        },
        format_number=FORMAT,
    )


def decode_summary(value: bytes) -> Summary:
    """From the stored form. Raises :class:`MetadataError`."""
    reader = _reader(value, SUMMARY)
    counts = reader.get("blocked_counts", dict)
    if not counts.keys() <= {kind.value for kind in BlockedClass} or not all(map(_is_number, counts.values())):
        raise reader.damaged("blocked_counts are not numbers by class")
    bookies: dict[BookieId, BookieFigures] = {}
    for name, figures in reader.get("bookies", dict).items():
        if (
            not is_bookie_id(name)
            or type(figures) is not list
            or len(figures) != 2
            or not all(map(_is_number, figures))
        ):
            raise reader.damaged(f"the figures of bookie {name}")
        bookies[BookieId(name)] = BookieFigures(*figures)
    since = reader.optional("queued_since_ms", int)
    return Summary(
        _number(reader, "round_at_ms"),
        _number(reader, "ledgers"),
        _number(reader, "queued"),
        _number(reader, "copying"),
        counts,
        bookies,
        _number(reader, "entries_copied"),
        _number(reader, "bytes_copied"),
        reader.get("bytes_per_second", float),
        reader.get("ledgers_per_second", float),
        since,
        _each(reader, "blocked", _decode_blocked, BLOCKED_MAX),
    )


def encode_blocked(blocked: Iterable[Blocked]) -> bytes:
    """The stored form. What finds no room is left out."""
    fields = map(_blocked_fields, islice(blocked, BLOCKED_MAX))
    return encode_object({"blocked": _within(fields, LIST_BYTES_MAX)}, format_number=FORMAT)


def decode_blocked(value: bytes, name: str) -> tuple[Blocked, ...]:
    """From the stored form. Raises :class:`MetadataError` naming the document."""
    return _each(_reader(value, name), "blocked", _decode_blocked, BLOCKED_MAX)


def encode_checks(checks: Iterable[Check]) -> bytes:
    """The stored form."""
    fields = [[int(check.ledger_id), check.asked_at_ms, check.short] for check in checks]
    return encode_object({"checks": fields}, format_number=FORMAT)


def decode_checks(value: bytes | None) -> tuple[Check, ...]:
    """From the stored form; none when the document does not exist. Raises :class:`MetadataError`."""
    if value is None:
        return ()
    return _each(_reader(value, CHECKS), "checks", _decode_check, CHECKS_MAX)


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """That an operator closed a ledger although acknowledged entries may be lost."""

    ledger_id: LedgerId
    without: tuple[BookieId, ...]
    """Bookies that were counted as fenced and as denying every entry."""
    at_ms: int
    last_entry_id: int | None
    """The end with which the ledger was closed."""
    reason: str = ""

    def encode(self) -> bytes:
        """The stored form."""
        return encode_object(
            {
                "ledger_id": int(self.ledger_id),
                "without": list(self.without),
                "at_ms": self.at_ms,
                "last_entry_id": self.last_entry_id,
                "reason": self.reason[:_REASON_CHARACTERS_MAX],
            },
            format_number=FORMAT,
        )

    @classmethod
    def decode(cls, value: bytes, name: str) -> Self:
        """From the stored form. Raises :class:`MetadataError` naming the document."""
        reader = _reader(value, name)
        return cls(
            LedgerId(_number(reader, "ledger_id")),
            tuple(_bookie_ids(reader.get("without", list))),
            _number(reader, "at_ms"),
            reader.optional("last_entry_id", int),
            reader.get("reason", str),
        )


# --- parts --------------------------------------------------------------------------------------------------------


def _reader(value: bytes, name: str) -> FieldReader:
    what = f"document {name}"
    return FieldReader(decode_object(value, what=what, format_max=FORMAT), what)


def _is_number(value: Any) -> bool:
    return type(value) is int and value >= 0


def _number(reader: FieldReader, name: str) -> int:
    number = reader.get(name, int)
    if number < 0:
        raise reader.damaged(f"{name} is negative")
    return number


def _each[T](reader: FieldReader, name: str, decode: Callable[[Any], T], most: int) -> tuple[T, ...]:
    values = reader.get(name, list)
    if len(values) > most:
        raise reader.damaged(f"{name} has {len(values)} items, {most} at most")
    try:
        return tuple(decode(value) for value in values)
    except (ValueError, TypeError) as error:
        raise reader.damaged(f"{name}: {error}") from error


def _ledger_id(value: Any) -> LedgerId:
    if type(value) is not int or not 0 <= value <= ID_MAX:
        raise ValueError(f"{value!r} is not a ledger id")
    return LedgerId(value)


def _bookie_id(value: Any) -> BookieId:
    if type(value) is not str or not is_bookie_id(value):
        raise ValueError(f"{value!r} is not a bookie id")
    return BookieId(value)


def _bookie_ids(values: Any) -> list[BookieId]:
    if type(values) is not list:
        raise ValueError("bookies are a list")
    return [_bookie_id(value) for value in values]


def _decode_job(value: Any) -> Job:
    ledger_id, old, why = value
    return Job(_ledger_id(ledger_id), None if old is None else _bookie_id(old), Why(why))


def _within(items: Iterable[list[Any]], bytes_max: int) -> list[list[Any]]:
    """The first items whose stored forms have at most ``bytes_max`` together."""
    kept, left = [], bytes_max
    for item in items:
        left -= len(value_text(item).encode()) + 1
        if left < 0:
            break
        kept.append(item)
    return kept


def _blocked_fields(blocked: Blocked) -> list[Any]:
    return [
        *(int(blocked.ledger_id), blocked.first, blocked.last),
        *(blocked.kind.value, list(blocked.bookies), blocked.reason[:_REASON_CHARACTERS_MAX]),
    ]


def _decode_blocked(value: Any) -> Blocked:
    ledger_id, first, last, kind, bookies, reason = value
    if not _is_number(first) or not (last is None or (type(last) is int and last >= -1)) or type(reason) is not str:
        raise ValueError("something blocked is an interval of ids with a class, bookies and a reason")
    return Blocked(_ledger_id(ledger_id), first, last, BlockedClass(kind), tuple(_bookie_ids(bookies)), reason)


def _decode_check(value: Any) -> Check:
    ledger_id, asked_at_ms, short = value
    if not _is_number(asked_at_ms) or not (short is None or type(short) is bool):
        raise ValueError("a check is a ledger, a time and a result")
    return Check(_ledger_id(ledger_id), asked_at_ms, short)
