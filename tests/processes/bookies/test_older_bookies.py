"""A bookie of an older version, which knows neither terms nor packs, in a cluster with logs that are streams, and under
clients with many ledgers.

`make soak` runs one of the earlier commit that it upgrades from (``OCTAVO_UPGRADE_FROM``); otherwise the bookie is of
this version and hides what it knows.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from octavo.client.wire import wire
from octavo.metadata import open_metadata_store
from support.commands.installed import archived_tree, make_environment, unpack_wheel
from support.commands.processes import BookieProcess

import octavo

EARLIER_COMMIT = os.environ.get("OCTAVO_UPGRADE_FROM", "")

LEDGERS = 40

HIDING = """
import sys
from octavo.bookie.server import connection
from octavo.cli.main import main
newer = ("terms", "packs", "subscriptions")
connection.CAPABILITIES = tuple(one for one in connection.CAPABILITIES if one not in newer)
connection.is_pack = lambda values: False
sys.exit(main())
"""


@pytest.fixture
def older_command(tmp_path: Path) -> Sequence[str]:
    """Runs the `octavo` of the older version."""
    if not EARLIER_COMMIT:
        return (sys.executable, "-P", "-c", HIDING)
    wheel = unpack_wheel(tmp_path / "wheel", tree=archived_tree(tmp_path / "tree", EARLIER_COMMIT))
    return (str(make_environment(tmp_path / "environment", wheel)),)


async def test_an_older_bookie_is_never_part_of_a_stream_and_takeovers_go_on_beside_it(
    tmp_path: Path, older_command: Sequence[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    with ExitStack() as stack:

        def start(name: str, command: Sequence[str] | None = None) -> BookieProcess:
            options = ("--port", 0, "--metadata", uri, "--bookie-id", name)
            bookie = stack.enter_context(BookieProcess(tmp_path / name, *options, command=command))
            return bookie.wait_ready()

        start("a")
        start("b")
        older = start("older", older_command)
        async with octavo.connect(uri, bookie_loss_seconds=0.2, recovery_timeout_seconds=1.0) as client:
            with pytest.raises(octavo.NotEnoughBookiesError, match="bookie older does not know terms"):
                await client.create_log("orders", layout="stream")
            assert [name async for name in client.list_logs()] == []
            async with client.create_log("chain", layout="chain") as log, log.lead() as writer:
                assert await writer.add(b"a ledger with one writer may be there") == 0
            third = start("c")
            async with client.create_log("orders", layout="stream") as log:
                added = [await add_in_a_new_term(log, number) for number in range(3)]
                third.stop(signal.SIGKILL)
                added += [await add_in_a_new_term(log, number) for number in range(3, 6)]
                third = start("c")
                added.append(await add_in_a_new_term(log, 6))
                assert added == list(range(7))
                assert [entry.payload for entry in await log.read(0, 6)] == [b"%d" % number for number in added]
                (stream,) = await streams_of(uri)
        assert {name for fragment in stream for name in fragment} == {"a", "b", "c"}
        assert "ledger fenced" not in older.stderr


async def add_in_a_new_term(log: octavo.Log, number: int) -> int:
    """Take the log over, from a leader that has not closed its writer, and add the number."""
    return await (await log.take_over()).add(b"%d" % number)


async def streams_of(uri: str) -> list[list[Sequence[str]]]:
    """The bookies of the fragments of each stream."""
    async with await open_metadata_store(uri) as store:
        found = [(await store.read_either(one)).value async for one in store.list_ledgers()]
    return [[one.bookies for one in stream.fragments] for stream in found if "orders" in str(stream.custom_metadata)]


async def test_clients_with_and_without_packs_write_many_ledgers_to_bookies_with_and_without_them(
    tmp_path: Path, older_command: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every entry is on both bookies. The older one is upgraded while the ledgers are written."""
    uri = f"sqlite:///{tmp_path}/metadata.db"
    with ExitStack() as stack:

        def start(name: str, command: Sequence[str] | None = None) -> BookieProcess:
            options = ("--port", 0, "--metadata", uri, "--bookie-id", name)
            bookie = stack.enter_context(BookieProcess(tmp_path / name, *options, command=command))
            return bookie.wait_ready()

        newer, older = start("newer"), start("older", older_command)
        bookies = [newer, older]
        async with octavo.connect(uri) as client:
            writers = [await client.create_ledger(2, 2, 2) for _ in range(LEDGERS)]
            await add_to_all(writers, 0)
            monkeypatch.setattr(wire, "CAPABILITY_PACKS", "known to no bookie")
            async with octavo.connect(uri) as older_client:
                of_older_client = [await older_client.create_ledger(2, 2, 2) for _ in range(LEDGERS)]
                await add_to_all(of_older_client, 0)
                monkeypatch.undo()
                older.stop(signal.SIGTERM)
                bookies.append(start("older"))
                await add_to_all([*writers, *of_older_client], 1)
                for writer in (*writers, *of_older_client):
                    await writer.close()
                    async with client.open_ledger(writer.id) as reader:
                        read = [entry.payload async for entry in reader]
                    assert read == [b"%d of %d" % (number, writer.id) for number in range(2)]
        assert not any("connection refused" in bookie.stderr for bookie in bookies)


async def add_to_all(writers: Sequence[octavo.LedgerWriter], number: int) -> None:
    """Add an entry to each of the ledgers, in one turn of the loop."""
    ids = await asyncio.gather(*(writer.add(b"%d of %d" % (number, writer.id)) for writer in writers))
    assert set(ids) == {number}
