"""`octavo up --kafka` and `octavo gateway` with clients that others have written, killed while they produce."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pytest
from support.commands.gateways import CLIENTS, gateway, run_client
from support.commands.processes import WAIT_SECONDS, Up, environment, free_neighbours, octavo
from support.waiting import wait_until

KILLS = 2
ACKNOWLEDGED_BETWEEN = 500
"""Messages that are acknowledged between two kills."""


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--kafka", 0) as running:
        yield running.wait_ready()


@pytest.mark.parametrize("client", ["aiokafka", "kafka-python", "confluent-kafka"])
def test_a_client_produces_and_consumes(up: Up, client: str) -> None:
    got, end, *administered = run_client(CLIENTS, client, up.kafka)
    count = len(got["values"]) // 2
    assert got["values"] == [f"message {number}" for number in range(count)] * 2
    assert got["offsets"] == list(range(2 * count))
    assert end == {"end": 2 * count}
    assert administered == ([{"begins": 10, "partitions": 3}] if client == "confluent-kafka" else [])


def test_clients_change_the_retention_of_a_topic_and_are_told_that_it_is_not_compacted(up: Up) -> None:
    first, second, third, refused = run_client(CLIENTS, "settings", up.kafka)
    assert (first["retention.ms"], first["retention.bytes"], first["cleanup.policy"]) == ("7000", "5", "delete")
    assert (second["retention.ms"], second["retention.bytes"]) == ("7000", "1000000")
    assert (third["retention.ms"], third["retention.bytes"]) == ("-1", "1000000")
    assert "cleanup.policy can only be delete, not compact: compaction is not supported" in refused["refused"]


def test_no_message_of_an_idempotent_producer_is_lost_doubled_or_reordered_by_kills(tmp_path: Path) -> None:
    """The gateway is killed under load and started again; the producer goes on by itself (rules K2 to K5)."""
    port = free_neighbours(1)
    with Up(tmp_path / "data").wait_ready() as up, ExitStack() as stack:
        serving = ExitStack()
        stack.callback(serving.close)
        serving.enter_context(gateway(up.uri, port))
        producer = stack.enter_context(
            subprocess.Popen(
                [sys.executable, CLIENTS, "numbers", f"127.0.0.1:{port}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(),
            )
        )
        stack.callback(producer.kill)
        assert producer.stdin is not None
        assert producer.stdout is not None
        for _ in range(KILLS):
            wait_acknowledged(producer.stdout, ACKNOWLEDGED_BETWEEN)
            serving.close()  # kills it
            serving.enter_context(gateway(up.uri, port))
        wait_acknowledged(producer.stdout, ACKNOWLEDGED_BETWEEN)
        producer.stdin.close()
        produced = next(said["produced"] for line in producer.stdout if "produced" in (said := json.loads(line)))
        assert producer.wait(WAIT_SECONDS) == 0
        got, end = run_client(CLIENTS, "read", f"127.0.0.1:{port}", produced)
    assert got == {"numbers": list(range(produced)), "offsets": list(range(produced))}
    assert end == {"end": produced}


def wait_acknowledged(lines: IO[str], count: int) -> None:
    """Return once `count` more messages are acknowledged."""
    first = None
    for line in lines:
        acknowledged = json.loads(line)["acknowledged"]
        first = acknowledged if first is None else first
        if acknowledged >= first + count:
            return
    raise AssertionError("the producer has ended")


def test_a_gateway_ends_in_order(up: Up) -> None:
    """It serves beside the one of `octavo up`, and a signal ends it."""
    port = free_neighbours(1)
    with gateway(up.uri, port) as second:
        second.send_signal(signal.SIGTERM)
        assert second.wait(WAIT_SECONDS) == 128 + signal.SIGTERM


def test_topics_are_created_shown_changed_and_deleted(up: Up) -> None:
    """The gateway learns of each change."""
    metadata = ("--metadata", up.uri)

    def topic(*arguments: object) -> str:
        done = octavo("topic", *arguments, "--metadata", up.uri)
        assert done.status == 0, done
        return done.stdout.decode()

    topic("create", "bills", "--partitions", 2, "--set", "retention.ms=5000")
    produced = run_client(CLIENTS, "bills", up.kafka)
    assert produced == [{"bills": 3}]
    shown: dict[str, Any] = {}

    def is_shown() -> bool:  # bookies learn what is acknowledged a moment after the gateway
        shown.update(json.loads(topic("show", "bills", "--json")))
        return bool(shown["partition_list"][0]["end"] == 3)

    wait_until(is_shown, "bookies tell the end")
    assert (shown["partitions"], shown["write_quorum"], shown["settings"]["retention.ms"]) == (2, 3, "5000")
    assert [(one["begin"], one["end"], one["trouble"]) for one in shown["partition_list"]] == [(0, 3, ""), (0, 0, "")]
    assert shown["partition_list"][0]["gateway"] == 1
    topic("alter", "bills", "--partitions", 3, "--unset", "retention.ms")
    listed = [json.loads(line) for line in topic("list", "--json").splitlines()]
    bills = next(one for one in listed if one["name"] == "bills")
    assert (bills["partitions"], bills["settings"]["retention.ms"]) == (3, "-1")
    assert "bills" in topic("list")
    assert "keeps everything" in topic("show", "bills")
    octavo("topic", "delete", "bills", *metadata).failed_with_one_line(1, "loses its records; give --yes to confirm")
    topic("delete", "bills", "--yes")
    octavo("topic", "show", "bills", *metadata).failed_with_one_line(1, "there is no topic 'bills'")
    assert run_client(CLIENTS, "topics", up.kafka)[0]["bills"] is False


def test_the_records_of_a_partition_are_read_in_every_compression(up: Up) -> None:
    def read(*arguments: object) -> list[str]:
        done = octavo("log", "read", "kafka/codecs/0", "--records", *arguments, "--metadata", up.uri)
        assert done.status == 0, done
        return done.stdout.decode().splitlines()

    assert run_client(CLIENTS, "codecs", up.kafka) == [{"codecs": 10}]
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    wait_until(lambda: len(read("--json")) == 10, "bookies tell the end")
    shown = [json.loads(line) for line in read("--json")]
    assert [one["offset"] for one in shown] == list(range(10))
    assert [(one["key"], one["value"], one["headers"]) for one in shown[::2]] == [
        ("key", codec * 100, [{"name": "codec", "value": codec}]) for codec in codecs
    ]
    assert {(one["key"], one["value"], one["timestamp"]) for one in shown[1::2]} == {
        (None, None, "2026-01-01T00:00:00.001000+00:00")
    }
    position = shown[4]["position"]
    assert [one["offset"] for one in shown if one["position"] == position] == [4, 5], "a batch is an entry"
    assert read("--first", position, "--last", position, "--payload", "hex") == [
        f"4\t2026-01-01T00:00:00+00:00\t6b6579\tcodec={b'snappy'.hex()}\t{(b'snappy' * 100).hex()}",
        "5\t2026-01-01T00:00:00.001000+00:00\t\t\t",
    ]


def test_an_entry_that_is_no_batch_and_a_log_that_is_no_partition_are_refused(up: Up, tmp_path: Path) -> None:
    line = tmp_path / "line"
    line.write_text("hello\n")
    for name in ("kafka/made/0", "plain"):
        assert octavo("log", "create", name, "--metadata", up.uri).status == 0
        assert octavo("log", "append", name, line, "--metadata", up.uri).status == 0
    read = ("--records", "--metadata", up.uri)
    reason = "log kafka/made/0: the entry at position 0 is no batch of records: 5 bytes are less"
    octavo("log", "read", "kafka/made/0", *read).failed_with_one_line(1, reason)
    reason = "log plain is no partition of a Kafka topic, such as kafka/orders/0"
    octavo("log", "read", "plain", *read).failed_with_one_line(2, reason)


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (["create", "a/b"], 2, "the name of a topic is"),
        (["create", "__consumer_offsets"], 2, "are the gateway's own"),
        (["create", "new", "--set", "retention.ms"], 2, "write SETTING=VALUE"),
        (["create", "new", "--set", "cleanup.policy=compact"], 2, "compaction is not supported"),
        (["create", "new", "--set", "retention.ms=1", "--set", "retention.ms=2"], 2, "is given twice"),
        (["create", "new", "--copies", "9"], 2, "9 copies of each batch, and there are 3 bookies"),
        (["create", "new", "--partitions", "0"], 2, "a topic has 1 to 1000 partitions"),
        (["alter", "none", "--set", "retention.ms=1"], 1, "there is no topic 'none'"),
        (["alter", "none"], 2, "there is nothing to change"),
        (["delete", "none", "--yes"], 1, "there is no topic 'none'"),
        (["delete", "no/ne", "--yes"], 1, "there is no topic 'no/ne'"),
        (["show", "none"], 1, "there is no topic 'none'"),
    ],
)
def test_what_no_topic_can_be_is_refused(up: Up, arguments: list[str], status: int, reason: str) -> None:
    octavo("topic", *arguments, "--metadata", up.uri).failed_with_one_line(status, reason)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--listen", "example.org:9092"], "can be reached by other hosts"),
        (["--listen", "127.0.0.1"], "is no address like"),
        (["--listen", "127.0.0.1:99999"], "is no address like"),
        (["--admin-listen", "0.0.0.0:9180"], "on a loopback address only"),
        (["--ack-quorum", "3", "--write-quorum", "2"], "3 is above --write-quorum"),
    ],
)
def test_what_a_gateway_cannot_do_yet_is_refused(arguments: list[str], reason: str) -> None:
    octavo("gateway", *arguments).failed_with_one_line(2, reason)


def test_a_port_that_is_taken_is_named(up: Up, tmp_path: Path) -> None:
    port = up.kafka.rpartition(":")[2]
    with Up(tmp_path / "data", "--kafka", port) as second:
        assert second.process.wait(WAIT_SECONDS) == 1
        assert f"127.0.0.1:{port}" in second.stderr
