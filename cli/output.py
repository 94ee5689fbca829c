"""Results on standard output, progress on standard error. Rich formatting only on a terminal."""

import base64
import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

_COMMANDS = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
"""Characters that a terminal obeys instead of showing them: control characters, ends of lines, and changes of the
direction of writing."""

_ESCAPED = {code: f"\\u{code:04x}" for code in _COMMANDS}
_VISIBLE = {code: chr(code).encode("unicode_escape").decode("ascii") for code in _COMMANDS}


SIGNAL_STATUS_BASE = 128
"""Exit status of a process that a signal ended, as shells show it, without the number of the signal."""


def visible(text: str) -> str:
    """The text as one line that is safe to show on a terminal. Names, reasons and metadata come from clients, and must
    not move the cursor of an operator or hide what stands before them; such characters are shown as ``\\x1b``."""
    return text.translate(_VISIBLE)


def json_text(value: object) -> str:
    """The value as JSON on one line."""
    return without_commands(json.dumps(value, ensure_ascii=False))


def without_commands(text: str) -> str:
    """JSON that is written already, with an escape sequence for each character that a terminal obeys.

    JSON itself escapes only some of them. Outside strings there must be none: a line of JSON, without tabs.
    """
    return text.translate(_ESCAPED)


def print_json(value: object) -> None:
    """One JSON value on a line of its own, flushed: programs may be waiting for it."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def print_line(text: str) -> None:
    """One line of text, flushed. See :func:`visible`."""
    sys.stdout.write(visible(text) + "\n")
    sys.stdout.flush()


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """A number of things in words: "1 ledger", "1,200 ledgers"; ``plural`` where that is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table: with rules on a wide terminal, otherwise in aligned plain columns. Cells are never truncated."""
    cells = [["" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    if sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - `octavo --help` needs no tables
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        console = Console()
        if sum(widths) + 3 * len(widths) + 1 <= console.width:
            table = Table(*headers, header_style="bold")
            for row in cells:
                table.add_row(*map(Text, row))
            console.print(table)
            return
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in [list(headers), *cells])
    sys.stdout.write("".join(f"{visible(line)}\n" for line in lines))
    sys.stdout.flush()


def bytes_as_json(value: bytes) -> str | dict[str, str]:
    """UTF-8 text as a string; other bytes as ``{"base64": ...}``."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def custom_metadata_as_json(custom_metadata: Mapping[str, bytes]) -> dict[str, str | dict[str, str]]:
    """The keys in order, the values as :func:`bytes_as_json` gives them."""
    return {key: bytes_as_json(custom_metadata[key]) for key in sorted(custom_metadata)}


class Progress(Protocol):
    """Receives reports of progress."""

    def __call__(self, done: float, note: str = "") -> None: ...


@contextlib.contextmanager
def progress_bar(title: str, total: float | None, *, as_bytes: bool = False, shown: bool = True) -> Iterator[Progress]:
    """A progress bar on standard error if that is a terminal, otherwise nothing. ``total`` is None if it is not
    known."""
    if not shown or not sys.stderr.isatty():
        yield _silent
        return
    from rich import progress  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    columns: list[Any] = [progress.TextColumn("{task.description}"), progress.BarColumn()]
    if as_bytes:
        columns += [progress.DownloadColumn(), progress.TransferSpeedColumn()]
    else:
        columns += [progress.TimeElapsedColumn()]
    columns.append(progress.TextColumn("{task.fields[note]}"))
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)


def _silent(done: float, note: str = "") -> None:
    pass
