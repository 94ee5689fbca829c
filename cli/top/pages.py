"""The pages of ``octavo top``: their columns, and how rows are sorted by them. Pure.

A row is what one interval has shown of a bookie (:func:`octavo.cli.rates.compare`) or of a log
(:mod:`octavo.cli.top.logs`). A number that is not known is None, shown as ``-``, and sorted last either way.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from octavo.cli.log.moments import age_in_words
from octavo.protocol.errors import InvalidArgumentError

type Row = Mapping[str, Any]


class PageName(StrEnum):
    """The subject of a page."""

    BOOKIES = "bookies"
    LOGS = "logs"


class Column(NamedTuple):
    """One column of a page."""

    word: str
    """By which ``--sort`` names it."""
    header: str
    value: Callable[[Row], Any]
    """What rows are sorted by."""
    text: Callable[[Row], str]
    is_number: bool = True
    """Aligned to the right, and sorted with the largest first."""


class Page(NamedTuple):
    """See the module."""

    name: PageName
    columns: tuple[Column, ...]

    def column_of(self, word: str) -> int:
        """The index of the column with this word. Raises :class:`InvalidArgumentError`."""
        words = [column.word for column in self.columns]
        if word not in words:
            raise InvalidArgumentError(f"{self.name} cannot be sorted by {word!r}, only by {', '.join(words)}")
        return words.index(word)

    def headers(self) -> list[str]:
        """The titles of the columns."""
        return [column.header for column in self.columns]

    def cells(self, row: Row) -> list[str]:
        """A row as it is shown."""
        return [column.text(row) for column in self.columns]

    def in_order(self, rows: Sequence[Row], column: int, *, reverse: bool) -> list[Row]:
        """The rows by this column: numbers from the largest, words from the first; ``reverse``: the other way."""
        by = self.columns[column]
        known = [row for row in rows if by.value(row) is not None]
        unknown = [row for row in rows if by.value(row) is None]
        return [*sorted(known, key=by.value, reverse=by.is_number != reverse), *unknown]


def _number(value: float | None, unit: float = 1.0) -> str:
    if value is None:
        return "-"
    return f"{value / unit:,.1f}" if unit != 1.0 else f"{value:,.0f}"


def _figure(word: str, header: str, key: str, unit: float = 1.0) -> Column:
    return Column(word, header, lambda row: row[key], lambda row: _number(row[key], unit))


def _word(word: str, header: str, key: str) -> Column:
    return Column(word, header, lambda row: row[key], lambda row: row[key] or "-", is_number=False)


def _free_share(row: Row) -> float | None:
    if row["free_bytes"] is None or not row["total_bytes"]:
        return None
    return float(row["free_bytes"] / row["total_bytes"])


def _free(row: Row) -> str:
    share = _free_share(row)
    return "-" if share is None else f"{100 * share:.0f}%"


def _state(row: Row) -> str:
    return str(row["state"]) + (", in doubt" if row["in_doubt"] else "")


BOOKIES: Final = Page(
    PageName.BOOKIES,
    (
        _word("bookie", "bookie", "bookie_id"),
        Column("state", "state", _state, _state, is_number=False),
        _figure("adds", "adds/s", "adds_per_second"),
        _figure("entries-in", "entries/s", "entries_added_per_second"),
        _figure("bytes-in", "in MB/s", "bytes_added_per_second", 1e6),
        _figure("add-p99", "p99 ms", "add_p99_seconds", 1e-3),
        _figure("reads", "reads/s", "reads_per_second"),
        _figure("entries-out", "entries/s", "entries_read_per_second"),
        _figure("bytes-out", "out MB/s", "bytes_read_per_second", 1e6),
        _figure("read-p99", "p99 ms", "read_p99_seconds", 1e-3),
        _figure("connections", "conns", "connections"),
        _figure("ledgers", "ledgers", "ledgers"),
        _figure("journal", "journal MB", "journal_bytes", 1e6),
        _figure("cache", "cache MB", "cache_bytes", 1e6),
        Column("free", "free", _free_share, _free),
    ),
)


def _end(row: Row) -> str:
    return f"{row['end']:,}{'' if row['end_is_known'] else '+'}"


def _age(row: Row) -> str:
    return age_in_words(row["age_seconds"])


def _leader(row: Row) -> str:
    return "sealed" if row["sealed"] else row["leader"] or "-"


LOGS: Final = Page(
    PageName.LOGS,
    (
        _word("log", "log", "name"),
        Column("leader", "leader", lambda row: row["leader"], _leader, is_number=False),
        _figure("adds", "adds/s", "adds_per_second"),
        Column("end", "end", lambda row: row["end"], _end),
        _figure("size", "closed MB", "bytes", 1e6),
        _figure("lag", "lag", "lag"),
        _word("cursor", "slowest cursor", "slowest_cursor"),
        Column("age", "age", lambda row: row["age_seconds"], _age),
    ),
)


PAGES: Final[Mapping[PageName, Page]] = {page.name: page for page in (BOOKIES, LOGS)}
