"""Writers of real bookies that are killed, hang and come back: failed ones are replaced and no add fails."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from support.commands.processes import Up, free_neighbours
from support.waiting import WAIT_SECONDS, pause

import octavo as octavo_client

BOOKIES = 5

SHAPES = [(3, 3, 2), (4, 3, 2), (4, 2, 1), (3, 3, 3), (2, 2, 2)]
"""The usual one, E > Qw, Qa = 1, Qw = Qa: each leaves a spare."""

HASTY: dict[str, Any] = {"bookie_loss_seconds": 0.02, "reconnect_delay_seconds_max": 0.2}
"""Options under which a killed bookie is replaced before it is back."""

NUMBERS = itertools.count()
"""Of logs: a test that runs again makes another one."""

PRODUCERS = 4
PATIENCE_SECONDS = WAIT_SECONDS

IDLE_SECONDS = 0.05
"""Between two adds of a producer while the test waits for something else: processes that start need the processors."""


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    directory = module_folder / "data"
    with Up(directory, "--bookies", BOOKIES, base_port=free_neighbours(BOOKIES)) as cluster:
        yield cluster.wait_ready()


@pytest.fixture
def names(up: Up) -> dict[str, str]:
    """Bookie id -> the name by which `octavo up` knows it."""
    return up.names


class Load:
    """A ledger, and producers that add to it one entry after another until told to stop. None may fail."""

    def __init__(self, ledger: octavo_client.LedgerWriter) -> None:
        self.ledger = ledger
        self.acknowledged: dict[int, bytes] = {}
        self._more = asyncio.Event()
        self._stopping = False
        self._growing = 0
        self._tasks = [asyncio.create_task(self._produce(number)) for number in range(PRODUCERS)]

    async def _produce(self, number: int) -> None:
        count = 0
        while not self._stopping:
            payload = b"producer %d, entry %d of its own" % (number, count)
            count += 1
            self.acknowledged[await self.ledger.add(payload)] = payload
            self._more.set()
            await (pause() if self._growing else pause(IDLE_SECONDS))

    async def grow(self, count: int) -> None:
        """Return once ``count`` more are acknowledged, or a producer has failed."""
        target = len(self.acknowledged) + count
        self._growing += 1
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(self.acknowledged) < target and not any(task.done() for task in self._tasks):
                    self._more.clear()
                    await self._more.wait()
        finally:
            self._growing -= 1

    def cancel(self) -> None:
        """End the producers: the test has failed."""
        for task in self._tasks:
            task.cancel()

    async def until_not_written_by(self, bookie_id: str) -> None:
        """Return once the bookie is in the ensemble no more."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while bookie_id in self.ledger.metadata.last_fragment.bookies:
                await self.grow(1)

    async def end(self) -> None:
        """Stop the producers, none of which has failed, and close the ledger."""
        self._stopping = True
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.gather(*self._tasks)
        await self.ledger.close()

    async def check(self, client: octavo_client.Client) -> None:
        """Every acknowledged entry is read, with its bytes and at its id, and nothing else."""
        async with client.open_ledger(self.ledger.id) as reader:
            read = {entry.entry_id: entry.payload async for entry in reader}
        assert list(read) == list(range(len(read)))
        assert read == self.acknowledged
        firsts = [fragment.first_entry_id for fragment in reader.metadata.fragments]
        assert firsts == sorted(set(firsts))
        assert all(len(set(fragment.bookies)) == len(fragment.bookies) for fragment in reader.metadata.fragments)


@contextlib.asynccontextmanager
async def loads(up: Up, **options: Any) -> AsyncIterator[list[Load]]:
    """A ledger of each shape under load. They are closed, and read by another client, on the way out."""
    async with octavo_client.connect(up.uri, **options) as client:
        under_load = [Load(await client.create_ledger(*shape)) for shape in SHAPES]
        try:
            yield under_load
        except BaseException:
            for load in under_load:
                load.cancel()
            raise
        await asyncio.gather(*(load.end() for load in under_load))
    async with octavo_client.connect(up.uri) as fresh:
        for load in under_load:
            await load.check(fresh)


async def test_every_bookie_is_killed_in_turn_and_no_add_fails(up: Up) -> None:
    async with loads(up, **HASTY) as under_load:
        for name in sorted(up.pids):
            await asyncio.gather(*(load.grow(20) for load in under_load))
            up.kill_bookie(name)
            await asyncio.gather(*(load.grow(100) for load in under_load))
            await asyncio.to_thread(up.wait_for, "started again", name)
        for load in under_load:
            await up.make_ensemble_change(load.ledger, partial(load.grow, 100))
    assert all(len(load.ledger.metadata.fragments) > 1 for load in under_load)


