"""`octavo log` on a real cluster: lines as they come, one leader at a time, followers that see every position once."""

import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clusters.secrets import write_secret
from support.commands.forked_processes import OctavoProcess
from support.commands.processes import OCTAVO, Up, environment
from support.waiting import WAIT_SECONDS, wait_until

LEASE_SECONDS = 5
"""Long enough for a leader to renew in time on a machine that stands still for a second now and then."""


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


class Running:
    """A command that goes on while its standard input is open. Leaving its block leaves nothing running."""

    def __init__(self, cluster: Up, *arguments: object) -> None:
        self.process = OctavoProcess(
            ["log", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(OCTAVO_METADATA=cluster.uri),
        )

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def send(self, text: bytes) -> None:
        """Write to its standard input, which stays open."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def line(self) -> bytes:
        """The next line of its standard output; pytest's timeout ends a test in which none comes."""
        assert self.process.stdout is not None
        return bytes(self.process.stdout.readline()).rstrip(b"\n")

    def end(self, number: signal.Signals | None = None) -> tuple[int, bytes, str]:
        """Send a signal, or end its input; status, the rest of standard output, standard error."""
        if number is not None:
            self.process.send_signal(number)
            status = self.process.wait(WAIT_SECONDS)
            assert self.process.stdout is not None
            assert self.process.stderr is not None
            return status, self.process.stdout.read(), self.process.stderr.read().decode()
        output, errors = self.process.communicate(timeout=WAIT_SECONDS)
        return self.process.wait(), output, errors.decode()


class OnTerminal:
    """A command on a terminal of its own. Leaving its block leaves nothing running."""

    def __init__(self, cluster: Up, *arguments: object) -> None:
        self._terminal, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 200, 0, 0))
        self._written = b""
        self.process = subprocess.Popen(
            [*OCTAVO, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(OCTAVO_METADATA=cluster.uri, TERM="xterm", COLUMNS="200", LINES="30"),
        )
        os.close(theirs)

    def __enter__(self) -> "OnTerminal":
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def type(self, text: bytes) -> None:
        """Press keys."""
        os.write(self._terminal, text)

    def wait_for(self, text: bytes) -> None:
        """Return once the command has written this. A command that writes for ever, as `top` does, gets as long."""
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self._written:
            readable = select.select([self._terminal], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert readable, f"{text!r} was not written, but {self._written[-3000:]!r}"
            self._written += os.read(self._terminal, 65536)
        self._written = self._written.partition(text)[2]

    def status(self) -> int:
        """Its exit status, once it has ended."""
        with contextlib.suppress(OSError):  # the terminal has no other end any more
            while os.read(self._terminal, 65536):
                pass
        return self.process.wait(WAIT_SECONDS)


def show(cluster: Up, name: str) -> Any:
    return cluster.run("log", "show", name, "--json").json


def cursor_positions(cluster: Up, name: str) -> dict[str, int]:
    lines = cluster.run("log", "cursors", name, "--json").stdout.splitlines()
    return {cursor["name"]: cursor["position"] for cursor in map(json.loads, lines)}


def made(cluster: Up, request: pytest.FixtureRequest, layout: str) -> str:
    name = f"tests/{request.node.name}"[:200].replace("[", ".").replace("]", "")
    assert cluster.run("log", "create", name, "--layout", layout).status == 0
    return name


@pytest.fixture(params=["chain", "stream"])
def new_log(cluster: Up, request: pytest.FixtureRequest) -> str:
    """Of each layout."""
    return made(cluster, request, request.param)


@pytest.fixture
def new_chain(cluster: Up, request: pytest.FixtureRequest) -> str:
    return made(cluster, request, "chain")


@pytest.fixture
def new_stream(cluster: Up, request: pytest.FixtureRequest) -> str:
    return made(cluster, request, "stream")


def test_lines_in_lines_out(cluster: Up, new_log: str) -> None:
    appended = cluster.run("log", "append", new_log, "--json", stdin=b"a\n\n\xff\xfe\r\nlast").json
    assert appended == {"name": new_log, "term": 1, "entries": 4, "bytes": 8, "first_position": 0, "end": 4}
    again = cluster.run("log", "append", new_log, stdin=b"next\n")
    assert (again.status, again.stdout) == (0, f"log {new_log}: 1 entry at position 4\n".encode())
    assert cluster.run("log", "read", new_log).stdout == b"a\n\n\xff\xfe\r\nlast\nnext\n"
    assert cluster.run("log", "read", new_log, "--first", 3, "--last", 4).stdout == b"last\nnext\n"
    assert cluster.run("log", "read", new_log, "--first", 5).stdout == b""
    entries = [json.loads(line) for line in cluster.run("log", "read", new_log, "--json").stdout.splitlines()]
    assert [(entry["position"], entry["term"]) for entry in entries] == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2)]
    assert entries[2]["payload"] == {"base64": "//4N"}
    cluster.run("log", "read", new_log, "--last", 5).failed_with_one_line(1, new_log, "no position 5", "end is 5")
    cluster.run("log", "read", new_log, "--first", 6).failed_with_one_line(1, new_log, "no position 6")
    cluster.run("log", "read", new_log, "--first", 3, "--last", 2).failed_with_one_line(2, "--first 3")


