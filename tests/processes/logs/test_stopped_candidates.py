"""A process that is stopped between getting the lock of a log and taking the log over (rule P3)."""

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from octavo.client.log.logs import Layout
from support.commands.processes import Up, environment
from support.waiting import WAIT_SECONDS

import octavo

CANDIDATE = Path(__file__).parents[2] / "support" / "programs" / "stopping_candidate.py"
LEASE_SECONDS = 2.0


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data") as cluster:
        yield cluster.wait_ready()


@pytest.mark.parametrize("layout", ["chain", "stream"])
async def test_a_stopped_candidate_deposes_no_leader_when_it_goes_on(up: Up, layout: Layout) -> None:
    async with asyncio.timeout(WAIT_SECONDS), octavo.connect(up.uri, lease_seconds=LEASE_SECONDS) as client:
        log = await client.create_log(f"{layout}/orders", layout=layout)
        async with log.lead() as writer:
            await writer.add(b"former")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(CANDIDATE), up.uri, log.name, str(LEASE_SECONDS)),
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        assert process.stdout is not None
        try:
            said = [(await process.stdout.readline()).decode().strip() for _ in range(2)]
            assert said == ["asks", "stops"]
            async with log.lead() as leader:
                await leader.add(b"leader")
                process.send_signal(signal.SIGCONT)
                assert (await process.stdout.readline()).strip() == b"asks", "it waits for the lock again"
                for _ in range(20):
                    await leader.add(b"undisturbed")
                assert not leader.lost.is_set()
            assert (await process.stdout.readline()).decode().strip() == f"leads {leader.term + 1}"
            assert await process.wait() == 0
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert [entry.payload async for entry in log][-1] == b"candidate"
