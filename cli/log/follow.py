"""Entries of a log to standard output as they come."""

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable

from octavo.cli.ledger.pieces import write_pieces
from octavo.cli.log.forms import Format
from octavo.client.log.seam.entries import Gap, LogEntry


async def write_entries(
    entries: AsyncIterable[LogEntry | Gap],
    form: Format,
    *,
    on_written: Callable[[int], Awaitable[object]] | None = None,
    on_gap: Callable[[Gap], None] | None = None,
) -> None:
    """Write ``entries`` to standard output until they end.

    ``on_written`` gets the position after the last entry that has been written and flushed.
    """

    async def pieces() -> AsyncGenerator[tuple[bytes, int]]:
        async for entry in entries:
            if isinstance(entry, LogEntry):
                yield form(entry), entry.position + 1
            else:
                assert on_gap is not None, "gaps come only to those that ask for them"
                on_gap(entry)
                yield b"", entry.last + 1

    await write_pieces(pieces(), on_written=on_written)
