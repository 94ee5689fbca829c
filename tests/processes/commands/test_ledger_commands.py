"""`octavo ledger` on a real cluster: the same bytes back, one clear line when something is wrong, nothing half-made."""

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.clusters.secrets import write_secret
from support.commands.processes import OCTAVO, Up, environment, octavo
from support.waiting import WAIT_SECONDS, wait_until

NASTY_FILES = {
    "empty": b"",
    "one newline": b"\n",
    "only newlines": b"\n" * 5000,
    "no final newline": b"first\nsecond",
    "one line, no newline": b"x",
    "crlf": b"a\r\nb\r\n\r\nc",
    "carriage returns": b"\r\r\n\r",
    "zero bytes": b"\0\0\n\0" + b"\0" * 1000,
    "every byte": bytes(range(256)) * 50,
    "not utf-8": b"\xff\xfe\n\xc3(\n\xed\xa0\x80",
    "long line": b"y" * 3_000_000 + b"\n" + b"z" * 1_500_000,
    "many lines": b"".join(b"line %d\n" % number for number in range(60_000)) + b"end",
}


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


def ledger_ids(cluster: Up) -> set[int]:
    listed = cluster.run("ledger", "list", "--json")
    assert listed.status == 0, listed
    return {json.loads(line)["ledger_id"] for line in listed.stdout.splitlines()}


@pytest.mark.parametrize("name", NASTY_FILES)
def test_append_and_read_give_the_same_bytes_back(cluster: Up, tmp_path: Path, name: str) -> None:
    content = NASTY_FILES[name]
    file = tmp_path / "file"
    file.write_bytes(content)
    appended = cluster.run("ledger", "append", file, "--json").json
    assert appended["entries"] == content.count(b"\n") + (bool(content) and not content.endswith(b"\n"))
    assert appended["bytes"] == len(content) - content.count(b"\n")
    read = cluster.run("ledger", "read", appended["ledger_id"])
    assert (read.status, read.stderr) == (0, "")
    assert read.stdout == content


def test_appending_with_deferred_sync_forces_everything_at_the_end(cluster: Up) -> None:
    """Rule W10: the command ends when the ledger is closed, and so what it printed is on disk."""
    lines = b"".join(b"%d\n" % n for n in range(5000))
    ledger_id = cluster.run("ledger", "append", "--sync", "deferred", "--json", stdin=lines).json["ledger_id"]
    shown = cluster.run("ledger", "show", ledger_id, "--json").json
    assert (shown["sync"], shown["state"], shown["last_entry_id"]) == ("deferred", "closed", 4999)
    assert cluster.run("ledger", "read", ledger_id).stdout == lines
    bench = cluster.run("bench", "write", "--sync", "deferred", "--count", 300, "--warm-up", 0, "--json").json
    assert (bench["entries"], bench["errors"]) == (300, 0)
    cluster.run("ledger", "append", "--sync", "never", stdin=b"x").failed_with_one_line(2, "--sync", "never")


