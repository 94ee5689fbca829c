"""Programs that add with keys and are killed in the middle, and add again: each key has one entry."""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from support.commands.processes import Up, environment
from support.waiting import WAIT_SECONDS

import octavo

PROGRAM = """
import asyncio, sys
import octavo


async def main():
    async with octavo.connect(sys.argv[1], lease_seconds=2) as client, client.open_log("orders") as log:
        async with log.lead() as writer:

            async def add(number):
                position = await writer.add(b"order %d" % number, key=f"order-{number}")
                print(number, position, flush=True)

            for first in range(0, int(sys.argv[2]), 20):
                await asyncio.gather(*(add(number) for number in range(first, first + 20)))


asyncio.run(main())
"""

ORDERS = 200
KILLS = 4


async def test_each_key_has_one_entry_however_often_programs_die_and_add_again(tmp_path: Path) -> None:
    answers: dict[int, set[int]] = {}
    with Up(tmp_path / "data") as up:
        up.wait_ready()
        async with octavo.connect(up.uri) as client:
            await client.create_log("orders", keys=octavo.KeyWindow(entries=1000))
            for kill in range(KILLS + 1):
                program = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", PROGRAM, up.uri, str(ORDERS)),
                    stdout=asyncio.subprocess.PIPE,
                    env=environment(),
                )
                assert program.stdout is not None
                try:
                    # Each is killed later than the one before: those began again with what was there.
                    seen = 0
                    while seen < (kill + 1) * 30 or kill == KILLS:
                        line = await asyncio.wait_for(program.stdout.readline(), WAIT_SECONDS)
                        if not line.endswith(b"\n"):
                            break
                        number, position = map(int, line.split())
                        answers.setdefault(number, set()).add(position)
                        seen += 1
                finally:
                    if program.returncode is None and kill < KILLS:
                        program.kill()
                    status = await program.wait()
                assert status == (0 if kill == KILLS else -9)
            async with client.open_log("orders") as log:
                entries = [entry async for entry in log]
                found = {number: await log.position_of(f"order-{number}") for number in (0, 7, ORDERS - 1)}
    assert {*Counter(entry.key for entry in entries).values()} == {1}, "no key has two entries"
    there = {entry.key: entry.position for entry in entries}
    assert {number: there[f"order-{number}"] for number in range(ORDERS)} == {
        number: position for number, (position,) in answers.items()
    }, "every answer that any program got is the position of the entry"
    assert all(entry.payload == f"order {(entry.key or '')[6:]}".encode() for entry in entries)
    assert found == {number: there[f"order-{number}"] for number in found}
