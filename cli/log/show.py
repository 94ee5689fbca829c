"""Shows a log and its entries, as JSON and as text."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from octavo.cli.output import counted, print_line, print_table
from octavo.protocol.entries import EPOCH

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from octavo.client.log.documents.chain import Retention
    from octavo.client.log.documents.cursors import CursorState
    from octavo.client.log.seam.status import LogStatus, SegmentStatus
    from octavo.protocol.quorums import Quorums


def cursors_as_json(
    cursors: "Mapping[str, CursorState]", end: int, idle: "Collection[str] | None" = None
) -> list[dict[str, Any]]:
    """The cursors by name, with what each has still to handle; and whether retention ignores it, if that is known."""
    return [
        {
            "name": name,
            "position": cursor.position,
            "behind": max(0, end - cursor.position),
            "touched_at": cursor.touched_at.isoformat(),
            **({} if idle is None else {"idle": name in idle}),
        }
        for name, cursor in sorted(cursors.items())
    ]


def retention_as_json(retention: "Retention") -> dict[str, Any]:
    """The limits; null where there is none."""
    return {"seconds": retention.seconds, "bytes": retention.bytes, "cursors": retention.cursors}


def status_as_json(status: "LogStatus") -> dict[str, Any]:
    """Everything that ``show`` prints."""
    return {
        "name": status.name,
        "log_id": status.log_id,
        "layout": status.layout,
        "full_copies": status.full_copies,
        "first_position": status.first_position,
        "end": status.end,
        "term": status.term,
        "leader": status.leader,
        "sealed": status.sealed,
        "quorums": quorums_as_json(status.quorums),
        "bytes": status.bytes,
        "retention": retention_as_json(status.retention),
        "drops_below": status.drops_below,
        "segments": segments_as_json(status.segments),
        "paged_segments": status.paged_segments,
        "cursors": cursors_as_json(status.cursors, status.end, status.idle_cursors),
        "gaps": [list(gap) for gap in status.gaps],
        "clocks": status.clocks,
    }


def quorums_as_json(quorums: "Quorums") -> list[int]:
    """E, Qw and Qa."""
    return [quorums.ensemble_size, quorums.write_quorum, quorums.ack_quorum]


def segments_as_json(segments: "Sequence[SegmentStatus]") -> list[dict[str, Any]]:
    """The segments, oldest first."""
    return [
        {
            "ledger_id": segment.ledger_id,
            "first_position": segment.first_position,
            "entries": segment.entries,
            "bytes": segment.bytes,
            "term": segment.term,
            "created_at": _time(segment.created_at_ms),
            "quorums": None if segment.quorums is None else quorums_as_json(segment.quorums),
            "owed": None if segment.owed is None else list(segment.owed),
            "bookies": list(segment.bookies),
        }
        for segment in segments
    ]


def print_status(status: "LogStatus") -> None:
    """Facts, then segments, then cursors."""
    facts = {
        "name": status.name,
        "log id": status.log_id,
        "layout": status.layout,
        "positions": f"{status.first_position} to {status.end} (exclusive)",
        "leader": "none; the log is sealed" if status.sealed else status.leader or "none",
        "term": status.term,
        "closed segments": f"{status.bytes} bytes",
        "quorums": quorums_in_words(status.quorums),
        "retention": _retention_and_what_is_due(status),
    }
    if status.full_copies is not None:
        facts["full copies"] = f"{status.full_copies}; {_owed_in_words(status)}"
    if status.clocks:
        facts["clocks"] = f"{status.clocks}; nothing is dropped that is young by any of them"
    if status.gaps:
        facts["given up"] = ", ".join(f"positions {first} to {last}" for first, last in status.gaps)
    width = max(map(len, facts))
    for key, value in facts.items():
        print_line(f"{key:<{width}}  {value}")
    print_line("")
    if status.paged_segments:
        print_line(f"not shown: {counted(status.paged_segments, 'older segment')}")
    keeps_books = status.full_copies is not None
    print_table(
        ["ledger", "first position", "entries", "bytes", "term", "E/Qw/Qa", "created"]
        + ["owes copies of"] * keeps_books,
        [
            (
                segment.ledger_id,
                _known(segment.first_position),
                _known(segment.entries),
                _known(segment.bytes),
                segment.term,
                "-" if segment.quorums is None else "/".join(map(str, quorums_as_json(segment.quorums))),
                _time(segment.created_at_ms),
                *["-" if segment.owed is None else "{} to {}".format(*segment.owed)] * keeps_books,
            )
            for segment in status.segments
        ],
    )
    if status.cursors:
        print_line("")
        print_cursors(status)


def print_cursors(status: "LogStatus") -> None:
    """A table of the log's cursors."""
    print_table(
        ["cursor", "position", "behind", "last heard of", "idle"],
        [
            (cursor["name"], cursor["position"], cursor["behind"], cursor["touched_at"], "idle" * cursor["idle"] or "-")
            for cursor in cursors_as_json(status.cursors, status.end, status.idle_cursors)
        ],
    )


def quorums_in_words(quorums: "Quorums") -> str:
    """E, Qw and Qa as text."""
    return f"E={quorums.ensemble_size}, Qw={quorums.write_quorum}, Qa={quorums.ack_quorum}"


def retention_in_words(retention: "Retention") -> str:
    """The limits as text."""
    limits = []
    if retention.seconds is not None:
        limits.append(f"{retention.seconds:g} seconds")
    if retention.bytes is not None:
        limits.append(f"{retention.bytes} bytes")
    if retention.cursors:
        limits.append("not above the lowest cursor" if limits else "up to the lowest cursor")
    return ", ".join(limits) or "everything is kept"


def _retention_and_what_is_due(status: "LogStatus") -> str:
    limits = retention_in_words(status.retention)
    if status.retention == type(status.retention)():
        return limits
    if status.drops_below > status.first_position:
        return f"{limits}; drops below {status.drops_below} next"
    if status.retention.cursors and not status.cursors:
        return f"{limits}; the log has no cursor, and nothing is dropped before it has one"
    only_cursors = status.retention.seconds is None and status.retention.bytes is None
    if status.retention.cursors and only_cursors and len(status.idle_cursors) == len(status.cursors):
        return f"{limits}; all cursors are idle, and nothing is dropped before one moves"
    return f"{limits}; nothing is due"


def _owed_in_words(status: "LogStatus") -> str:
    owed = sum(segment.owed[1] + 1 - segment.owed[0] for segment in status.segments if segment.owed is not None)
    return f"{owed} entries may lack copies" if owed else "nothing is owed"


def _time(milliseconds: int) -> str:
    return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat()


def _known(value: int | None) -> str:
    return "-" if value is None else str(value)
