"""Drivers of Spark killed while they add a batch to a log, and started again: each row is there once (rule X2)."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from support.commands.processes import Up, environment
from support.spark import write_ledger
from support.tree import ROOT
from support.waiting import WAIT_SECONDS

import octavo

PROGRAM = Path(__file__).with_name("log_sink_program.py")
ROWS = 40_000
KILLED_AT = (1, 7_000, 13_000, 25_000)
"""How much of the log there is when the driver is killed: twice with the process that commits, twice without. That one
then goes on for a while, beside the next driver."""


async def test_each_row_is_there_once_however_often_the_driver_dies(tmp_path: Path) -> None:
    with Up(tmp_path / "data") as up:
        up.wait_ready()
        source = await asyncio.to_thread(write_ledger, up.uri, [b"%d" % n for n in range(ROWS)])
        async with octavo.connect(up.uri) as client, client.create_log("orders", keys=octavo.KeyWindow(5)) as log:
            for kill, size in enumerate(KILLED_AT):
                driver = await started(up.uri, source, tmp_path)
                try:
                    async with asyncio.timeout(3 * WAIT_SECONDS):
                        async for entry in log.follow(min(size, await log.refresh())):
                            if entry.position >= size:
                                break
                finally:
                    for pid in session_of(driver.pid) if kill % 2 else [driver.pid, *java_of(driver.pid)]:
                        os.kill(pid, signal.SIGKILL)
                    await driver.wait()
            driver = await started(up.uri, source, tmp_path)
            async with asyncio.timeout(3 * WAIT_SECONDS):
                assert await driver.wait() == 0
            await log.refresh()
            found = [int(entry.payload) async for entry in log]
        # Not one comparison: pytest would take minutes to word how two lists of that length differ.
        assert len(found) == ROWS
        assert set(found) == set(range(ROWS))
        assert max(found[:20_000]) == 19_999, "one batch after the other"


async def started(uri: str, source: int, folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, str(PROGRAM), uri, str(source), "orders", str(folder)),
        env=environment(PYTHONPATH=str(ROOT / "tests")),
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )


def session_of(leader: int) -> list[int]:
    """Every process of the session, the leader first."""
    found = [leader]
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and int(name) != leader and os.getsid(int(name)) == leader:
                found.append(int(name))
        except ProcessLookupError:
            continue
    return found


def java_of(leader: int) -> list[int]:
    """The Java processes of the session."""
    return [pid for pid in session_of(leader) if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8") == "java\n"]