async def test_a_bookie_that_hangs_is_replaced_and_no_add_fails(up: Up, names: dict[str, str]) -> None:
    """It keeps its connections and answers nothing: only the time-out shows it."""
    async with loads(up, request_timeout_seconds=0.5, **HASTY) as under_load:
        hung = under_load[0].ledger.metadata.last_fragment.bookies[0]
        hit = [load for load in under_load if hung in load.ledger.metadata.last_fragment.bookies]
        with up.hanging(up.pids[names[hung]]):
            await asyncio.gather(*(load.until_not_written_by(hung) for load in hit))
            await asyncio.gather(*(load.grow(20) for load in under_load))


async def test_the_example_of_the_protocol_has_fragments_at_0_and_12(up: Up, names: dict[str, str]) -> None:
    """Entries 0 to 11 on the first three bookies; then one of them fails, and 12 goes to another in its place.

    It hangs: one that was killed may be back before a busy machine has replaced it, and is kept then."""
    async with (
        octavo_client.connect(up.uri, request_timeout_seconds=0.5, **HASTY) as client,
        client.create_ledger(3, 3, 3) as ledger,
    ):
        await ledger.add_many([b"entry %d" % number for number in range(12)])
        first, failed, third = ledger.metadata.last_fragment.bookies
        with up.hanging(up.pids[names[failed]]):
            assert await ledger.add(b"entry 12") == 12
    shown = up.run("ledger", "show", ledger.id, "--json").json
    assert [fragment["first_entry_id"] for fragment in shown["fragments"]] == [0, 12]
    spare = shown["fragments"][1]["bookies"][1]
    assert shown["fragments"][0]["bookies"] == [first, failed, third]
    assert shown["fragments"][1]["bookies"] == [first, spare, third]
    assert spare not in (first, failed, third)
    read = up.run("ledger", "read", ledger.id)
    assert read.stdout == b"".join(b"entry %d\n" % number for number in range(13))


async def test_a_writer_that_adds_now_and_then_gets_its_third_copy_back(up: Up, names: dict[str, str]) -> None:
    """Its adds are acknowledged by the other two before a spare is found: that must not end the search."""
    async with octavo_client.connect(up.uri, **HASTY) as client:
        for _ in range(3):
            async with client.create_ledger(3, 3, 2) as ledger:
                await ledger.add(b"first")
                failed = ledger.metadata.last_fragment.bookies[1]
                while failed in ledger.metadata.last_fragment.bookies:
                    # Again if the bookie was back before the writer replaced it.
                    up.kill_bookie(names[failed])
                    started = asyncio.ensure_future(asyncio.to_thread(up.wait_for, "started again", names[failed]))
                    while failed in ledger.metadata.last_fragment.bookies and not started.done():
                        await ledger.add(b"now and then")
                        await pause(0.05)
                    await started


async def test_empty_and_largest_entries_survive_a_change_of_the_ensemble(up: Up) -> None:
    payloads = [b"", b"x" * ENTRY_PAYLOAD_BYTES_MAX, b"", b"\x00", b"y" * ENTRY_PAYLOAD_BYTES_MAX, b""]
    custom = {"app": b"orders", "empty": b"", "bytes": bytes(range(256))}
    async with (
        octavo_client.connect(up.uri, **HASTY) as client,
        client.create_ledger(3, 2, 2, custom_metadata=custom) as ledger,
    ):
        added = 0

        async def add() -> None:
            nonlocal added
            await ledger.add_many(payloads)
            added += 1

        await add()
        await up.make_ensemble_change(ledger, add)
        with pytest.raises(octavo_client.EntryTooLargeError):
            await ledger.add(bytes(ENTRY_PAYLOAD_BYTES_MAX + 1))
    async with octavo_client.connect(up.uri) as fresh, fresh.open_ledger(ledger.id) as reader:
        assert [entry.payload async for entry in reader] == payloads * added
        assert reader.metadata.custom_metadata == custom
        assert len(reader.metadata.fragments) > 1
        assert reader.length == added * sum(map(len, payloads))


async def test_crash_of_every_bookie_at_once_loses_nothing_that_a_living_writer_has_not_forced(up: Up) -> None:
    """Rule W10, with `kill -9` of all bookies while a force is under way."""
    payloads = [b"entry %d" % number for number in range(1500)]
    async with (
        octavo_client.connect(up.uri, bookie_loss_seconds=30, force_interval_seconds=60) as client,
        client.create_ledger(3, 3, 2, sync="deferred") as ledger,
    ):
        await ledger.add_many(payloads[:500])
        await ledger.force()
        assert ledger.last_add_confirmed == 499
        await ledger.add_many(payloads[500:1000])
        force = asyncio.ensure_future(ledger.force())
        await asyncio.sleep(0)
        for name in up.pids:
            up.kill_bookie(name)
        assert await ledger.add_many(payloads[1000:]) == range(1000, 1500)
        await force
        for _ in range(BOOKIES):
            await asyncio.to_thread(up.wait_for, "started again")
    assert up.run("ledger", "read", ledger.id).stdout == b"".join(payload + b"\n" for payload in payloads)
    assert up.run("ledger", "show", ledger.id, "--json").json["sync"] == "deferred"


