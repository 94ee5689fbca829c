"""`octavo repair drain` and `wait` say what they wait for, and what goes on when they end."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from octavo.cli import main as command_line
from octavo.cli.repair.commands import _wait_drained
from octavo.cli.session import CommandError, LogFormat, LogLevel, Session
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.cluster.repair_states import BookieCondition, Condition
from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold
from octavo.protocol.ids import BookieId, EntryId
from octavo.repair.operate import operators
from support.commands.processes import OCTAVO, environment
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.metadata_clusters import cookie
from support.waiting import WAIT_SECONDS, wait_until

A = BookieId("a")


async def in_store[T](uri: str, work: Callable[[MetadataStore], Awaitable[T]], *, create: bool = False) -> T:
    async with await open_metadata_store(uri, create=create) as store:
        return await work(store)


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Metadata with the bookies a, b and c, of which none runs, and a closed ledger on them."""
    uri = f"sqlite:///{tmp_path}/metadata.db"

    async def fill(store: MetadataStore) -> None:
        for name in "abc":
            await store.create_cookie(cookie(name))
        ledger_id = await store.allocate_ledger_id()
        await store.create_ledger(open_ledger(ledger_id, fragment(0, "abc")).closed(EntryId(3), 9))

    asyncio.run(in_store(uri, fill, create=True))
    return uri


def put(uri: str, condition: Condition) -> None:
    async def change(store: MetadataStore) -> None:
        await operators.change_states(store, lambda states: states.with_bookie(A, BookieCondition(condition, 0)))

    asyncio.run(in_store(uri, change))


def condition_of_a(uri: str) -> Condition | None:
    async def read(store: MetadataStore) -> Condition | None:
        return (await operators.read_states(store)).condition_of(A)

    return asyncio.run(in_store(uri, read))


def repair(uri: str, *arguments: str) -> int:
    return command_line.main(["repair", *arguments, "--metadata", uri])


def test_a_drain_that_is_not_over_in_time_goes_on(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert repair(uri, "drain", "a", "--wait", "--timeout", "0") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "octavo: bookie a is not drained after 0 s, and the drain goes on; see `octavo repair status`\n"
    assert condition_of_a(uri) is Condition.DRAINING
    assert repair(uri, "drain", "a", "--timeout", "5") == 2
    assert "--timeout needs --wait" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("drain", "a", "--wait"), ("wait",)])
def test_waiting_while_repair_is_paused_says_so(
    uri: str, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    put(uri, Condition.DRAINING)
    assert repair(uri, "pause") == 0
    capsys.readouterr()
    assert repair(uri, *command, "--timeout", "0") == 1
    paused, failed = capsys.readouterr().err.splitlines()
    assert "repair is paused" in paused
    assert "`octavo repair resume`" in paused
    assert "after 0 s" in failed


def test_waiting_while_no_doubt_can_end_says_so(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Rule D5: an operator ends the hold, and only then can the doubt end."""
    hold = GarbageHold("restored from a dump", datetime(2026, 1, 1, tzinfo=UTC))
    asyncio.run(in_store(uri, lambda store: set_hold(store, hold)))
    assert repair(uri, "wait", "--timeout", "0") == 0
    capsys.readouterr()
    put(uri, Condition.DOUBTFUL)
    assert repair(uri, "wait", "--timeout", "0") == 1
    told, failed = capsys.readouterr().err.splitlines()
    assert "no doubt ends: restored from a dump" in told
    assert "`octavo cluster release-garbage`" in told
    assert "after 0 s" in failed


def test_draining_a_lost_bookie_says_that_it_is_lost(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    put(uri, Condition.LOST)
    assert repair(uri, "drain", "a") == 0
    assert capsys.readouterr().out == "bookie a is lost: its copies are being made again already\n"
    assert repair(uri, "drain", "a", "--json") == 0
    assert capsys.readouterr().out == '{"bookie_id": "a", "state": "lost"}\n'


def test_whole_with_a_missing_bookie_names_it(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert repair(uri, "wait") == 0
    assert capsys.readouterr().out == "everything is whole\n"
    put(uri, Condition.MISSING)
    assert repair(uri, "wait") == 0
    assert "on bookie a, which is missing or held, are counted" in capsys.readouterr().out
    assert repair(uri, "wait", "--json") == 0
    assert capsys.readouterr().out == '{"whole": true, "missing_or_held": ["a"]}\n'


async def test_a_drain_that_another_operator_ends_is_not_waited_for(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    session = Session(uri, LogLevel.WARNING, LogFormat.CONSOLE, as_json=False)
    async with await open_metadata_store(uri, create=True) as store:
        with pytest.raises(CommandError, match="not being drained any more"):
            await _wait_drained(session, store, A, None)


async def test_an_interrupted_drain_goes_on_and_says_so(uri: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *OCTAVO, "repair", "drain", "a", "--wait", "--metadata", uri,
        env=environment(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        await asyncio.to_thread(wait_until, lambda: condition_of_a(uri) is Condition.DRAINING, "the drain to begin")
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert (process.returncode, out) == (130, b"")
    assert err == b"octavo: the drain of bookie a goes on; `octavo repair undrain a` ends it\n"
