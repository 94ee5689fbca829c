"""Kills a real bookie process under load again and again, and checks that it keeps what it acknowledged."""

import asyncio
import contextlib
import random
import signal
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from octavo.metadata import MetadataStore, open_metadata_store
from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.messages import Added, ReadAnswer
from support.clusters.ledgers import LedgerScript
from support.commands.processes import OCTAVO, environment
from support.metadata.ledger_metadata import open_ledger
from support.raw_client import RawClient, add, key_of, read
from support.waiting import WAIT_SECONDS, pause

SETTINGS = """
cache_bytes = 400000
checkpoint_journal_bytes = 600000
checkpoint_seconds = 0.2
entry_log_bytes = 1000000
journal_segment_bytes = 16777216
garbage_seconds = 0.1
compaction_minor_share = 0.9
scrub_pause_seconds = 0.2
"""
"""Flushes, checkpoints, merges, collection and compaction every fraction of a second."""

FRAME_ENTRIES = 20
IN_FLIGHT_FRAMES = 8
LEDGERS = 3
LOOK_SECONDS = 0.02


@dataclass
class LedgerHistory:
    """What was sent to a ledger, and what was acknowledged."""

    script: LedgerScript
    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    deleted: bool = False


class KillCycles:
    """Runs cycles of start, load, kill, start, check."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        self._histories: list[LedgerHistory] = []
        self._uri = f"sqlite:///{directory}/metadata.db"
        self._config = directory / "bookie.toml"
        self.acknowledged = 0
        self.kills_before_ready = 0

    async def run(self, cycles: int) -> None:
        """Run the cycles. Raises AssertionError, naming the ledger, if acknowledged data is lost or changed."""
        await asyncio.to_thread(self._config.write_text, SETTINGS)
        async with await open_metadata_store(self._uri, create=True) as store:
            for cycle in range(cycles):
                if cycle % 4 == 3:  # in the middle of a start, which replays
                    process, _ = await self._start(wait=False)
                    await pause(self._chance.uniform(0.1, 0.6))
                    await self._kill(process)
                    self.kills_before_ready += 1
                process, port = await self._start()
                try:
                    await self._check(port)
                    await self._change_ledgers(store)
                    load = asyncio.ensure_future(self._load(port))
                    await pause(self._chance.uniform(0.05, 0.8))
                finally:
                    await self._kill(process)
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    await load
            process, port = await self._start()
            try:
                await self._check(port)
            finally:
                process.send_signal(signal.SIGTERM)
                assert await process.wait() == 0, "it stops cleanly after all that"

    async def _start(self, *, wait: bool = True) -> tuple[asyncio.subprocess.Process, int]:
        log = self._directory / "bookie.log"
        with log.open("ab") as output:
            start = log.stat().st_size
            process = await asyncio.create_subprocess_exec(
                *OCTAVO, "bookie", "--data-dir", str(self._directory / "bookie"), "--port", "0", "--log-format", "json",
                "--metadata", self._uri, "--config", str(self._config),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, env=environment(),
            )  # fmt: skip
        port = 0
        try:
            # Looks are counted, not seconds: where this test is stopped and goes on later, the bookie was stopped too.
            looks = int(WAIT_SECONDS / LOOK_SECONDS) if wait else 0
            while looks and not port:
                assert process.returncode is None, f"the bookie does not start: {log.read_text()[-2000:]}"
                for line in log.read_bytes()[start:].decode().splitlines():
                    if '"bookie is ready"' in line:
                        port = int(line.partition('"address": "127.0.0.1:')[2].partition('"')[0])
                await pause(LOOK_SECONDS)
                looks -= 1
            assert port or not wait, f"the bookie is not ready in time: {log.read_text()[-2000:]}"
        except BaseException:
            await self._kill(process)
            raise
        return process, port

    async def _kill(self, process: asyncio.subprocess.Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _change_ledgers(self, store: MetadataStore) -> None:
        """Create some ledgers; sometimes delete an old one, whose space is collected under load."""
        live = [history for history in self._histories if not history.deleted]
        while len(live) > LEDGERS:
            doomed = live.pop(self._chance.randrange(len(live)))
            await store.delete_ledger(doomed.script.ledger_id)
            doomed.deleted = True
        for _ in range(2):
            ledger_id = await store.allocate_ledger_id()
            await store.create_ledger(open_ledger(ledger_id))
            self._histories.append(LedgerHistory(LedgerScript(ledger_id, payload_bytes=300)))

    async def _load(self, port: int) -> None:
        """Send frames to every living ledger, many in flight, until the bookie is killed."""
        live = [history for history in self._histories if not history.deleted]
        async with RawClient("127.0.0.1", port) as client:
            await client.greet()
            under_way: deque[tuple[LedgerHistory, range]] = deque()
            while True:
                while len(under_way) < IN_FLIGHT_FRAMES:
                    history = self._chance.choice(live)
                    ids = range(history.sent, history.sent + FRAME_ENTRIES)
                    script = history.script
                    client.send(add(script.ledger_id, script.entries(ids), key=key_of(script.ledger_id)))
                    history.sent = ids.stop
                    under_way.append((history, ids))
                _, outcome = await client.receive_reply()
                history, ids = under_way.popleft()
                assert isinstance(outcome, Added), outcome
                history.acknowledged.update(ids)
                self.acknowledged += len(ids)

    async def _check(self, port: int) -> None:
        async with RawClient("127.0.0.1", port) as client:
            await client.greet()
            for history in self._histories:
                await self._check_ledger(client, history)

    async def _check_ledger(self, client: RawClient, history: LedgerHistory) -> None:
        script, found = history.script, dict[int, bytes]()
        first = 0
        while first < history.sent:
            answer = await client.ask(read(script.ledger_id, first, history.sent - 1))
            if history.deleted and isinstance(answer, NoSuchLedgerError):
                return
            assert isinstance(answer, ReadAnswer), answer
            assert not answer.unknown, f"ledger {script.ledger_id}: {answer.unknown} after a kill"
            found |= {int.from_bytes(sealed[16:24], "big"): bytes(sealed) for sealed in answer.entries}
            first = answer.last_covered + 1
        if history.deleted:
            return  # being deleted: any part of it may be gone
        lost = history.acknowledged - found.keys()
        assert not lost, f"ledger {script.ledger_id} lost {sorted(lost)[:10]} of {len(history.acknowledged)}"
        for entry_id, sealed in found.items():
            assert sealed == script.entry(entry_id), f"ledger {script.ledger_id} entry {entry_id}: other bytes"
        history.acknowledged.update(found)  # seen once, there for ever
