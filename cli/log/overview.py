"""Prints what ``octavo log list`` finds."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from octavo.cli.log.moments import age_in_words
from octavo.cli.output import print_json, print_table
from octavo.cli.session import print_error
from octavo.client.log.overview import LogOverview, UnreadableLog

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


async def print_overviews(overviews: AsyncIterator[LogOverview | UnreadableLog], *, as_json: bool) -> None:
    """A table, or one object per log. Logs that cannot be understood are reported on standard error, at the end."""
    rows: list[list[object]] = []
    unreadable: list[UnreadableLog] = []
    now_ms = time.time() * 1000
    async for log in overviews:
        if isinstance(log, UnreadableLog):
            unreadable.append(log)
        elif as_json:
            print_json(overview_as_json(log))
        else:
            rows.append(_cells(log, now_ms))
    if rows:
        print_table(["log", "end", "leader", "size", "age"], rows)
    for one in unreadable:
        print_error(one.reason)


def overview_as_json(log: LogOverview) -> dict[str, Any]:
    """Everything that is known of the log."""
    facts = log._asdict()
    del facts["created_at_ms"]
    return {**facts, "created_at": (_EPOCH + timedelta(milliseconds=log.created_at_ms)).isoformat()}


def size_in_words(size: float) -> str:
    """A number of bytes in its largest decimal unit: ``812 B``, ``1.3 MB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _cells(log: LogOverview, now_ms: float) -> list[object]:
    return [
        log.name,
        f"{log.end}{'' if log.end_is_known else '+'}",
        "sealed" if log.sealed else log.leader or "-",
        size_in_words(log.bytes),
        age_in_words((now_ms - log.created_at_ms) / 1000),
    ]
