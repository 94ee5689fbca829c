"""Ledgers of real bookies whose writers are killed, hang or are cut off: recovered with everything acknowledged."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata import LedgerMetadata, MetadataStore, Versioned, open_metadata_store
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from support.clusters.secrets import write_secret
from support.commands.processes import OCTAVO, Up, environment
from support.metadata.interposed_store import SilentWatch
from support.programs.writing_process import FENCED, payload_of
from support.tcp_proxy import TcpProxy
from support.waiting import WAIT_SECONDS, eventually, wait_until

import octavo

SHAPES = ((3, 3, 2), (4, 2, 1), (3, 2, 2), (3, 3, 3), (4, 3, 2))
"""The usual one, Qa = 1, Qw = Qa, E > Qw."""

RUNS = int(os.environ.get("OCTAVO_RECOVERIES", "5"))
"""Writers killed; `make soak` kills more."""

WRITER = Path(__file__).parents[2] / "support" / "programs" / "writing_process.py"


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--bookies", 5) as cluster:
        yield cluster.wait_ready()


class WritingProcess:
    """Another process that writes a ledger."""

    def __init__(self, up: Up, shape: tuple[int, int, int], *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, WRITER, up.uri, *map(str, shape), *options], stdout=subprocess.PIPE, env=environment()
        )
        self.acknowledged = -1
        self.ledger_id = self._next()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _next(self) -> int:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), "the writer has ended by itself"
        return int(line)

    def wait_acknowledged(self, last: int) -> None:
        """Return once everything up to that entry is."""
        while self.acknowledged < last:
            self.acknowledged = self._next()

    def kill(self) -> None:
        """SIGKILL; then take in what it said until then."""
        self.process.kill()
        self.read_to_its_end()

    def read_to_its_end(self) -> None:
        """Take in all that it says, and wait for its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                self.acknowledged = int(line)
        self.process.wait(WAIT_SECONDS)


def check_content(up: Up, shown: Mapping[str, Any], acknowledged: int) -> None:
    """Everything acknowledged is there, with the bytes that were written, and nothing was made up."""
    assert shown["state"] == "closed"
    last = -1 if shown["last_entry_id"] is None else shown["last_entry_id"]
    assert last >= acknowledged
    payloads = [payload_of(entry_id) for entry_id in range(last + 1)]
    assert shown["length"] == sum(map(len, payloads))
    assert up.run("ledger", "read", shown["ledger_id"]).stdout == b"".join(payload + b"\n" for payload in payloads)


def pid_of(up: Up, bookie_id: str) -> int:
    """The process of a bookie."""
    cookies = {name: (up.directory / name / "cookie").read_bytes() for name in up.pids}
    return next(up.pids[name] for name, cookie in cookies.items() if bookie_id.encode() in cookie)


async def ensembles(up: Up, ledger_id: int) -> list[tuple[BookieId, ...]]:
    """The bookies of each fragment."""
    async with octavo.connect(up.uri) as client:
        return [fragment.bookies for fragment in (await client.ledger_metadata(ledger_id)).fragments]


def make_the_writer_replace_a_bookie(up: Up, writer: WritingProcess) -> str:
    """Kill a bookie of its ensemble, and let it write until it has another one. Gives the name of the one killed."""
    failed = asyncio.run(ensembles(up, writer.ledger_id))[-1][0]
    pid = pid_of(up, failed)
    killed = next(name for name in up.pids if up.pids[name] == pid)

    def is_replaced() -> bool:
        writer.wait_acknowledged(writer.acknowledged + 50)
        return failed not in asyncio.run(ensembles(up, writer.ledger_id))[-1]

    with up.hanging(up.process.pid):  # it would start the bookie again, maybe before the writer has replaced it
        up.kill_bookie(killed)
        wait_until(is_replaced, f"{killed} to be replaced")
    return killed


