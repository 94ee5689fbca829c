"""Lines into a log, as they come, under one leader."""

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.cli.event_loop import finish
from octavo.cli.ledger.transfer import ADDS_IN_FLIGHT_MAX
from octavo.cli.output import print_json, print_line
from octavo.cli.session import CommandError, describe, print_error
from octavo.protocol.errors import OctavoError

if TYPE_CHECKING:
    from octavo.cli.ledger.lines import LineSplitter
    from octavo.cli.ledger.transfer import ByteSource
    from octavo.cli.output import Progress
    from octavo.client.log.log import Log
    from octavo.client.log.writer.writer import LogWriter

WAITING_NOTED_SECONDS = 1.0
"""How long a command waits for the lead before it says on standard error that it waits."""

INTERRUPTED_SECONDS = 10.0
"""How long a command that is interrupted waits for the acknowledgements of the lines that it has read."""


@dataclass(slots=True)
class AppendReport:
    """The entries that one command has appended and reported so far: acknowledged entries, which have consecutive
    positions."""

    name: str
    """The log's."""
    as_json: bool
    each_position: bool
    """Print each position as soon as it is acknowledged."""
    term: int = 0
    """0 before the command leads."""
    entries: int = 0
    payload_bytes: int = 0
    first_position: int | None = None
    """None before the first acknowledgement."""
    end: int | None = None
    """The position after the last acknowledged entry; None before the first acknowledgement."""

    def acknowledge(self, positions: range, payload_bytes: int) -> None:
        """Count entries that have been acknowledged."""
        self.entries += len(positions)
        self.payload_bytes += payload_bytes
        if self.first_position is None:
            self.first_position = positions.start
        self.end = positions.stop
        for position in positions if self.each_position else ():
            if self.as_json:
                print_json({"position": position})
            else:
                print_line(str(position))

    @contextmanager
    def completed(self) -> Iterator[None]:
        """Print the result once the block has ended, also when it was interrupted while it led. Its errors tell what
        was added, and where to go on."""
        try:
            yield
        except asyncio.CancelledError:
            if self.term:
                self._print()
            raise
        except OctavoError as error:
            raise self._failure(error) from error
        self._print()

    def _print(self) -> None:
        if self.as_json:
            print_json(
                {
                    "name": self.name,
                    "term": self.term,
                    "entries": self.entries,
                    "bytes": self.payload_bytes,
                    "first_position": self.first_position,
                    "end": self.end,
                }
            )
        else:
            print_line(f"log {self.name}: {self}")

    def _failure(self, error: OctavoError) -> Exception:
        if not self.entries and not error.may_have_happened:
            return error
        more = ""
        if error.may_have_happened:
            first = self.end or 0
            more = (
                f"; lines after them may have been added, too: `octavo log read {self.name} --first {first}` shows them"
            )
        return CommandError(f"{describe(error)}; acknowledged before: {self}{more}")

    def __str__(self) -> str:
        if self.first_position is None or self.end is None:
            return "no entries"
        where = f"position {self.first_position}"
        if self.entries > 1:
            where = f"positions {self.first_position} to {self.end - 1}"
        return f"{self.entries} {'entry' if self.entries == 1 else 'entries'} at {where}"


async def lead_log(log: "Log", holder: str) -> "LogWriter":
    """Lead the log; say on standard error that it waits if that takes long. ``holder``: what others see."""
    leading = asyncio.ensure_future(_lead(log, holder))
    try:
        await asyncio.wait([leading], timeout=WAITING_NOTED_SECONDS)
        if not leading.done():
            with contextlib.suppress(OctavoError):
                present = (await log.status()).leader
                print_error(
                    f"waiting to lead log {log.name}" + ("" if present is None else f": it is led by {present!r} now")
                )
        return await asyncio.shield(leading)
    except BaseException:
        leading.cancel()
        outcome = (await finish(asyncio.gather(leading, return_exceptions=True)))[0]
        if not isinstance(outcome, BaseException):
            await finish(outcome.close())
        raise


async def _lead(log: "Log", holder: str) -> "LogWriter":
    return await log.lead(name=holder)


async def append_lines(
    writer: "LogWriter",
    source: "ByteSource",
    splitter: "LineSplitter",
    report: AppendReport,
    *,
    progress: "Progress",
    interrupted_seconds: float = INTERRUPTED_SECONDS,
) -> None:
    """Add each line of ``source``; returns once the last is acknowledged. ``report`` is told of lines as they are
    acknowledged, while the source is open.

    Lines that have been read are added though the call is cancelled or the source fails: their acknowledgements are
    awaited first, by a call that is cancelled for at most ``interrupted_seconds``. Raises what reading and adding
    raise, :class:`EntryTooLargeError` naming the line; :class:`NotLeaderError` as soon as the lead is lost, also while
    the source is silent.
    """
    adding: list[asyncio.Task[None]] = []
    file_bytes = 0

    async def add(payloads: list[bytes]) -> None:
        positions = await writer.add_many(payloads)
        report.acknowledge(positions, sum(map(len, payloads)))

    lost = asyncio.ensure_future(writer.lost.wait())
    try:
        at_end = False
        while not at_end:
            chunk = await _unless_lost(source, lost, writer)
            at_end = not chunk
            payloads = splitter.finish() if at_end else splitter.feed(chunk)
            if payloads:
                adding.append(asyncio.create_task(add(payloads)))
            while len(adding) >= ADDS_IN_FLIGHT_MAX or (at_end and adding):
                await asyncio.shield(adding[0])
                del adding[0]
            file_bytes += len(chunk)
            progress(file_bytes)
    except OctavoError as error:
        outcomes = await finish(asyncio.gather(*adding, return_exceptions=True))
        # Of several failures with one reason, the one about an add in doubt counts.
        in_doubt = (one for one in outcomes if isinstance(one, OctavoError) and one.may_have_happened)
        raise next(in_doubt, error) from None
    finally:
        lost.cancel()
        await _wait_acknowledged(adding, report, interrupted_seconds)


async def _wait_acknowledged(adding: list[asyncio.Task[None]], report: AppendReport, seconds: float) -> None:
    """Wait for what was read before the command was interrupted. Where no add can be acknowledged, as while all bookies
    are full, the command ends all the same."""
    if not adding:
        return
    _, pending = await finish(asyncio.wait(adding, timeout=seconds))
    for task in adding:
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    if pending:
        shown = f"`octavo log show {report.name}` tells where the log ends"
        if report.end is not None:
            shown = f"`octavo log read {report.name} --first {report.end}` shows them"
        print_error(f"the last lines were not acknowledged within {seconds:g} s; some may have been added: {shown}")


async def _unless_lost(source: "ByteSource", lost: asyncio.Future[Any], writer: "LogWriter") -> bytes:
    read: asyncio.Future[bytes] = asyncio.ensure_future(source.read())
    try:
        await asyncio.wait((read, lost), return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            writer.check_usable()
        return await read
    finally:
        read.cancel()
