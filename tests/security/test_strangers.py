"""What reaching a bookie's port is enough for, without certificate or key: nothing that others notice (rule B12)."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import cast

import pytest
import structlog
from octavo.bookie.disk.descriptors import (
    DESCRIPTORS_FOR_FILES,
    DescriptorReserve,
    connections_within,
)
from octavo.bookie.logs import REPEATS_BURST, RepeatedLines
from octavo.bookie.server.clients import FRAMES_PER_TURN_MAX
from octavo.bookie.server.connection import Connection
from octavo.protocol.frames import frame_of
from octavo.protocol.messages import Ping, Pong
from octavo.security.audit import EQUAL_REFUSALS_SECONDS, STRANGERS_LINES_BURST, Audit, AuditFile
from octavo.security.roles import Role
from octavo.security.strangers import Strangers
from simulation.engine.loop import SimulationLoop
from support.clusters.principals import DOCUMENTS, GUARDED, raw
from support.clusters.tls_bookies import cluster_of
from support.raw_client import RawClient
from support.waiting import eventually, loop_turns

PINGS = 5000

# --- turns ----------------------------------------------------------------------------------------------------------


async def test_a_client_has_its_turn_and_others_have_theirs() -> None:
    """Tens of thousands of PINGs fit into one read of a socket, and were served in one step of the loop."""
    async with cluster_of({"repair": False}) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        host, _, port = bookie.address.rpartition(":")
        clients = [await stack.enter_async_context(RawClient(host, int(port))) for _ in range(3)]
        for client in clients:
            await client.greet()
        connections = [cast(Connection, one) for one in bookie.service.connections]
        flood = b"".join(frame_of(Ping().encode(number)) for number in range(1, PINGS + 1))

        def served() -> int:
            return sum(count for op, _, count in bookie.service.requests.totals() if op.upper() == "PING")

        for connection in connections:
            connection.data_received(flood)
        assert served() == FRAMES_PER_TURN_MAX, "all connections of a client together"
        assert all(connection.reading_is_paused for connection in connections)
        before = served()
        await loop_turns(1)
        assert served() - before <= FRAMES_PER_TURN_MAX

        for client in clients:
            for number in range(1, PINGS + 1):
                assert await client.receive_reply() == (number, Pong())
        assert served() == 3 * PINGS
        assert await clients[0].ask(Ping()) is not None
        assert not any(connection.reading_is_paused for connection in connections)


async def test_connections_of_one_client_take_turns() -> None:
    async with cluster_of({"repair": False}) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        host, _, port = bookie.address.rpartition(":")
        flooding = await stack.enter_async_context(RawClient(host, int(port)))
        modest = await stack.enter_async_context(RawClient(host, int(port)))
        for client in (flooding, modest):
            await client.greet()
        first, second = (cast(Connection, one) for one in bookie.service.connections)
        first.data_received(b"".join(frame_of(Ping().encode(number)) for number in range(1, PINGS + 1)))
        second.data_received(frame_of(Ping().encode(1)))
        assert await modest.receive_reply() == (1, Pong())
        assert first.reading_is_paused, "it is not done yet"


# --- places ---------------------------------------------------------------------------------------------------------


class _Stranger:
    def __init__(self) -> None:
        self.made_way = False

    def make_way(self) -> None:
        self.made_way = True


def test_strangers_have_a_fourth_of_the_places_and_the_oldest_makes_way() -> None:
    strangers = Strangers(12)
    waiting = [_Stranger() for _ in range(5)]
    for stranger in waiting:
        strangers.enter(stranger)
    assert [one.made_way for one in waiting] == [True, True, False, False, False]
    strangers.leave(waiting[2])
    assert strangers.give_way()
    assert [one.made_way for one in waiting] == [True, True, False, True, False]
    strangers.leave(waiting[4])
    assert not strangers.give_way()


async def test_strangers_keep_no_principal_out() -> None:
    settings = {**GUARDED, "connections_max": 8}
    async with cluster_of(settings, documents=DOCUMENTS) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        principals = [await stack.enter_async_context(raw(bookie, Role.READ)) for _ in range(6)]
        strangers = [await stack.enter_async_context(raw(bookie)) for _ in range(2)]
        last = await stack.enter_async_context(raw(bookie, Role.READ))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await strangers[0].receive()
        for client in (*principals, last, strangers[1]):
            assert await client.ask(Ping()) == Pong()


async def test_a_stranger_authenticates_in_time_or_loses_its_connection() -> None:
    settings = {**GUARDED, "hello_timeout_seconds": 0.2}
    async with cluster_of(settings, documents=DOCUMENTS) as cluster, AsyncExitStack() as stack:
        (bookie,) = cluster.bookies
        principal = await stack.enter_async_context(raw(bookie, Role.READ))
        stranger = await stack.enter_async_context(raw(bookie))
        await eventually(lambda: len(bookie.service.connections) == 1)
        assert "no authentication within 0.2 seconds" in str(await stranger.receive())
        assert await principal.ask(Ping()) == Pong()
        assert len(bookie.service.strangers) == 0


# --- logs -----------------------------------------------------------------------------------------------------------


def test_refusals_of_strangers_have_a_budget_of_lines_and_those_of_principals_do_not(tmp_path: Path) -> None:
    loop = SimulationLoop()
    path = tmp_path / "audit.jsonl"

    audit = Audit(AuditFile(path), wall_clock=loop.time)
    audit.start()

    async def run() -> None:
        await asyncio.sleep(1000)
        for number in range(5000):
            audit.refused("authenticate", "key", peer=f"10.0.{number // 250}.{number % 250}:1", name="x" * 10_000)
        audit.refused("request", "role", principal="p", peer="10.0.0.1:1", operation="READ")
        await asyncio.sleep(EQUAL_REFUSALS_SECONDS + 1)

    loop.run_until_complete(run())
    loop.close()
    asyncio.run(audit.stop())  # it joins a thread in a thread, of which the simulated loop has none
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    listed = [line for line in lines if line["event"] == "authenticate"]
    assert len(listed) == STRANGERS_LINES_BURST
    assert max(len(line["name"]) for line in listed) == 256
    assert [line["principal"] for line in lines if line["event"] == "request"] == ["p"]
    assert [line["count"] for line in lines if line["event"] == "refusals"] == [5000 - STRANGERS_LINES_BURST]


def test_lines_of_one_event_are_few_and_tell_how_many_were_left_out() -> None:
    now = 0.0
    few = RepeatedLines(lambda: now)

    def line(event: str) -> bool:
        try:
            few(None, "warning", {"event": event, "peer": "p"})
        except structlog.DropEvent:
            return False
        return True

    assert sum(line("connection refused") for _ in range(1000)) == REPEATS_BURST
    assert line("bookie is stopping"), "other events go on"
    now = 2.0
    told = few(None, "warning", {"event": "connection refused"})
    assert told == {"event": "connection refused", "repeated": 1000 - REPEATS_BURST}
    assert few(None, "warning", {"event": "connection refused"}) == {"event": "connection refused"}
    now = 1000.0
    assert sum(line("connection refused") for _ in range(1000)) == REPEATS_BURST


# --- descriptors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_file_is_opened_from_the_reserve_when_no_descriptor_is_left(number: int) -> None:
    reserve = DescriptorReserve(2)
    failures = [OSError(number, "none left"), OSError(number, "none left")]

    def opening() -> str:
        if failures:
            raise failures.pop()
        return "opened"

    assert reserve.opened(opening) == "opened"
    with pytest.raises(FileNotFoundError):
        reserve.opened(lambda: os.open("/no/such/file", os.O_RDONLY))
    reserve.close()


OUT_OF_DESCRIPTORS = """
import os, sys, resource
from pathlib import Path
from octavo.bookie.disk.descriptors import open_descriptor, reserve
reserve()
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
path = Path(sys.argv[1])
opened = [open_descriptor(path / str(n), os.O_RDWR | os.O_CREAT | os.O_EXCL) for n in range(8)]
os.write(opened[-1], b"written")
"""


def test_files_of_a_process_whose_descriptors_are_used_up_are_opened(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-c", OUT_OF_DESCRIPTORS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "7").read_text() == "written"


@pytest.mark.parametrize(
    ("limit", "wanted", "served"),
    [(1024, 4096, (1024 - DESCRIPTORS_FOR_FILES) * 4 // 5), (65536, 4096, 4096), (1024, 100, 100), (64, 4096, 1)],
)
def test_connections_leave_descriptors_for_files(limit: int, wanted: int, served: int) -> None:
    assert connections_within(limit, wanted) == served
    assert served + served // 4 + DESCRIPTORS_FOR_FILES <= limit or limit < DESCRIPTORS_FOR_FILES