@pytest.mark.parametrize("run", range(RUNS))
def test_a_writer_killed_at_any_moment_is_recovered_by_another_process(up: Up, run: int) -> None:
    chance = random.Random(run)
    replaces = run % 5 in (0, 3, 4)  # with every shape but those that seldom wait for one bookie
    with WritingProcess(up, SHAPES[run % len(SHAPES)]) as writer:
        writer.wait_acknowledged(chance.randrange(20, 3000))
        killed = make_the_writer_replace_a_bookie(up, writer) if replaces else None
        writer.wait_acknowledged(writer.acknowledged + chance.randrange(200))
        writer.kill()
    # The killed processes are seldom back by now.
    shown = up.run("ledger", "recover", writer.ledger_id, "--json").json
    if killed is not None:
        assert len(shown["fragments"]) > 1
        up.wait_for("started again", killed)
    check_content(up, shown, writer.acknowledged)


def test_several_processes_that_recover_at_once_agree_while_the_writer_goes_on(up: Up) -> None:
    for shape, count in (((3, 3, 2), 4), ((4, 2, 1), 3)):
        with WritingProcess(up, shape) as writer:
            writer.wait_acknowledged(500)
            recoverers = [
                subprocess.Popen(
                    [*OCTAVO, "ledger", "recover", str(writer.ledger_id), "--json"],
                    stdout=subprocess.PIPE,
                    env=environment(OCTAVO_METADATA=up.uri),
                )
                for _ in range(count)
            ]
            outputs = [recoverer.communicate(timeout=WAIT_SECONDS)[0] for recoverer in recoverers]
            writer.read_to_its_end()
            assert writer.process.returncode == FENCED, "it has found out by itself"
        assert len(set(outputs)) == 1
        shown = up.run("ledger", "recover", writer.ledger_id, "--json").json
        assert outputs[0] == up.run("ledger", "show", writer.ledger_id, "--json").stdout
        check_content(up, shown, writer.acknowledged)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
async def test_recoverers_at_once_agree_and_what_the_writer_was_told_holds(up: Up, shape: tuple[int, int, int]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(octavo.connect(up.uri)) for _ in range(6)]
        ledger = await clients[0].create_ledger(*shape)
        adds = [asyncio.ensure_future(ledger.add(payload_of(number))) for number in range(3000)]
        await adds[200]
        readers = await asyncio.gather(*(client.open_ledger(ledger.id) for client in clients[1:]))
        assert len({reader.metadata for reader in readers}) == 1
        last = readers[0].last_add_confirmed
        assert last is not None
        outcomes = await asyncio.gather(*adds, return_exceptions=True)
        acknowledged = [entry_id for entry_id, outcome in enumerate(outcomes) if outcome == entry_id]
        assert acknowledged == list(range(len(acknowledged)))
        assert len(acknowledged) - 1 <= last
        for entry_id, outcome in enumerate(outcomes[len(acknowledged) :], start=len(acknowledged)):
            assert isinstance(outcome, octavo.LedgerFencedError)
            assert outcome.may_have_happened or entry_id > last
        payloads = [entry.payload async for entry in readers[0]]
        assert payloads == [payload_of(number) for number in range(last + 1)]
        with contextlib.suppress(octavo.LedgerFencedError):
            await ledger.close()


async def test_the_example_of_fencing(up: Up) -> None:
    """E = 3, Qw = 2: acknowledged up to 11, 12 on one of its two bookies. Closed at 12; the writer's next add fails."""
    async with (
        octavo.connect(up.uri, request_timeout_seconds=1000.0, bookie_loss_seconds=1000.0) as writing,
        octavo.connect(up.uri, request_timeout_seconds=0.5) as recovering,
    ):
        ledger = await writing.create_ledger(3, 2, 2)
        await ledger.add_many([payload_of(number) for number in range(12)])
        bookies = ledger.metadata.last_fragment.bookies
        hangs = pid_of(up, bookies[1])  # 12 belongs on the bookies at 0 and 1
        with up.hanging(hangs):
            half_written = ledger.add_nowait(payload_of(12))
            async with recovering.open_ledger(ledger.id, recover=False) as reader:
                await eventually(partial(is_held, reader, 12))
            async with recovering.open_ledger(ledger.id) as reader:
                assert reader.last_add_confirmed == 12
                assert [entry.payload async for entry in reader] == [payload_of(number) for number in range(13)]
                # A second copy of 12 was to be had only with another bookie in the place of the one that hangs.
                assert [fragment.first_entry_id for fragment in reader.metadata.fragments] == [0, 12]
        with pytest.raises(octavo.LedgerFencedError) as in_doubt:
            await half_written
        assert in_doubt.value.may_have_happened
        with pytest.raises(octavo.LedgerFencedError) as refused:
            await ledger.add(b"13")
        assert not refused.value.may_have_happened
        with pytest.raises(octavo.LedgerFencedError):
            await ledger.close()