def test_append_takes_standard_input_and_whole_files_in_chunks(cluster: Up, tmp_path: Path) -> None:
    content = b"no\nlines\r\nhere\0" * 20_001
    from_input = cluster.run("ledger", "append", "-", "--json", stdin=b"a\nb").json
    assert cluster.run("ledger", "read", from_input["ledger_id"]).stdout == b"a\nb"
    file = tmp_path / "file"
    file.write_bytes(content)
    whole = cluster.run("ledger", "append", file, "--whole-file", "--chunk", 1000, "--json").json
    assert whole["entries"] == -(-len(content) // 1000)
    assert cluster.run("ledger", "read", whole["ledger_id"]).stdout == content


def test_read_of_a_range_and_raw(cluster: Up) -> None:
    ledger_id = cluster.run("ledger", "append", "--json", stdin=b"a\nb\nc\nd").json["ledger_id"]
    assert cluster.run("ledger", "read", ledger_id, "--first", 1, "--last", 2).stdout == b"b\nc\n"
    assert cluster.run("ledger", "read", ledger_id, "--first", 2).stdout == b"c\nd"
    assert cluster.run("ledger", "read", ledger_id, "--raw").stdout == b"abcd"
    cluster.run("ledger", "read", ledger_id, "--first", 4).failed_with_one_line(1, str(ledger_id), "no entry 4")
    cluster.run("ledger", "read", ledger_id, "--last", 9).failed_with_one_line(1, str(ledger_id), "no entry 9")
    cluster.run("ledger", "read", ledger_id, "--first", 3, "--last", 2).failed_with_one_line(2, "--first 3")


def test_show_list_create_and_delete(cluster: Up) -> None:
    ledger_id = cluster.run("ledger", "create", "-E", 2, "-W", 2, "-A", 1, "--digest", "hmac-sha256", "--json").json[
        "ledger_id"
    ]
    shown = cluster.run("ledger", "show", ledger_id, "--json").json
    assert shown["state"] == "closed"
    assert (shown["ensemble_size"], shown["write_quorum"], shown["ack_quorum"]) == (2, 2, 1)
    assert (shown["last_entry_id"], shown["length"]) == (None, 0)
    assert [fragment["first_entry_id"] for fragment in shown["fragments"]] == [0]
    bookies = cluster.run("bookies", "--json").json
    assert set(shown["fragments"][0]["bookies"]) < {bookie["bookie_id"] for bookie in bookies}
    assert {bookie["state"] for bookie in bookies} == {"writable"}
    assert b"hmac" in cluster.run("ledger", "show", ledger_id).stdout
    assert ledger_id in ledger_ids(cluster)
    assert cluster.run("ledger", "delete", ledger_id).status == 0
    assert ledger_id not in ledger_ids(cluster)
    for command in ("show", "read", "tail", "delete"):
        cluster.run("ledger", command, ledger_id).failed_with_one_line(1, str(ledger_id))


def test_metadata_in_memory_are_refused(cluster: Up) -> None:
    cluster.run("ledger", "list", "--metadata", "memory://x").failed_with_one_line(2, "memory://x", "sqlite:///PATH")


def test_wrong_password_is_one_line_and_reads_nothing(cluster: Up, tmp_path: Path) -> None:
    password = tmp_path / "password"
    write_secret(password, b"secret\n")
    appended = cluster.run("ledger", "append", "--password-file", password, "--json", stdin=b"hidden\n").json
    ledger_id = appended["ledger_id"]
    assert cluster.run("ledger", "read", ledger_id, OCTAVO_PASSWORD="secret").stdout == b"hidden\n"
    refused = cluster.run("ledger", "read", ledger_id)
    refused.failed_with_one_line(1, str(ledger_id))
    assert refused.stdout == b""
    cluster.run("ledger", "read", ledger_id, "--password-file", tmp_path / "none").failed_with_one_line(1, "none")


def test_a_line_too_long_is_named_and_leaves_no_ledger(cluster: Up) -> None:
    before = ledger_ids(cluster)
    content = b"fine\n" * 100_000 + b"x" * (4 * 1024 * 1024 + 1) + b"\n"
    cluster.run("ledger", "append", stdin=content).failed_with_one_line(1, "line 100001")
    assert ledger_ids(cluster) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_append_leaves_no_ledger(cluster: Up, number: signal.Signals) -> None:
    before = ledger_ids(cluster)
    with subprocess.Popen(
        [*OCTAVO, "ledger", "append"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(OCTAVO_METADATA=cluster.uri),
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"some\nlines\n")
        process.stdin.flush()
        wait_until(lambda: ledger_ids(cluster) != before, "the ledger is created")
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == 128 + number
        assert process.stderr is not None
        # Nothing but how to follow the ledger, if it waited for input long enough.
        assert re.fullmatch(
            rb"(octavo: waiting for input; `octavo ledger tail \d+` follows the ledger\n)?", process.stderr.read()
        )
    assert ledger_ids(cluster) == before


def test_each_line_of_a_pipe_is_acknowledged_while_the_pipe_is_open(cluster: Up, tmp_path: Path) -> None:
    errors = tmp_path / "stderr"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [*OCTAVO, "ledger", "append", "--quiet"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(OCTAVO_METADATA=cluster.uri),
        ) as writer,
    ):
        assert writer.stdin is not None
        assert writer.stdout is not None
        wait_until(lambda: b"follows the ledger" in errors.read_bytes(), "the command says how to follow the ledger")
        (ledger_id,) = re.findall(rb"octavo ledger tail (\d+)", errors.read_bytes())

        def is_read(content: bytes) -> bool:
            return cluster.run("ledger", "read", ledger_id.decode()).stdout == content

        for number in range(1, 4):
            writer.stdin.write(b"line\n")
            writer.stdin.flush()
            wait_until(partial(is_read, b"line\n" * number), "the line is acknowledged")
        writer.stdin.close()
        assert writer.stdout.read() == ledger_id + b"\n"
        assert writer.wait(WAIT_SECONDS) == 0


def listed(cluster: Up, *arguments: object) -> list[int]:
    found = cluster.run("ledger", "list", "--json", *arguments)
    assert found.status == 0, found
    return [json.loads(line)["ledger_id"] for line in found.stdout.splitlines()]


def test_custom_metadata_are_given_shown_and_searched(cluster: Up) -> None:
    made = {
        (app, host): cluster.run(
            *("ledger", "append", "--json", "--custom", f"app={app}", "--custom", f"host={host}"), stdin=b"x\n"
        ).json["ledger_id"]
        for app in ("orders", "billing")
        for host in ("a=b", "c")
    }
    created = cluster.run("ledger", "create", "--json", "--custom", "app=orders").json["ledger_id"]
    shown = cluster.run("ledger", "show", made["orders", "a=b"], "--json").json
    assert shown["custom_metadata"] == {"app": "orders", "host": "a=b"}
    orders = [made["orders", "a=b"], made["orders", "c"], created]
    assert listed(cluster, "--where", "app=orders") == orders
    assert listed(cluster, "--where", "app=orders", "--where", "host=a=b") == [made["orders", "a=b"]]
    assert listed(cluster, "--where", "app=orders", "--limit", 2) == orders[:2]
    assert listed(cluster, "--where", "app=orders", "--state", "open") == []
    assert listed(cluster, "--where", "app=orders", "--state", "closed") == orders
    assert listed(cluster, "--where", "app=order") == listed(cluster, "--where", "none=") == []
    assert len(listed(cluster, "--limit", 1)) == 1
    before = ledger_ids(cluster)
    for wrong in ("novalue", "=x", "octavo.separator=none"):
        cluster.run("ledger", "append", "--custom", wrong, stdin=b"x\n").failed_with_one_line(2, "--custom")
    cluster.run("ledger", "create", "--custom", "a=1", "--custom", "a=2").failed_with_one_line(2, "given twice")
    cluster.run("ledger", "list", "--where", "novalue").failed_with_one_line(2, "--where novalue")
    cluster.run("ledger", "list", "--state", "ajar").failed_with_one_line(2, "ajar")
    assert ledger_ids(cluster) == before


def test_bookies_show_doubt_and_a_running_one_is_not_forgotten(cluster: Up) -> None:
    shown = cluster.run("bookies")
    header, *lines = shown.stdout.decode().splitlines()
    assert "doubt" in header.split()
    bookies = cluster.run("bookies", "--json").json
    assert all("none" in row.split() for row in lines[: len(bookies)])
    bookie_id = bookies[0]["bookie_id"]
    cluster.run("bookies", "--forget", bookie_id).failed_with_one_line(1, bookie_id, "registered", "stop it")
    assert bookie_id in {bookie["bookie_id"] for bookie in cluster.run("bookies", "--json").json}


def test_unreachable_zookeeper_is_reported_long_before_the_command_gives_up(tmp_path: Path) -> None:
    errors = tmp_path / "stderr"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            [*OCTAVO, "bookies", "--metadata", "zk://127.0.0.1:1/octavo"], stderr=stderr, env=environment()
        ) as process,
    ):
        wait_until(lambda: b"ZooKeeper cannot be reached" in errors.read_bytes(), "the first notice")
        assert process.poll() is None
        assert b"127.0.0.1:1" in errors.read_bytes()
        process.kill()


