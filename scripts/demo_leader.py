"""A leader of the demo's log, or a standby that waits to lead: adds the sample's lines until its standard input ends.

    demo_leader.py URI LOG NAME

Position p of the log gets line p (modulo their number) from either process, so every byte can be checked. Reports on
standard output, one JSON object a line: ``{"leading": term, "first_position": p}`` once it leads, then ``{"end": p}``,
all below ``p`` being acknowledged.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import uvloop

import octavo

SAMPLE = Path(__file__).parent / "sample" / "dpkg.log"

LEASE_SECONDS = 2.0
"""How long a standby waits after the leader's death."""

BATCH_LINES = 2000
ADDS_IN_FLIGHT_MAX = 4


def report(**facts: int) -> None:
    """Tell the demo."""
    print(json.dumps(facts), flush=True)


async def lead(uri: str, log_name: str, name: str) -> None:
    """Wait for the lead, then add until standard input ends."""
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    async with (
        octavo.connect(uri, lease_seconds=LEASE_SECONDS) as client,
        client.open_log(log_name, password=os.environb.get(b"OCTAVO_PASSWORD", b"")) as log,
        log.lead(name=name) as writer,
    ):
        first = position = writer.end
        report(leading=writer.term, first_position=first)
        stopping = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        pending: list[asyncio.Future[range]] = []
        while not stopping.done():
            batch = [lines[at % len(lines)] for at in range(position, position + BATCH_LINES)]
            pending.append(asyncio.ensure_future(writer.add_many(batch)))
            position += BATCH_LINES
            if len(pending) >= ADDS_IN_FLIGHT_MAX:
                report(end=(await pending.pop(0)).stop)
        for adds in pending:
            report(end=(await adds).stop)


if __name__ == "__main__":
    asyncio.run(lead(*sys.argv[1:]), loop_factory=uvloop.new_event_loop)