async def is_held(reader: octavo.LedgerReader, entry_id: int) -> bool:
    """Whether some bookie has the entry, confirmed or not."""
    with contextlib.suppress(octavo.NoSuchEntryError, octavo.QuorumLostError):
        return bool(await reader.read_unconfirmed(entry_id, entry_id))
    return False


class PartitionedStore:
    """A store as a client behind a partition has it: bookies are found through proxies, changes are not reported, and
    changes cannot be made while it is ``cut_off``."""

    def __init__(self, store: MetadataStore, addresses: Mapping[BookieId, str]) -> None:
        self._store = store
        self._addresses = addresses
        self.cut_off = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def list_bookies(self) -> dict[BookieId, Any]:
        """The registrations with the addresses of the proxies."""
        found = dict(await self._store.list_bookies())
        return {
            bookie_id: type(one)(**{name: getattr(one, name) for name in one.__slots__} | {"address": address})
            for bookie_id, one in found.items()
            if (address := self._addresses.get(bookie_id)) is not None
        }

    def watch_ledger(self, _ledger_id: LedgerId) -> SilentWatch:
        """A watch that never reports anything."""
        return SilentWatch()

    async def compare_and_set_ledger(self, metadata: LedgerMetadata, version: Any) -> Any:
        """As the store does, when it can be reached."""
        self._check()
        return await self._store.compare_and_set_ledger(metadata, version)

    async def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """As the store does, when it can be reached."""
        self._check()
        return await self._store.read_ledger(ledger_id)

    def _check(self) -> None:
        if self.cut_off:
            raise MetadataUnavailableError("the metadata store does not answer")


@pytest.mark.parametrize("shape", [(3, 3, 2), (3, 3, 1), (4, 2, 2)], ids=str)
async def test_a_writer_that_was_cut_off_acknowledges_nothing_once_it_is_back(
    up: Up, shape: tuple[int, int, int]
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        other = await stack.enter_async_context(octavo.connect(up.uri))
        proxies = {
            status.bookie_id: await stack.enter_async_context(TcpProxy(status.address))
            for status in await other.bookies()
        }
        inner = await stack.enter_async_context(await open_metadata_store(up.uri))
        store: Any = PartitionedStore(inner, {bookie_id: proxy.address for bookie_id, proxy in proxies.items()})
        writing = Client(store, cluster_id=await inner.cluster_id(), options=ClientOptions(bookie_loss_seconds=60.0))
        stack.push_async_callback(close_quietly, writing)
        ledger = await writing.create_ledger(*shape)
        await ledger.add_many([payload_of(number) for number in range(100)])
        for proxy in proxies.values():
            proxy.stall()
        store.cut_off = True
        late = [ledger.add_nowait(payload_of(number)) for number in range(100, 150)]
        async with other.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 99
            # All that it sent arrives now; it has received no answer.
            for proxy in proxies.values():
                proxy.resume()
            outcomes = await asyncio.wait_for(asyncio.gather(*late, return_exceptions=True), WAIT_SECONDS)
            assert [type(outcome) for outcome in outcomes] == [octavo.LedgerFencedError] * 50
            assert await reader.read(0, 99)
        with pytest.raises(octavo.LedgerFencedError) as refused:
            await ledger.add(b"later")
        assert not refused.value.may_have_happened
        async with other.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader] == [payload_of(number) for number in range(100)]


async def close_quietly(client: Client) -> None:
    with contextlib.suppress(octavo.OctavoError):
        await client.close()