def test_tail_follows_an_open_ledger_to_its_end_and_read_says_that_it_is_open(cluster: Up) -> None:
    before = ledger_ids(cluster)
    with subprocess.Popen(
        [*OCTAVO, "ledger", "append", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(OCTAVO_METADATA=cluster.uri),
    ) as writer:
        assert writer.stdin is not None
        writer.stdin.write(b"first\n")
        writer.stdin.flush()
        wait_until(lambda: ledger_ids(cluster) != before, "the ledger is created")
        (ledger_id,) = ledger_ids(cluster) - before
        with subprocess.Popen(
            [*OCTAVO, "ledger", "tail", str(ledger_id)],
            stdout=subprocess.PIPE,
            env=environment(OCTAVO_METADATA=cluster.uri),
        ) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline() == b"first\n"
            open_read = cluster.run("ledger", "read", ledger_id)
            assert open_read.status == 0
            assert open_read.stdout in (b"first\n", b"")
            assert "still open" in open_read.stderr
            writer.stdin.write(b"second\n")
            writer.stdin.flush()
            assert tail.stdout.readline() == b"second\n"
            writer.stdin.close()
            assert tail.stdout.read() == b""
            assert tail.wait(WAIT_SECONDS) == 0
        assert writer.wait(WAIT_SECONDS) == 0


def test_a_reader_that_goes_away_is_no_error_message(cluster: Up) -> None:
    appended = cluster.run("ledger", "append", "--json", stdin=b"0123456789\n" * 300_000).json
    with subprocess.Popen(
        [*OCTAVO, "ledger", "read", str(appended["ledger_id"])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(OCTAVO_METADATA=cluster.uri),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(11) == b"0123456789\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(WAIT_SECONDS) == 128 + signal.SIGPIPE


def test_bench_write_then_read(cluster: Up) -> None:
    written = cluster.run(
        "bench",
        "write",
        "--json",
        "--count",
        5000,
        "--entry-size",
        100,
        "--in-flight",
        50,
        "--ledgers",
        2,
        "--warm-up",
        0.1,
    ).json
    assert written["entries"] == 5000
    assert written["errors"] == written["unsent"] == 0
    assert written["entries_per_second"] == pytest.approx(5000 / written["seconds"], rel=0.01)
    assert 0 < written["latency_ms"]["p50"] <= written["latency_ms"]["p99"] <= written["latency_ms"]["p99_9"]
    assert written["latency_ms"]["p99_9"] <= written["latency_ms"]["max"]
    ids = written["ledger_ids"]
    read = cluster.run("bench", "read", "--json", *ids).json
    assert (read["entries"], read["errors"]) == (5000, 0)
    scattered = cluster.run("bench", "read", "--json", "--random", "--count", 200, "--in-flight", 10, *ids).json
    assert (scattered["entries"], scattered["errors"]) == (200, 0)
    newest = cluster.run("bench", "read", "--json", "--ledgers", 2).json
    assert sorted(newest["ledger_ids"]) == sorted(ids)


def test_bench_write_in_batches_at_a_rate_and_as_a_table(cluster: Up) -> None:
    before = ledger_ids(cluster)
    arguments = ("--count", 1000, "--batch", 100, "--warm-up", 0, "--delete")
    batched = cluster.run("bench", "write", "--json", "--entry-size", 10, *arguments).json
    assert (batched["entries"], batched["errors"]) == (1000, 0)
    paced = cluster.run("bench", "write", "--json", "--rate", 1000, "--count", 300, "--warm-up", 0, "--delete").json
    assert (paced["entries"], paced["errors"], paced["unsent"]) == (300, 0, 0)
    assert paced["seconds"] >= 0.29
    table = cluster.run("bench", "write", *arguments)
    assert table.status == 0
    assert b"1,000" in table.stdout
    assert ledger_ids(cluster) == before


def test_impossible_quorums_too_few_bookies_and_typos(cluster: Up) -> None:
    before = ledger_ids(cluster)
    cluster.run("ledger", "create", "-E", 2, "-W", 3).failed_with_one_line(2, "E=2", "Qw=3")
    cluster.run("ledger", "create", "-E", 4, "-W", 3).failed_with_one_line(1, "4", "3")
    mistyped = cluster.run("ledger", "create", "--ensembel", 3)
    mistyped.failed_with_one_line(2, "--ensembel", "--ensemble", "`octavo ledger create --help`")
    cluster.run("ledger", "show", "seven").failed_with_one_line(
        2, "'ID'", "'seven' is not a valid int range", "`octavo ledger show --help`"
    )
    cluster.run("leger", "show", 7).failed_with_one_line(2, "'leger'", "'ledger'", "`octavo --help`")
    assert cluster.run("ledger", "show", "--", "-1").status == 2
    assert cluster.run("bench", "write", "--count", 10, "--duration", 1).status == 2
    assert ledger_ids(cluster) == before


def test_no_cluster_is_one_line_that_names_it_and_makes_nothing(tmp_path: Path) -> None:
    octavo("ledger", "list", cwd=tmp_path).failed_with_one_line(1, "octavo-data/metadata.db")
    assert os.listdir(tmp_path) == []
    octavo("ledger", "list", "--metadata", "foo://bar").failed_with_one_line(2, "foo")


def test_traceback_only_when_debugging(tmp_path: Path) -> None:
    assert "Traceback" in octavo("ledger", "list", "--log-level", "debug", cwd=tmp_path).stderr
    assert "Traceback" not in octavo("ledger", "list", cwd=tmp_path).stderr


def test_several_appends_at_once_get_ledgers_of_their_own(cluster: Up) -> None:
    results: dict[int, int] = {}

    def append(number: int) -> None:
        results[number] = cluster.run("ledger", "append", "--json", stdin=b"%d\n" % number * 1000).json["ledger_id"]

    threads = [threading.Thread(target=append, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(results.values())) == 3
    for number, ledger_id in results.items():
        assert cluster.run("ledger", "read", ledger_id).stdout == b"%d\n" % number * 1000


def test_an_interrupt_that_arrives_twice_is_one_and_leaves_no_ledger(cluster: Up) -> None:
    before = ledger_ids(cluster)
    with subprocess.Popen(
        [*OCTAVO, "ledger", "append"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(OCTAVO_METADATA=cluster.uri),
    ) as process:
        wait_until(lambda: ledger_ids(cluster) != before, "the ledger is created")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert ledger_ids(cluster) == before


@pytest.mark.parametrize(
    ("command", "closed"), [("ledger append", "<&-"), ("ledger list", ">&-"), ("ledger list --json", ">&-")]
)
def test_a_closed_standard_stream_is_one_clear_line_and_leaves_no_ledger(
    cluster: Up, command: str, closed: str
) -> None:
    cluster.run("ledger", "append", stdin=b"something\n")
    before = ledger_ids(cluster)
    program = " ".join(OCTAVO)
    done = subprocess.run(
        f"exec {program} {command} {closed}",
        shell=True,
        stderr=subprocess.PIPE,
        env=environment(OCTAVO_METADATA=cluster.uri),
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"octavo: Bad file descriptor\n")
    assert ledger_ids(cluster) == before
