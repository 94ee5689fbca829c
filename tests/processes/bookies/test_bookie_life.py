"""The life of bookie processes: start, stop, crash, refusal to start; and of `octavo up`, which keeps them."""

import asyncio
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.processes import BookieProcess, Up, free_neighbours, is_running, occupied_port, octavo
from support.waiting import WAIT_SECONDS, pause, wait_until

import octavo as octavo_client

EXIT_DATA_WRONG = 78

STOP_SECONDS_MAX = 8.0
"""Less than the ten seconds after which `docker stop` kills."""


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data") as cluster:
        yield cluster.wait_ready()


def uri_in(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/metadata.db"


def test_a_bookie_says_when_it_is_ready_stops_cleanly_and_keeps_its_data(tmp_path: Path) -> None:
    uri = uri_in(tmp_path)
    one = ("-E", 1, "-W", 1, "-A", 1)
    with BookieProcess(tmp_path / "bookie", "--port", 0, "--metadata", uri) as bookie:
        bookie.wait_ready()
        ledger_id = octavo("ledger", "append", *one, "--json", "--metadata", uri, stdin=b"kept\n" * 1000).json[
            "ledger_id"
        ]
        first = octavo("bookies", "--json", "--metadata", uri).json
        assert bookie.stop() == 0
    assert octavo("bookies", "--json", "--metadata", uri).json[0]["state"] == "unavailable"
    with BookieProcess(tmp_path / "bookie", "--port", 0, "--metadata", uri) as bookie:
        bookie.wait_ready()
        assert octavo("bookies", "--json", "--metadata", uri).json[0]["bookie_id"] == first[0]["bookie_id"]
        assert octavo("ledger", "read", ledger_id, "--metadata", uri).stdout == b"kept\n" * 1000
        assert bookie.stop(signal.SIGINT) == 0


def test_a_bookie_that_waits_for_its_metadata_store_stops_at_once(tmp_path: Path) -> None:
    """A supervisor kills what does not stop within seconds; the store takes no call for 15 s before it is tried
    again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_SECONDS)
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/x"
        with BookieProcess(tmp_path / "bookie", "--port", 0, "--metadata", uri) as bookie:
            connection, _ = silent.accept()
            with connection:
                began_at = time.monotonic()
                assert bookie.stop() == 0
                assert time.monotonic() - began_at < STOP_SECONDS_MAX


def test_a_bookie_that_was_paused_while_its_id_went_to_new_disks_ends_and_disturbs_nothing(tmp_path: Path) -> None:
    """Rule B10: SIGSTOP, as a suspended virtual machine."""
    uri, old, new = uri_in(tmp_path), tmp_path / "old", tmp_path / "new"
    options: tuple[object, ...] = ("--port", 0, "--metadata", uri)

    def bookies() -> list[dict[str, object]]:
        found: list[dict[str, object]] = octavo("bookies", "--json", "--metadata", uri).json
        return found

    with BookieProcess(old, *options, OCTAVO_BOOKIE_LEASE_SECONDS="2") as paused:
        paused.wait_ready()
        (before,) = bookies()
        paused.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: bookies()[0]["state"] == "unavailable", "the registration ends")
            reset = octavo("bookie", "reset-identity", new, "--bookie-id", before["bookie_id"], "--metadata", uri)
            assert reset.status == 0, reset
            with BookieProcess(new, *options, OCTAVO_BOOKIE_LEASE_SECONDS="2") as owner:
                owner.wait_ready()
                (during,) = bookies()
                paused.process.send_signal(signal.SIGCONT)
                assert paused.wait() == EXIT_DATA_WRONG
                assert f"the id {before['bookie_id']} has been given to other data" in paused.stderr
                assert "Traceback" not in paused.stderr
                assert [one["address"] for one in bookies()] == [during["address"]] != [before["address"]]
                assert owner.stop() == 0
        finally:
            paused.process.send_signal(signal.SIGCONT)
    with BookieProcess(old, *options) as again:
        assert again.wait() == EXIT_DATA_WRONG
        assert "of an earlier bookie of this id" in again.stderr


def test_a_bookie_refuses_a_folder_that_belongs_to_another_cluster(tmp_path: Path) -> None:
    with BookieProcess(tmp_path / "bookie", "--port", 0, "--metadata", uri_in(tmp_path)) as bookie:
        bookie.wait_ready()
        assert bookie.stop() == 0
    with BookieProcess(tmp_path / "bookie", "--port", 0, "--metadata", f"sqlite:///{tmp_path}/other.db") as bookie:
        assert bookie.wait() == EXIT_DATA_WRONG
        assert "refuses to start" in bookie.stderr
        assert "Traceback" not in bookie.stderr


def test_two_bookies_cannot_share_a_folder(tmp_path: Path) -> None:
    uri = uri_in(tmp_path)
    with BookieProcess(tmp_path / "bookie", "--port", 0, "--metadata", uri) as bookie:
        bookie.wait_ready()
        second = octavo("bookie", "--data-dir", tmp_path / "bookie", "--port", 0, "--metadata", uri)
        assert second.status == 1, second
        assert str(tmp_path / "bookie") in second.stderr
        assert "Traceback" not in second.stderr
        assert bookie.process.poll() is None


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with occupied_port() as port:
        refused = octavo("bookie", "--data-dir", tmp_path / "bookie", "--port", port, "--metadata", uri_in(tmp_path))
    assert refused.status == 1, refused
    errors = [line for line in refused.stderr.splitlines() if "error" in line]
    assert len(errors) == 1, refused
    assert str(port) in errors[0]


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    refused = octavo("bookie", "--data-dir", in_the_way / "bookie", "--port", 0, "--metadata", uri_in(tmp_path))
    assert refused.status == 1, refused
    assert "Traceback" not in refused.stderr
    assert str(in_the_way) in refused.stderr
    octavo("up", "--data-dir", in_the_way / "data").failed_with_one_line(1, str(in_the_way))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--advertise", "nonsense"), "--advertise"),
        (("--config", "/nowhere/bookie.toml"), "/nowhere/bookie.toml"),
    ],
)
def test_a_bad_setting_is_named(tmp_path: Path, arguments: tuple[str, ...], named: str) -> None:
    octavo("bookie", "--data-dir", tmp_path / "bookie", *arguments).failed_with_one_line(2, named)


def test_a_typo_in_a_config_file_or_an_option_is_bad_usage(tmp_path: Path) -> None:
    config = tmp_path / "bookie.toml"
    config.write_text('data_dri = "/tmp"\n')
    octavo("bookie", "--config", config).failed_with_one_line(2, "data_dri", str(config))
    assert octavo("bookie", "--data-dri", tmp_path).status == 2
    assert octavo("up", "--bookie", 3).status == 2


# --- octavo up -------------------------------------------------------------------------------------------------------


def test_up_stopped_and_started_again_has_all_its_data(tmp_path: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with Up(tmp_path / "data") as cluster:
            cluster.wait_ready()
            pids = list(cluster.pids.values())
            if number == signal.SIGINT:
                ledger_id = cluster.run("ledger", "append", "--json", stdin=b"still here\n").json["ledger_id"]
            else:
                assert cluster.run("ledger", "read", ledger_id).stdout == b"still here\n"
            assert cluster.stop(number) == 0
            assert not any(map(is_running, pids))

    database = tmp_path / "data" / "metadata.db"
    database.rename(tmp_path / "elsewhere.db")
    again = octavo("up", "--data-dir", tmp_path / "data", "--base-port", 0)
    again.failed_with_one_line(1, "metadata.db is gone", "bookie-1, bookie-2, bookie-3", "put it back")
    assert not database.exists()


def test_up_starts_a_bookie_again_that_was_killed_and_takes_its_ports_in_order(tmp_path: Path) -> None:
    base_port = free_neighbours(3)
    with Up(tmp_path / "data", base_port=base_port) as cluster:
        cluster.wait_ready()
        bookies = cluster.run("bookies", "--json").json
        assert {bookie["address"] for bookie in bookies} == {f"127.0.0.1:{base_port + i}" for i in range(3)}
        before = cluster.pids["bookie-2"]
        cluster.kill_bookie("bookie-2")
        ended = cluster.wait_for("ended", "bookie-2")
        assert ended["exit_status"] == -signal.SIGKILL
        cluster.wait_for("started again", "bookie-2")
        assert cluster.pids["bookie-2"] != before
        assert {bookie["state"] for bookie in cluster.run("bookies", "--json").json} == {"writable"}


def test_up_with_a_port_in_use_says_so_and_leaves_nothing_running(tmp_path: Path) -> None:
    base_port = free_neighbours(2)
    with occupied_port(base_port + 1) as port:
        refused = octavo("up", "--data-dir", tmp_path / "data", "--base-port", base_port, "--bookies", 2)
    refused.failed_with_one_line(1, f"port {port} (bookie-2) is in use")
    with Up(tmp_path / "data", "--bookies", 2) as cluster:
        cluster.wait_ready()


def test_up_refuses_a_folder_that_another_one_runs_on(up: Up) -> None:
    octavo("up", "--data-dir", up.directory).failed_with_one_line(1, "in use", str(up.process.pid))


def test_bookies_do_not_outlive_an_up_that_was_killed_and_the_next_one_waits_for_them(tmp_path: Path) -> None:
    one = ("-E", 1, "-W", 1, "-A", 1)
    with Up(tmp_path / "data", "--bookies", 1) as cluster:
        cluster.wait_ready()
        pids = list(cluster.pids.values())
        ledger_id = cluster.run("ledger", "append", *one, "--json", stdin=b"kept\n").json["ledger_id"]
        cluster.process.kill()
        cluster.process.wait()
    with Up(tmp_path / "data", "--bookies", 1) as cluster:
        cluster.wait_ready()
        assert cluster.run("ledger", "read", ledger_id).stdout == b"kept\n"
        wait_until(lambda: not any(map(is_running, pids)), "the first bookies are gone")


def test_up_leaves_a_bookie_stopped_whose_data_are_wrong_and_goes_on_with_the_others(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with Up(directory, "--bookies", 1) as other:
        other.wait_ready()
        other.stop()
    (directory / "bookie-1").rename(tmp_path / "strange")
    with Up(tmp_path / "mine", "--bookies", 1) as mine:
        mine.wait_ready()
        mine.stop()
    (tmp_path / "strange").rename(tmp_path / "mine" / "bookie-2")
    with Up(tmp_path / "mine", "--bookies", 2) as mine:
        mine.wait_for("left stopped", "bookie-2")
        mine.wait_ready()
        assert list(mine.pids) == ["bookie-1"]


# --- crashes while writing -------------------------------------------------------------------------------------------


IDLE_BATCH = 5
IDLE_SECONDS = 0.05
"""What a writer adds, and how often, while the test waits for something else: a bookie that starts needs the
processors."""


class Writer:
    """Writes numbered entries to one ledger and remembers what was acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: list[bytes] = []
        self.target = 0
        self.ledger_id = -1
        self.closed = False
        self.progress = asyncio.Event()

    async def write(self, client: "octavo_client.Client", until: asyncio.Event) -> None:
        ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        self.ledger_id = ledger.id
        while not until.is_set():
            start = len(self.acknowledged)
            idle = start >= self.target
            stop = start + (IDLE_BATCH if idle else 200)
            batch = [b"%d of %d" % (number, self.ledger_id) for number in range(start, stop)]
            adds = [ledger.add_nowait(payload) for payload in batch]
            for payload, add in zip(batch, adds, strict=True):
                await add
                self.acknowledged.append(payload)
            self.progress.set()
            if idle:
                await pause(IDLE_SECONDS)
        await ledger.close()
        self.closed = True


async def wait_for(up: Up, event: str, name: str) -> None:
    await asyncio.to_thread(up.wait_for, event, name)


async def more_acknowledged(writer: Writer, number: int) -> None:
    writer.target = len(writer.acknowledged) + number
    async with asyncio.timeout(WAIT_SECONDS):
        while len(writer.acknowledged) < writer.target:
            writer.progress.clear()
            await writer.progress.wait()


async def test_every_bookie_killed_in_turn_while_writing_and_every_acknowledged_entry_is_read_back(up: Up) -> None:
    writer = Writer()
    enough = asyncio.Event()
    async with octavo_client.connect(up.uri) as client:
        writing = asyncio.ensure_future(writer.write(client, enough))
        for name in list(up.pids):
            await more_acknowledged(writer, 1000)
            up.kill_bookie(name)
            await more_acknowledged(writer, 1000)
            await wait_for(up, "started again", name)
        await more_acknowledged(writer, 1000)
        enough.set()
        await writing
    assert writer.closed
    await check_all_there(up.uri, writer)


async def test_all_bookies_killed_at_once_while_writing_and_every_acknowledged_entry_is_read_back(up: Up) -> None:
    writers = [Writer() for _ in range(3)]
    enough = asyncio.Event()
    async with octavo_client.connect(up.uri) as client:
        writing = [asyncio.ensure_future(writer.write(client, enough)) for writer in writers]
        for writer in writers:
            await more_acknowledged(writer, 1000)
        for name in list(up.pids):
            up.kill_bookie(name)
        restarted = set[str]()
        while len(restarted) < 3:
            restarted.add((await asyncio.to_thread(up.wait_for, "started again"))["name"])
        for writer in writers:
            await more_acknowledged(writer, 1000)
        enough.set()
        await asyncio.gather(*writing)
    for writer in writers:
        await check_all_there(up.uri, writer)


async def check_all_there(uri: str, writer: Writer) -> None:
    async with octavo_client.connect(uri) as client, client.open_ledger(writer.ledger_id) as reader:
        assert [entry.payload async for entry in reader] == writer.acknowledged