def test_create_list_show_and_delete(cluster: Up) -> None:
    created = cluster.run("log", "create", "shop/orders", "-E", 2, "-W", 2, "-A", 1, "--retain-bytes", 1000, "--json")
    assert created.json["name"] == "shop/orders"
    cluster.run("log", "create", "shop/orders").failed_with_one_line(1, "shop/orders", "exists")
    listed = [json.loads(line) for line in cluster.run("log", "list", "shop/", "--json").stdout.splitlines()]
    (overview,) = listed
    assert (overview["name"], overview["end"], overview["end_is_known"]) == ("shop/orders", 0, True)
    assert (overview["leader"], overview["bytes"], overview["sealed"]) == (None, 0, False)
    assert b"shop/orders\n" in cluster.run("log", "list", "--names").stdout
    names = cluster.run("log", "list", "shop/", "--names", "--json")
    assert names.json == {"name": "shop/orders"}
    assert cluster.run("log", "append", "shop/orders", stdin=b"a\nb\n").status == 0
    shown = show(cluster, "shop/orders")
    assert (shown["name"], shown["layout"], shown["first_position"], shown["end"]) == ("shop/orders", "stream", 0, 2)
    assert (shown["term"], shown["leader"], shown["cursors"]) == (1, None, [])
    assert shown["retention"] == {"seconds": None, "bytes": 1000, "cursors": False}
    assert [(segment["first_position"], segment["entries"]) for segment in shown["segments"]] == [(0, 2)]
    assert "1000 bytes" in cluster.run("log", "show", "shop/orders").stdout.decode()
    header, row = cluster.run("log", "list", "shop/").stdout.decode().splitlines()
    assert header.split() == ["log", "end", "leader", "size", "age"]
    assert row.split()[:5] == ["shop/orders", "2", "-", "2", "B"]
    assert cluster.run("log", "delete", "shop/orders", "--yes").status == 0
    for command in ("show", "append", "read", "tail", "retain", "cursors", "delete"):
        cluster.run("log", command, "shop/orders").failed_with_one_line(1, "shop/orders")
    cluster.run("log", "delete", "a/../b").failed_with_one_line(2, "is not the name of a log")
    ledger_id = shown["segments"][0]["ledger_id"]
    cluster.run("ledger", "show", ledger_id).failed_with_one_line(1, str(ledger_id))


def test_a_log_with_keys_is_created_added_to_and_read(cluster: Up) -> None:
    cluster.run("log", "create", "shop/bills", "--keys", 0).failed_with_one_line(2, "entries must be")
    assert cluster.run("log", "create", "shop/bills", "--keys", 100).status == 0
    assert cluster.run("log", "append", "shop/bills", stdin=b"a\nb\n").status == 0
    assert cluster.run("log", "read", "shop/bills").stdout == b"a\nb\n"


