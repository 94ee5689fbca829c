"""Disks that fail or fill under a real bookie process."""

import asyncio
import contextlib
import json
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from octavo.metadata import open_metadata_store
from octavo.protocol.errors import BookieReadOnlyError
from octavo.protocol.messages import Added, InfoAnswer, ReadAnswer
from octavo.protocol.messages import Info as InfoRequest
from support.clusters.ledgers import LedgerScript
from support.commands.processes import OCTAVO, environment
from support.disks import failing_disk
from support.metadata.ledger_metadata import open_ledger
from support.raw_client import RawClient, add, key_of, read, seal
from support.waiting import WAIT_SECONDS, eventually, pause

FAILING = (sys.executable, "-P", str(Path(failing_disk.__file__)))


class Running:
    """A bookie process and one connection to it."""

    def __init__(self, process: asyncio.subprocess.Process, client: RawClient, log: Path, port: int) -> None:
        self.process = process
        self.client = client
        self.log = log
        self.port = port

    def anonymous_bytes(self) -> int:
        """Resident memory that is no file's."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no RssAnon")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


@asynccontextmanager
async def running(directory: Path, *command: str, settings: str = "") -> AsyncIterator[Running]:
    config, log = directory / "bookie.toml", directory / "bookie.log"
    config.write_text(settings)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, "bookie", "--data-dir", str(directory / "bookie"), "--port", "0", "--log-format", "json",
            "--metadata", f"sqlite:///{directory}/metadata.db", "--config", str(config),
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=environment(),
        )  # fmt: skip
    try:
        port = 0

        def has_logged_its_port() -> bool:
            nonlocal port
            assert process.returncode is None, log.read_text()
            _, _, rest = log.read_text().partition('"address": "127.0.0.1:')
            port = int(rest.partition('"')[0] or 0)
            return port != 0

        await eventually(has_logged_its_port)
        async with RawClient("127.0.0.1", port) as client:
            await client.greet()
            yield Running(process, client, log, port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def new_ledger(directory: Path, *, payload_bytes: int = 100) -> LedgerScript:
    async with await open_metadata_store(f"sqlite:///{directory}/metadata.db", create=True) as store:
        ledger_id = await store.allocate_ledger_id()
        await store.create_ledger(open_ledger(ledger_id))
        return LedgerScript(ledger_id, payload_bytes=payload_bytes)


def frame(script: LedgerScript, ids: range) -> Any:
    return add(script.ledger_id, script.entries(ids), key=key_of(script.ledger_id))


async def check(client: RawClient, script: LedgerScript, acknowledged: int, sent: int) -> None:
    found: list[bytes] = []
    first = 0
    while first < sent:
        answer = await client.ask(read(script.ledger_id, first, sent - 1))
        assert isinstance(answer, ReadAnswer), answer
        assert not answer.unknown
        found += [bytes(sealed) for sealed in answer.entries]
        first = answer.last_covered + 1
    assert len(found) >= acknowledged
    assert found == script.entries(range(len(found)))


async def test_a_failed_sync_ends_the_bookie_at_once_and_nothing_is_acknowledged_after_it(tmp_path: Path) -> None:
    script, trigger = await new_ledger(tmp_path), tmp_path / "trigger"
    async with running(tmp_path, *FAILING, str(trigger)) as bookie:
        for entry_id in range(50):
            assert isinstance(await bookie.client.ask(frame(script, range(entry_id, entry_id + 1))), Added)
        trigger.write_text("sync")
        outcomes = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for entry_id in range(50, 60):
                bookie.client.send(frame(script, range(entry_id, entry_id + 1)))
            while True:
                outcomes.append((await bookie.client.receive_reply())[1])
        assert not any(isinstance(outcome, Added) for outcome in outcomes), outcomes
        async with asyncio.timeout(WAIT_SECONDS):
            assert await bookie.process.wait() == 1
        last = bookie.lines()[-1]
        assert last["event"] == "bookie stops at once"
        assert "Input/output error" in last["reason"]
    trigger.unlink()
    async with running(tmp_path, *OCTAVO) as bookie:
        await check(bookie.client, script, 50, 60)
        assert isinstance(await bookie.client.ask(frame(script, range(60, 61))), Added)


async def test_a_sync_that_fails_while_the_bookie_stops_is_told_as_what_it_is(tmp_path: Path) -> None:
    script, trigger = await new_ledger(tmp_path), tmp_path / "trigger"
    async with running(tmp_path, *FAILING, str(trigger)) as bookie:
        assert isinstance(await bookie.client.ask(frame(script, range(20))), Added)
        trigger.write_text("sync")
        bookie.process.terminate()
        async with asyncio.timeout(WAIT_SECONDS):
            assert await bookie.process.wait() == 1
        events = [line["event"] for line in bookie.lines()]
        assert events[-1] == "bookie stops at once"
        assert "bookie is stopping" in events
        assert "bookie has stopped" not in events
        assert "Traceback" not in bookie.log.read_text()
        assert "Input/output error" in bookie.lines()[-1]["reason"]
    trigger.unlink()
    async with running(tmp_path, *OCTAVO) as bookie:
        await check(bookie.client, script, 20, 20)


async def flood(port: int, ledger_id: int, frames: int) -> None:
    """Frames of 64 kB as fast as the socket takes them, without waiting for answers."""
    async with RawClient("127.0.0.1", port) as client:
        await client.greet()

        async def answers() -> None:
            for _ in range(frames):
                _, outcome = await client.receive_reply()
                assert isinstance(outcome, Added), outcome

        answering = asyncio.ensure_future(answers())
        for number in range(frames):
            client.send(add(ledger_id, seal(ledger_id, number * 4, [bytes(16_000)] * 4)))
            await client.writer.drain()
        await answering


async def test_a_flood_over_a_slow_disk_waits_at_the_sockets_and_not_in_memory(tmp_path: Path) -> None:
    trigger, cache_bytes, ledgers, frames = tmp_path / "trigger", 2 << 20, 8, 200
    settings = f"cache_bytes = {cache_bytes}\njournal_segment_bytes = 16777216\nscrub_bytes_per_second = 0\n"
    async with running(tmp_path, *FAILING, str(trigger), settings=settings) as bookie:
        await flood(bookie.port, 100, 100)  # what the process needs anyway
        before = most = bookie.anonymous_bytes()
        trigger.write_text("slow")
        floods = [asyncio.ensure_future(flood(bookie.port, ledger_id, frames)) for ledger_id in range(1, ledgers + 1)]
        while not all(task.done() for task in floods):
            most = max(most, bookie.anonymous_bytes())
            await pause()
        await asyncio.gather(*floods)
        grown, sent = most - before, ledgers * frames * 64_000
        # Generations of the cache, what waits for the journal, its buffers, and what each connection has sent last.
        assert grown < 6 * cache_bytes + ledgers * (1 << 20) < sent / 4, f"{grown >> 20} MiB of {sent >> 20} sent"


async def wait_for_state(bookie: Running, state: str) -> None:
    async def has_state() -> bool:
        answer = await bookie.client.ask(InfoRequest())
        assert isinstance(answer, InfoAnswer), answer
        return answer.facts["state"] == state

    await eventually(has_state, f"the bookie is {state}")


SMALL = (
    "cache_bytes = 300000\ncheckpoint_seconds = 0.1\nentry_log_bytes = 2000000\njournal_segment_bytes = 16777216\n"
    "disk_check_seconds = 0.05\n"
)


class Adder:
    """Adds frame after frame to one ledger, and knows how many entries were acknowledged."""

    def __init__(self, client: RawClient, script: LedgerScript) -> None:
        self._client = client
        self._script = script
        self.acknowledged = 0

    async def add(self) -> bool:
        """One frame; False when the bookie is read-only."""
        ids = range(self.acknowledged, self.acknowledged + 20)
        outcome = await self._client.ask(frame(self._script, ids))
        if isinstance(outcome, BookieReadOnlyError):
            return False
        assert isinstance(outcome, Added), outcome
        self.acknowledged = ids.stop
        return True

    async def check(self) -> None:
        await check(self._client, self._script, self.acknowledged, self.acknowledged)


async def test_a_bookie_on_a_full_disk_turns_read_only_and_comes_back_by_itself(tmp_path: Path) -> None:
    script, trigger = await new_ledger(tmp_path, payload_bytes=2_000), tmp_path / "trigger"
    async with running(tmp_path, *FAILING, str(trigger), settings=SMALL) as bookie:
        adder = Adder(bookie.client, script)
        for _ in range(20):
            assert await adder.add()
        trigger.write_text("full")
        async with asyncio.timeout(WAIT_SECONDS):
            while await adder.add():
                pass
        await wait_for_state(bookie, "read-only")
        await adder.check()
        assert bookie.process.returncode is None
        trigger.unlink()
        await wait_for_state(bookie, "writable")
        assert await adder.add()
        await adder.check()
    async with running(tmp_path, *OCTAVO, settings=SMALL) as bookie:
        await check(bookie.client, script, adder.acknowledged, adder.acknowledged)


async def test_a_write_that_the_system_cuts_short_loses_nothing(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: an entry log that has reached the limit is refused in the middle of a write, and another begun.
    Journal segments are as large as the limit already."""
    script = await new_ledger(tmp_path, payload_bytes=20_000)
    settings = SMALL.replace("entry_log_bytes = 2000000", "entry_log_bytes = 200000000")
    async with running(tmp_path, *OCTAVO, settings=settings) as bookie:
        _, hard = resource.prlimit(bookie.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(bookie.process.pid, resource.RLIMIT_FSIZE, (16 * 1024 * 1024, hard))
        adder = Adder(bookie.client, script)
        async with asyncio.timeout(WAIT_SECONDS):
            while adder.acknowledged * 20_000 < 40_000_000:
                if not await adder.add():
                    await wait_for_state(bookie, "writable")
        await adder.check()
        assert any("disk full" in line["event"] for line in bookie.lines())
        bookie.process.terminate()
        assert await bookie.process.wait() == 0
    logs = sorted(path.stat().st_size for path in (tmp_path / "bookie" / "entries").glob("*.log"))
    assert logs[-1] <= 16 * 1024 * 1024
    assert len(logs) >= 3
    async with running(tmp_path, *OCTAVO, settings=settings) as bookie:
        await check(bookie.client, script, adder.acknowledged, adder.acknowledged)