async def test_recovery_reads_the_end_of_a_ledger_and_not_the_rest(up: Up) -> None:
    """However much was acknowledged, only what is beyond the last add confirmed is read."""
    async with octavo.connect(up.uri) as writing, octavo.connect(up.uri) as recovering:
        ledger = await writing.create_ledger(3, 3, 2)
        for _ in range(20):
            await ledger.add_many([bytes(1000)] * 1000)
        async with recovering.open_ledger(ledger.id, recover=False) as reader:

            async def is_told() -> bool:
                return await reader.refresh_last_add_confirmed() == 19_999

            await eventually(is_told, "an explicit LAC covers the last batch")
        before = await entries_read(recovering)
        async with recovering.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 19_999
        assert await entries_read(recovering) - before <= 3 * 1100
        with contextlib.suppress(octavo.LedgerFencedError):
            await ledger.close()


async def entries_read(client: octavo.Client) -> int:
    """How many entries the bookies have sent to readers of any kind."""
    found = await client.bookies(details=True)
    return sum(int(status.facts["entries_read"]) for status in found if status.facts is not None)


def test_a_recovery_that_is_blocked_names_the_bookies_and_succeeds_when_they_are_back(up: Up) -> None:
    with WritingProcess(up, (3, 3, 2)) as writer:
        writer.wait_acknowledged(300)
        writer.kill()
    shown = up.run("ledger", "show", writer.ledger_id, "--json").json
    hung = [pid_of(up, bookie_id) for bookie_id in shown["fragments"][-1]["bookies"][:2]]
    with up.hanging(*hung):
        refused = up.run("ledger", "recover", writer.ledger_id)
        refused.failed_with_one_line(1, *shown["fragments"][-1]["bookies"][:2], "could be fenced")
    check_content(up, up.run("ledger", "recover", writer.ledger_id, "--json").json, writer.acknowledged)


def test_recover_says_where_the_ledger_ends_and_needs_its_password(up: Up, tmp_path: Path) -> None:
    password = tmp_path / "password"
    write_secret(password, b"secret")
    created = up.run("ledger", "append", "--password-file", password, "--json", stdin=b"a\nbc\n").json
    ledger_id = created["ledger_id"]
    done = up.run("ledger", "recover", ledger_id, "--password-file", password)
    assert done.stdout == b"ledger %d is closed: its last entry is 1, 3 bytes\n" % ledger_id
    up.run("ledger", "recover", ledger_id).failed_with_one_line(1, "wrong password")
    up.run("ledger", "recover", 10**12).failed_with_one_line(1, "ledger 1000000000000")


def test_crash_of_every_bookie_and_of_the_writer_loses_at_most_what_was_not_forced(up: Up) -> None:
    """Rule W10: whatever is found above the last forced entry was added there, without a gap."""
    with WritingProcess(up, (3, 3, 2), "deferred") as writer:
        writer.wait_acknowledged(200)
        for name in up.pids:
            up.kill_bookie(name)
        writer.kill()
    for _ in up.pids:
        up.wait_for("started again")
    lasts = asyncio.run(recovered_by_two(up, writer.ledger_id))
    assert lasts[0] == lasts[1]
    check_content(up, up.run("ledger", "show", writer.ledger_id, "--json").json, writer.acknowledged)


def test_a_deferred_ledger_whose_writer_and_one_bookie_are_killed_has_what_was_forced(up: Up) -> None:
    """Rule W10: the bookie that was started again may have lost what it had answered for."""
    with WritingProcess(up, (3, 3, 2), "deferred") as writer:
        writer.wait_acknowledged(200)
        member = asyncio.run(ensembles(up, writer.ledger_id))[-1][0]
        os.kill(pid_of(up, member), signal.SIGKILL)
        writer.kill()
    up.wait_for("started again")
    lasts = asyncio.run(recovered_by_two(up, writer.ledger_id))
    assert lasts[0] == lasts[1]
    check_content(up, up.run("ledger", "show", writer.ledger_id, "--json").json, writer.acknowledged)


async def recovered_by_two(up: Up, ledger_id: int) -> tuple[EntryId | None, EntryId | None]:
    """The end of a ledger as two clients find it that recover it at the same time."""
    async with octavo.connect(up.uri) as one, octavo.connect(up.uri) as other:

        async def recover(client: octavo.Client) -> EntryId | None:
            async with client.open_ledger(ledger_id) as reader:
                return reader.last_add_confirmed

        return await asyncio.gather(recover(one), recover(other))
