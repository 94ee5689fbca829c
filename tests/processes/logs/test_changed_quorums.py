"""A log whose leader changes its quorums on real bookies, under load, and is killed in the middle (rule T13)."""

import asyncio
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Self

import pytest
from octavo.metadata import open_metadata_store
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.ids import LedgerId
from support.commands.processes import Up, environment
from support.waiting import WAIT_SECONDS, eventually

import octavo

LEADER = Path(__file__).parents[2] / "support" / "programs" / "changing_process.py"


class Leader:
    """A process of ``changing_process.py``, and what it said."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.acknowledged: dict[int, bytes] = {}
        """Position -> payload."""
        self.changed: list[tuple[int, ...]] = []
        self.reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, uri: str) -> Self:
        """Take the log over, and begin to add."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", LEADER, uri, "orders", stdin=pipe, stdout=pipe, env=environment()
        )
        leader = cls(process)
        await leader.has_added(20)
        return leader

    async def has_added(self, count: int) -> None:
        """Return once ``count`` further adds are acknowledged."""
        wanted = len(self.acknowledged) + count
        await eventually(lambda: self._has(wanted))

    async def _has(self, count: int) -> bool:
        assert not self.reading.done(), "it has ended"
        return len(self.acknowledged) >= count

    def ask(self, *quorums: int) -> None:
        """Ask for a change."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"%d %d %d\n" % quorums)

    async def change(self, *quorums: int) -> None:
        """Ask for a change, and wait until it has been made."""
        self.ask(*quorums)
        await eventually(lambda: self._has_changed(quorums))

    async def _has_changed(self, quorums: tuple[int, ...]) -> bool:
        return quorums in self.changed

    async def kill(self) -> dict[int, bytes]:
        """SIGKILL; what it was told until then."""
        self.process.kill()
        await self.process.wait()
        await self.reading
        return self.acknowledged

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            if not line.endswith(b"\n"):
                return
            what, *words = line.decode().split()
            if what == "acked":
                self.acknowledged[int(words[0])] = b"%d:%s" % (self.process.pid, words[1].encode())
            elif what == "changed":
                self.changed.append(tuple(map(int, words)))


async def follow(log: octavo.Log, seen: list[bytes]) -> None:
    """Take in every position once, in order."""
    async with aclosing(log.follow(0)) as entries:
        async for entry in entries:
            assert entry.position == len(seen)
            seen.append(entry.payload)


async def forms(store: MetadataStore) -> list[tuple[int, int, int]]:
    """E, Qw and Qa of each fragment of the only stream."""
    (ledger_id,) = [one async for one in store.list_ledgers()]
    stream = (await store.read_stream(LedgerId(ledger_id))).value
    return [(len(one.bookies), one.write_quorum, one.ack_quorum) for one in stream.fragments]


async def test_a_follower_reads_on_while_quorums_change_and_leaders_are_killed_in_the_middle(tmp_path: Path) -> None:
    acknowledged: dict[int, bytes] = {}
    seen: list[bytes] = []
    with Up(tmp_path / "data", "--bookies", 5) as cluster:
        await asyncio.to_thread(cluster.wait_ready)
        async with (
            await open_metadata_store(cluster.uri) as store,
            octavo.connect(cluster.uri) as client,
            client.create_log("orders", layout="stream") as log,
        ):
            following = asyncio.create_task(follow(log, seen))
            leader = await Leader.start(cluster.uri)
            for quorums in ((5, 3, 2), (2, 2, 2)):
                await leader.change(*quorums)
                await leader.has_added(20)
            assert await forms(store) == [(3, 3, 2), (5, 3, 2), (2, 2, 2)]

            async def stands(form: tuple[int, int, int]) -> bool:
                return (await forms(store))[-1] == form

            for moment, quorums in (("asked", (5, 3, 2)), ("stands", (4, 4, 3))):
                leader.ask(*quorums)
                if moment == "stands":
                    await eventually(lambda wanted=quorums: stands(wanted))  # type: ignore[misc]
                acknowledged |= await leader.kill()
                present = (await forms(store))[-1]
                leader = await Leader.start(cluster.uri)
                assert (await forms(store))[-1] == present, "the next leader keeps to what stands"
            acknowledged |= await leader.kill()
            async with log.take_over() as last:
                assert await last.add(b"last") == last.end - 1
                await eventually(lambda: _has_seen(following, seen, last.end))
            following.cancel()
    assert seen[-1] == b"last"
    assert {position: seen[position] for position in acknowledged} == acknowledged
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(following, WAIT_SECONDS)


async def _has_seen(following: "asyncio.Task[None]", seen: list[bytes], stop: int) -> bool:
    assert not following.done(), following
    return len(seen) >= stop
