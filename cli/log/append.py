"""Lines into a log, as they come, under one leader."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.cli.ledger.transfer import ADDS_IN_FLIGHT_MAX
from octavo.cli.session import finish
from octavo.protocol.errors import OctavoError

if TYPE_CHECKING:
    from octavo.cli.ledger.lines import LineSplitter
    from octavo.cli.ledger.transfer import ByteSource
    from octavo.cli.output import Progress
    from octavo.client.log.writer import LogWriter


@dataclass(slots=True)
class Tally:
    """What one command has appended so far: acknowledged entries, which have consecutive positions."""

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

    def __str__(self) -> str:
        if self.first_position is None or self.end is None:
            return "no entries"
        where = f"position {self.first_position}"
        if self.entries > 1:
            where = f"positions {self.first_position} to {self.end - 1}"
        return f"{self.entries} {'entry' if self.entries == 1 else 'entries'} at {where}"


async def append_lines(
    writer: "LogWriter",
    source: "ByteSource",
    splitter: "LineSplitter",
    tally: Tally,
    *,
    progress: "Progress",
    on_acknowledged: Callable[[range], None],
) -> None:
    """Add each line of ``source``; returns once the last is acknowledged. ``tally`` and ``on_acknowledged`` are told of
    lines as they are acknowledged, while the source is open.

    Lines that have been read are added though the call is cancelled or the source fails: their acknowledgements are
    awaited first. Raises what reading and adding raise, :class:`EntryTooLargeError` naming the line;
    :class:`NotLeaderError` as soon as the lead is lost, also while the source is silent.
    """
    adding: list[asyncio.Task[None]] = []
    file_bytes = 0

    async def add(payloads: list[bytes]) -> None:
        positions = await writer.add_many(payloads)
        tally.acknowledge(positions, sum(map(len, payloads)))
        on_acknowledged(positions)

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
        # Of several failures with one reason, the one that tells of an add in doubt counts.
        in_doubt = (one for one in outcomes if isinstance(one, OctavoError) and one.may_have_happened)
        raise next(in_doubt, error) from None
    finally:
        lost.cancel()
        await finish(asyncio.gather(*adding, return_exceptions=True))


async def _unless_lost(source: "ByteSource", lost: asyncio.Future[Any], writer: "LogWriter") -> bytes:
    read: asyncio.Future[bytes] = asyncio.ensure_future(source.read())
    try:
        await asyncio.wait((read, lost), return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            writer.check_usable()
        return await read
    finally:
        read.cancel()