@pytest.mark.parametrize("name", ["", "a/../b"])
def test_a_bad_name_is_bad_usage(cluster: Up, name: str) -> None:
    cluster.run("log", "create", name).failed_with_one_line(2, "is not the name of a log")


def test_a_password_is_asked_for_by_every_command_that_reads_or_leads(cluster: Up, tmp_path: Path) -> None:
    password = tmp_path / "password"
    write_secret(password, b"secret\n")
    assert cluster.run("log", "create", "hidden", "--password-file", password).status == 0
    assert cluster.run("log", "append", "hidden", "--password-file", password, stdin=b"x\n").status == 0
    assert cluster.run("log", "read", "hidden", OCTAVO_PASSWORD="secret").stdout == b"x\n"
    for command in (("read",), ("append",), ("tail",), ("truncate", "--before", 1)):
        refused = cluster.run("log", command[0], "hidden", *command[1:], OCTAVO_PASSWORD="guess")
        refused.failed_with_one_line(1, "hidden", "wrong password")
        assert refused.stdout == b""
    assert cluster.run("log", "read", "hidden", "--password-file", password).stdout == b"x\n"


def test_truncated_positions_are_refused_by_name_and_skipped_on_request(cluster: Up, new_log: str) -> None:
    cluster.run("log", "append", new_log, stdin=b"0\n1\n2\n3\n")
    with Running(cluster, "tail", new_log, "--cursor", "slow") as tail:
        assert [tail.line() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    truncated = cluster.run("log", "truncate", new_log, "--before", 3, "--json")
    assert truncated.json == {"name": new_log, "first_position": 3}
    assert cluster.run("log", "truncate", new_log, "--before", 1, "--json").json["first_position"] == 3
    cluster.run("log", "truncate", new_log, "--before", 5).failed_with_one_line(2, new_log, "beyond its end")
    cluster.run("log", "read", new_log, "--first", 1).failed_with_one_line(1, new_log, "begins at 3")
    cluster.run("log", "tail", new_log, "--first", 1).failed_with_one_line(1, new_log, "begins at 3")
    assert cluster.run("log", "read", new_log).stdout == b"3\n"
    with Running(cluster, "tail", new_log, "--first", 1, "--skip-truncated") as tail:
        assert tail.line() == b"3"
        status, rest, errors = tail.end(signal.SIGINT)
    assert (status, rest) == (130, b"")
    assert errors == f"octavo: log {new_log}: positions 1 to 2 are not there any more\n"


def test_a_tail_begins_at_the_end_unless_told_otherwise(cluster: Up, new_log: str) -> None:
    cluster.run("log", "append", new_log, stdin=b"0\n1\n2\n")
    with (
        Running(cluster, "append", new_log, "--positions") as leader,
        Running(cluster, "tail", new_log, "--from-start") as whole,
        Running(cluster, "tail", new_log, "--last", 2) as last,
        Running(cluster, "tail", new_log, "--last", 99) as all_of_it,
        Running(cluster, "tail", new_log, "--since", "1h") as recent,
        Running(cluster, "tail", new_log, "--since", "2000-01-01T00:00Z", "--payload", "hex") as old,
    ):
        assert [last.line(), last.line()] == [b"1", b"2"]
        assert [old.line() for _ in range(3)] == [b"30", b"31", b"32"]
        for tail in (whole, all_of_it, recent):
            assert [tail.line() for _ in range(3)] == [b"0", b"1", b"2"]
        with Running(cluster, "tail", new_log, "--json") as tail:
            # Lines go on until the tail has begun: the first one that it shows is none of those before.
            sent = 3

            def shows_a_line() -> bool:
                nonlocal sent
                leader.send(b"later\n")
                assert leader.line() == b"%d" % sent
                sent += 1
                assert tail.process.stdout is not None
                return bool(select.select([tail.process.stdout], [], [], 0)[0])

            wait_until(shows_a_line, "the tail to show a line")
            assert 3 <= json.loads(tail.line())["position"] < sent
        assert last.line() == b"later"


def test_a_tail_takes_one_beginning_only(cluster: Up, new_log: str) -> None:
    for given in (("--last", 1, "--first", 1), ("--cursor", "a", "--from-start"), ("--since", "1m", "--last", 1)):
        cluster.run("log", "tail", new_log, *given).failed_with_one_line(2, "give either")
    cluster.run("log", "tail", new_log, "--since", "soon").failed_with_one_line(2, "'soon' is no time", "10m")


def test_entries_are_read_by_the_time_at_which_they_were_added(cluster: Up, new_log: str) -> None:
    for number in range(3):
        cluster.run("log", "append", new_log, stdin=b"%d\n" % number)
    lines = cluster.run("log", "read", new_log, "--json").stdout.splitlines()
    times = [json.loads(line)["sealed_at"] for line in lines]
    assert sorted(set(times)) == times, "three processes have added them one after another"

    def read(*options: object) -> bytes:
        done = cluster.run("log", "read", new_log, *options)
        assert done.status == 0, done
        return done.stdout

    assert read("--since", times[1]) == b"1\n2\n"
    assert read("--until", times[1]) == b"0\n"
    assert read("--since", times[1], "--until", times[2]) == b"1\n"
    assert read("--at", times[1]) == b"1\n"
    assert read("--at", "2000-01-01T00:00Z") == b"0\n"
    assert read("--since", "1h", "--last", 1) == b"0\n1\n"
    assert read("--first", 1, "--until", times[2]) == b"1\n"
    assert read("--until", "2000-01-01T00:00Z") == b""
    assert read("--since", "2100-01-01T00:00Z") == b""
    cluster.run("log", "read", new_log, "--at", "2100-01-01T00:00Z").failed_with_one_line(1, "no entry added at 2100")
    cluster.run("log", "read", new_log, "--at", times[1], "--first", 1).failed_with_one_line(2, "--first or --at")
    cluster.run("log", "read", new_log, "--since", times[1], "--until", times[0]).failed_with_one_line(2, "lies after")
    cluster.run("log", "truncate", new_log, "--before", 2)
    assert read("--since", times[0]) == b"2\n"
    assert read("--until", times[1]) == b""


@pytest.mark.parametrize("led", [False, True], ids=["idle", "led"])
def test_a_log_is_deleted_only_after_a_question(cluster: Up, new_stream: str, *, led: bool) -> None:
    cluster.run("log", "append", new_stream, stdin=b"a\nb\n")
    with contextlib.ExitStack() as stack:
        if led:
            leader = stack.enter_context(Running(cluster, "append", new_stream, "--positions", "--leader", "node-3"))
            leader.send(b"c\n")
            assert leader.line() == b"2"
        refused = cluster.run("log", "delete", new_stream)
        refused.failed_with_one_line(1, new_stream, "give --yes to confirm", "'node-3'" if led else "loses its entries")
        with OnTerminal(cluster, "log", "delete", new_stream) as asked:
            asked.wait_for(b"Type the log's name to delete it: " if led else b"2 entries (2 B), has 0 cursors")
            asked.type(b"y\n" if led else b"\n")
            asked.wait_for(b"octavo: nothing has been deleted")
            assert asked.status() == 1
        assert show(cluster, new_stream)["end"] == 2 + led
        with OnTerminal(cluster, "log", "delete", new_stream) as asked:
            asked.wait_for(b"delete it: " if led else b"[y/N] ")
            asked.type(f"{new_stream}\n".encode() if led else b"y\n")
            asked.wait_for(b" deleted")
            assert asked.status() == 0
    cluster.run("log", "show", new_stream).failed_with_one_line(1, new_stream)


def test_top_shows_bookies_and_logs_and_obeys_keys(cluster: Up, new_stream: str) -> None:
    with Running(cluster, "append", new_stream, "--positions", "--leader", "node-3") as leader:
        leader.send(b"a\n")
        assert leader.line() == b"0"
        (row,) = cluster.run("top", new_stream, "--logs", "--once", "--interval", 0.2, "--json").json
        assert (row["name"], row["leader"], row["end"], row["adds_per_second"]) == (new_stream, "node-3", 1, 0.0)
        table = cluster.run("top", "--sort", "bookie", "--reverse", "--once", "--interval", 0.2).stdout.decode()
        bookies = [line.split()[0] for line in table.splitlines()[1:]]
        assert len(bookies) == 3
        assert bookies == sorted(bookies, reverse=True)
        cluster.run("top", "--sort", "lag").failed_with_one_line(2, "cannot be sorted by 'lag'")
        with OnTerminal(cluster, "top", new_stream, "--interval", 0.2) as screen:
            screen.wait_for(b"writable")
            screen.type(b"l")
            screen.wait_for(b"node-3")
            screen.type(b" ")
            screen.wait_for(b"paused")
            screen.type(b"q")
            assert screen.status() == 0
        with OnTerminal(cluster, "top", "--logs") as screen:
            screen.wait_for(b"slowest cursor")
            screen.process.send_signal(signal.SIGINT)
            assert screen.status() == 130


def test_a_pipe_that_stays_open_is_followed_by_a_cursor_that_advances(cluster: Up, new_log: str) -> None:
    with (
        Running(cluster, "append", new_log, "--positions", "--leader", "node-3") as leader,
        Running(cluster, "tail", new_log, "--cursor", "billing") as tail,
    ):
        for number in range(3):
            leader.send(b"line %d\n" % number)
            assert leader.line() == b"%d" % number
            assert tail.line() == b"line %d" % number
        assert show(cluster, new_log)["leader"] == "node-3"
        wait_until(lambda: cursor_positions(cluster, new_log).get("billing") == 3, "the cursor is stored")
        leader.send(b"incomplete")
        assert leader.end(signal.SIGINT) == (130, f"log {new_log}: 3 entries at positions 0 to 2\n".encode(), "")
        assert show(cluster, new_log)["leader"] is None
        cluster.run("log", "append", new_log, stdin=b"another\n")
        assert tail.line() == b"another"
        wait_until(lambda: cursor_positions(cluster, new_log) == {"billing": 4}, "the cursor is stored")
        assert tail.end(signal.SIGTERM) == (143, b"", "")
    with Running(cluster, "tail", new_log, "--cursor", "billing") as tail:
        cluster.run("log", "append", new_log, stdin=b"later\n")
        assert tail.line() == b"later"
    assert cluster.run("log", "cursors", new_log, "--delete", "billing").status == 0
    assert cursor_positions(cluster, new_log) == {}
    cluster.run("log", "cursors", new_log, "--delete", "billing").failed_with_one_line(1, "no cursor billing")


def test_a_second_append_waits_for_the_lead(cluster: Up, new_log: str) -> None:
    with (
        Running(cluster, "append", new_log, "--positions", "--leader", "first") as first,
        contextlib.ExitStack() as stack,
    ):
        first.send(b"a\n")
        assert first.line() == b"0"
        second = stack.enter_context(Running(cluster, "append", new_log, "--json"))
        second.send(b"c\n")
        assert second.process.stderr is not None
        assert b"it is led by 'first' now" in second.process.stderr.readline()
        first.send(b"b\n")
        assert first.line() == b"1"
        assert first.end()[0] == 0
        status, output, _ = second.end()
        assert status == 0
        assert (json.loads(output)["first_position"], json.loads(output)["term"]) == (2, 2)
    assert cluster.run("log", "read", new_log).stdout == b"a\nb\nc\n"


def test_a_standby_goes_on_after_kill_9_and_a_follower_sees_every_position_once(cluster: Up, new_log: str) -> None:
    lease = ("--lease-seconds", LEASE_SECONDS)
    with contextlib.ExitStack() as stack:

        def running(*arguments: object) -> Running:
            return stack.enter_context(Running(cluster, *arguments))

        follower = running("tail", new_log, "--from-start", "--json")
        leader = running("append", new_log, "--positions", "--leader", "old", *lease)
        leader.send(b"".join(b"%d\n" % number for number in range(1000)))
        assert [int(leader.line()) for _ in range(1000)] == list(range(1000))
        standby = running("append", new_log, "--positions", "--leader", "new", *lease)
        standby.send(b"standby\n")
        assert standby.process.stderr is not None
        assert b"led by 'old'" in standby.process.stderr.readline()
        leader.send(b"in flight\n")
        leader.process.kill()
        first = int(standby.line())
        assert first in (1000, 1001)
        seen = [json.loads(follower.line()) for _ in range(first + 1)]
        assert [entry["position"] for entry in seen] == list(range(first + 1))
        assert [entry["payload"] for entry in seen[:1000]] == [str(number) for number in range(1000)]
        assert (seen[first]["payload"], seen[first]["term"]) == ("standby", 2)
        assert show(cluster, new_log)["leader"] == "new"


def test_a_leader_that_stood_still_is_told_at_once_though_its_input_is_silent(cluster: Up, new_log: str) -> None:
    lease = ("--lease-seconds", LEASE_SECONDS)
    with contextlib.ExitStack() as stack:
        old = stack.enter_context(Running(cluster, "append", new_log, "--positions", *lease))
        old.send(b"x\n")
        assert old.line() == b"0"
        new = stack.enter_context(Running(cluster, "append", new_log, "--positions", *lease))
        new.send(b"x\n")
        with cluster.hanging(old.process.pid):
            assert new.line() == b"1"
        assert old.process.wait(WAIT_SECONDS) == 1
        assert old.process.stderr is not None
        errors = old.process.stderr.read().decode()
        assert "no longer leads" in errors
        assert "1 entry at position 0" in errors
    assert cluster.run("log", "read", new_log).stdout == b"x\nx\n"


def test_a_line_too_long_is_named_and_those_before_it_are_counted(cluster: Up, new_log: str) -> None:
    content = b"fine\n" * 200_000 + b"x" * (4 * 1024 * 1024 + 1) + b"\n"
    done = cluster.run("log", "append", new_log, stdin=content)
    done.failed_with_one_line(1, "line 200001", "acknowledged before")
    end = show(cluster, new_log)["end"]
    assert f"{end} entries at positions 0 to {end - 1}" in done.stderr
    assert cluster.run("log", "read", new_log).stdout == b"fine\n" * end


@pytest.mark.parametrize(("layout", "kept"), [("chain", b"2\n3\n"), ("stream", b"3\n")])
def test_retention_by_size_drops_whole_segments_behind_the_cursors(cluster: Up, layout: str, kept: bytes) -> None:
    """A chain keeps the last two segments, which the next leader recovers."""
    name = f"kept-{layout}"
    created = cluster.run("log", "create", name, "--layout", layout, "--retain-bytes", 1, "--retain-cursors")
    assert created.status == 0
    for number in range(4):
        assert cluster.run("log", "append", name, stdin=b"%d\n" % number).status == 0
    with Running(cluster, "tail", name, "--cursor", "one") as tail:
        assert [tail.line() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
        wait_until(lambda: cursor_positions(cluster, name) == {"one": 4}, "the cursor is stored")
    first = int(kept[:1])
    assert show(cluster, name)["drops_below"] == first
    assert cluster.run("log", "retain", name, "--json").json == {"name": name, "first_position": first}
    assert cluster.run("log", "read", name).stdout == kept


def test_bench_log_measures_both_ways_and_names_the_parts_of_a_failover(cluster: Up) -> None:
    arguments = ("--duration", 0.3, "--rounds", 1, "--in-flight", 100, "--failovers", 1, "--lease-seconds", 1)
    rolls = ("--rolls", 3, "--roll-rate", 200)
    measured = cluster.run("bench", "log", "--json", *arguments, *rolls).json
    assert measured["log_entries_per_second"] > 0
    assert measured["ratio"] == pytest.approx(
        measured["log_entries_per_second"] / measured["ledger_entries_per_second"], rel=0.01
    )
    assert min(measured["log_processor_us"], measured["ledger_processor_us"]) > 0
    rolled = measured["rolled"]
    assert (rolled["rolls"], rolled["adds_per_second"]) == (3, 200)
    for what in ("with_rolls", "without"):
        assert 0 < rolled[f"{what}_p50_ms"] <= rolled[f"{what}_p99_ms"] <= rolled[f"{what}_max_ms"]
    (failover,) = measured["failovers_s"]
    assert failover["total"] == pytest.approx(
        failover["lease"] + failover["takeover"] + failover["first_add"], abs=0.001
    )
    assert min(failover.values()) > 0
    assert b"octavo-bench" not in cluster.run("log", "list").stdout


def test_a_log_is_taken_over_from_a_leader_that_stands_still(cluster: Up, new_log: str) -> None:
    with Running(cluster, "append", new_log, "--positions") as leader:
        leader.send(b"one\n")
        assert leader.line() == b"0"
        leader.process.send_signal(signal.SIGSTOP)
        taken = cluster.run("log", "take-over", new_log, "--json")
        assert taken.json == {"name": new_log, "term": 2, "end": 1}
        leader.process.send_signal(signal.SIGCONT)
        assert leader.process.wait(WAIT_SECONDS) == 1, "it is told, although its input is silent"
    assert cluster.run("log", "read", new_log).stdout == b"one\n"
    assert show(cluster, new_log)["term"] == 2


def test_a_stream_is_sealed_and_shown_with_its_layout(cluster: Up, new_stream: str) -> None:
    assert cluster.run("log", "append", new_stream, stdin=b"a\nb\n").status == 0
    assert cluster.run("log", "seal", new_stream, "--json").json == {"name": new_stream, "end": 2}
    # It does not end by itself otherwise.
    told = f"octavo: log {new_stream} is sealed; it ends at 2\n"
    for first, shown_then in [(0, b"a\nb\n"), (2, b"")]:
        tail = cluster.run("log", "tail", new_stream, "--first", first)
        assert (tail.status, tail.stdout, tail.stderr) == (0, shown_then, told)
    beyond = cluster.run("log", "tail", new_stream, "--first", 3)
    beyond.failed_with_one_line(1, f"log {new_stream} is sealed and ends at 2", "never be a position 3")
    cluster.run("log", "take-over", new_stream).failed_with_one_line(1, new_stream, "is sealed")
    cluster.run("log", "append", new_stream, stdin=b"c\n").failed_with_one_line(1, new_stream, "is sealed")
    shown = show(cluster, new_stream)
    assert (shown["layout"], shown["end"], shown["paged_segments"], shown["sealed"]) == ("stream", 2, 0, True)
    assert shown["segments"][0]["entries"] == 2
    cluster.run("log", "give-up", new_stream, "--ledger", 1).failed_with_one_line(2, new_stream, "stream")
    assert cluster.run("log", "delete", new_stream, "--yes").status == 0


def test_quorums_of_a_stream_are_changed_and_its_leader_is_told(cluster: Up, new_stream: str) -> None:
    with Running(cluster, "append", new_stream, "--positions") as leader:
        leader.send(b"one\n")
        assert leader.line() == b"0"
        refused = cluster.run("log", "change", new_stream, "--write-quorum", 4)
        refused.failed_with_one_line(2, "E=3, Qw=4")
        cluster.run("log", "change", new_stream).failed_with_one_line(2, "at least one of ensemble size")
        leader.send(b"two\n")
        assert leader.line() == b"1", "it was not disturbed"
        changed = cluster.run("log", "change", new_stream, "-E", 2, "-W", 2, "--json")
        assert changed.json == {"name": new_stream, "quorums": [2, 2, 2], "end": 2}
        assert leader.process.wait(WAIT_SECONDS) == 1
    assert cluster.run("log", "append", new_stream, stdin=b"three\n").status == 0
    assert [one["quorums"] for one in show(cluster, new_stream)["segments"]] == [[3, 3, 2], [2, 2, 2]]
    assert b"E=2, Qw=2, Qa=2" in cluster.run("log", "show", new_stream).stdout
    assert cluster.run("log", "read", new_stream).stdout == b"one\ntwo\nthree\n"


def test_quorums_of_a_chain_are_not_changed(cluster: Up, new_chain: str) -> None:
    cluster.run("log", "change", new_chain, "-E", 2).failed_with_one_line(2, new_chain, "only streams")


def test_a_log_that_requires_all_copies_is_created_and_shown(cluster: Up) -> None:
    name = "whole/orders"
    wrong = cluster.run("log", "create", name, "--layout", "chain", "--full-copies", "required")
    wrong.failed_with_one_line(2, "layout='stream' only")
    created = cluster.run("log", "create", name, "--full-copies", "required")
    assert created.status == 0
    assert cluster.run("log", "append", name, stdin=b"a\nb\n").status == 0
    shown = show(cluster, name)
    assert (shown["full_copies"], shown["end"], [one["owed"] for one in shown["segments"]]) == ("required", 2, [None])
    assert b"required; nothing is owed" in cluster.run("log", "show", name).stdout


def test_a_chain_is_not_sealed(cluster: Up, new_chain: str) -> None:
    cluster.run("log", "seal", new_chain).failed_with_one_line(2, new_chain, "cannot be sealed")


def test_retention_is_replaced_and_a_lost_ledger_is_given_up(cluster: Up, new_chain: str) -> None:
    new_log = new_chain
    for number in range(3):
        assert cluster.run("log", "append", new_log, stdin=b"%d\n" % number).status == 0
    set_to = cluster.run("log", "set-retention", new_log, "--retain-seconds", 60, "--retain-cursors", "--json")
    assert set_to.json == {"name": new_log, "retention": {"seconds": 60.0, "bytes": None, "cursors": True}}
    assert show(cluster, new_log)["retention"] == {"seconds": 60.0, "bytes": None, "cursors": True}
    assert b"everything is kept" in cluster.run("log", "set-retention", new_log).stdout
    cluster.run("log", "set-retention", new_log, "--retain-bytes", 0).failed_with_one_line(
        2, "must be a whole number above 0"
    )
    lost = show(cluster, new_log)["segments"][1]["ledger_id"]
    cluster.run("log", "give-up", new_log, "--ledger", lost).failed_with_one_line(2, new_log, "nothing of it is lost")
    assert cluster.run("ledger", "delete", lost).status == 0
    cluster.run("log", "read", new_log).failed_with_one_line(1, new_log, f"ledger {lost}", "octavo log give-up")
    given_up = cluster.run("log", "give-up", new_log, "--ledger", lost)
    assert given_up.stdout == f"log {new_log}: ledger {lost} given up, with positions 1 to 1\n".encode()
    cluster.run("log", "read", new_log).failed_with_one_line(1, "positions 1 to 1 were lost", "read on at 2")
    assert cluster.run("log", "read", new_log, "--first", 2).stdout == b"2\n"
    assert "positions 1 to 1" in cluster.run("log", "show", new_log).stdout.decode()
    with Running(cluster, "tail", new_log, "--from-start") as tail:
        assert [tail.line(), tail.line()] == [b"0", b"2"]
        _, _, errors = tail.end(signal.SIGINT)
    assert errors == f"octavo: log {new_log}: positions 1 to 1 are not there any more\n"