async def test_a_force_is_completed_by_the_bookie_that_replaces_a_killed_one(up: Up, names: dict[str, str]) -> None:
    """Rule W10: the new member gets everything that was not forced, and counts only for what it has on its disk."""
    payloads = [b"entry %d" % number for number in range(1000)]
    async with (
        octavo_client.connect(up.uri, **HASTY, force_interval_seconds=60) as client,
        client.create_ledger(3, 3, 3, sync="deferred") as ledger,
    ):
        await ledger.add_many(payloads[:500])
        await ledger.force()
        await ledger.add_many(payloads[500:])
        killed = (await client.ledger_metadata(ledger.id)).fragments[-1].bookies[0]
        with up.hanging(up.process.pid):  # else the bookie may be back before a busy machine has replaced it
            up.kill_bookie(names[killed])
            await ledger.force()
        assert ledger.last_add_confirmed == 999
        fragments = (await client.ledger_metadata(ledger.id)).fragments
        assert [fragment.first_entry_id for fragment in fragments] == [0, 500]
        assert killed not in fragments[-1].bookies
        await asyncio.to_thread(up.wait_for, "started again")
    assert up.run("ledger", "read", ledger.id).stdout == b"".join(payload + b"\n" for payload in payloads)


async def test_a_writer_finds_out_that_its_ledger_was_deleted(up: Up) -> None:
    async def add_for_ever(ledger: octavo_client.LedgerWriter) -> None:
        while True:
            await ledger.add(b"y")
            await pause()

    async with octavo_client.connect(up.uri) as client:
        ledger = await client.create_ledger(3, 3, 2)
        await ledger.add(b"x")
        assert up.run("ledger", "delete", ledger.id).status == 0
        with pytest.raises(octavo_client.NoSuchLedgerError, match=f"ledger {ledger.id} has been deleted"):
            await asyncio.wait_for(add_for_ever(ledger), PATIENCE_SECONDS)
        with pytest.raises(octavo_client.NoSuchLedgerError) as raised:
            await ledger.add(b"z")
        assert not raised.value.may_have_happened
        with pytest.raises(octavo_client.NoSuchLedgerError):
            await ledger.close()


async def test_a_log_that_requires_all_copies_waits_without_a_spare(up: Up, names: dict[str, str]) -> None:
    """Rules G2 and G4: adds wait once the window is full, and closing is refused; nothing fails or is lost."""
    options: dict[str, Any] = {"request_timeout_seconds": 0.5, "window_entries": 20, "close_timeout_seconds": 1.0}
    name = f"whole-{next(NUMBERS)}"
    async with (
        octavo_client.connect(up.uri, **options, **HASTY) as client,
        client.create_log(name, BOOKIES, BOOKIES, 3, layout="stream", full_copies="required") as log,
    ):
        writer = await log.lead()
        assert await writer.add(b"0") == 0
        (segment,) = (await log.status()).segments
        # In a thread: a leader that stands still loses its lock.
        shown = await asyncio.to_thread(up.run, "ledger", "show", segment.ledger_id, "--json")
        with up.hanging(up.pids[names[shown.json["fragments"][-1]["bookies"][0]]]):
            adding = [asyncio.ensure_future(writer.add(b"%d" % number)) for number in range(1, 60)]
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await adding[18] == 19
            with pytest.raises(octavo_client.UnderReplicatedError):
                await writer.close()
            assert not adding[-1].done()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await asyncio.gather(*adding) == list(range(1, 60))
        await writer.close()
    assert up.run("log", "read", name).stdout == b"".join(b"%d\n" % number for number in range(60))
    stream = up.run("ledger", "show", segment.ledger_id, "--json").json
    assert stream["full_copies"] == "required"
    assert all(fragment["debt"] == [] for fragment in stream["fragments"])


async def test_a_log_that_requires_all_copies_goes_on_with_a_spare(up: Up, names: dict[str, str]) -> None:
    """Rule G3: the spare has every copy before it is a member, and the log rests without the bookie that hangs."""
    name = f"whole-{next(NUMBERS)}"
    async with octavo_client.connect(up.uri, request_timeout_seconds=0.5, window_entries=20, **HASTY) as client:
        log = await client.create_log(name, 4, 4, 2, layout="stream", full_copies="required")
        async with log, log.lead() as writer:
            await writer.add_many([b"%d" % number for number in range(30)])
            (segment,) = (await log.status()).segments
            shown = await asyncio.to_thread(up.run, "ledger", "show", segment.ledger_id, "--json")
            before = shown.json["fragments"][-1]["bookies"]
            with up.hanging(up.pids[names[before[1]]]):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await writer.add_many([b"%d" % number for number in range(30, 90)])
                    await writer.close()
    stream = up.run("ledger", "show", segment.ledger_id, "--json").json
    assert stream["state"] == "at-rest"
    assert all(fragment["debt"] == [] for fragment in stream["fragments"])
    assert before[1] not in stream["fragments"][-1]["bookies"]
    assert up.run("log", "read", name).stdout == b"".join(b"%d\n" % number for number in range(90))
