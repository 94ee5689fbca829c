"""Produce and Fetch of kcat and of Python's clients at a gateway, kept as golden files with ``--rewrite``.

What they say now is read by the judge of the golden files, too (``tests/gateway/wire/test_captures.py``).
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands.gateways import CLIENTS, kcat, recorded, run_client
from support.commands.processes import Up
from support.kafka.captures import check_captures
from support.kafka.recorder import Recorder


@pytest.fixture(scope="module")
def recorder(module_folder: Path) -> Iterator[Recorder]:
    with Up(module_folder / "data").wait_ready() as up, recorded(up.uri) as recorder:
        yield recorder


def with_kcat(address: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        kcat(f"echo {codec} | kcat -P -b {address} -t captured -z {codec} -H a=b -X enable.idempotence=true")
        kcat(f"echo {codec} | kcat -P -b {address} -t captured -X acks=0")
    assert len(kcat(f"kcat -C -b {address} -t captured -e -q").splitlines()) >= 5


def with_confluent_kafka(address: str) -> None:
    run_client(CLIENTS, "confluent-kafka", address)
    run_client(CLIENTS, "codecs", address)


@pytest.mark.parametrize(
    ("client", "use"),
    [
        ("kcat", with_kcat),
        ("confluent-kafka", with_confluent_kafka),
        ("aiokafka", lambda address: run_client(CLIENTS, "aiokafka", address)),
        ("kafka-python", lambda address: run_client(CLIENTS, "kafka-python", address)),
    ],
)
def test_produce_and_fetch_of_a_client(
    recorder: Recorder, pytestconfig: pytest.Config, client: str, use: Callable[[str], object]
) -> None:
    recorder.exchanges.clear()
    use(recorder.address)
    check_captures(pytestconfig, client, recorder.exchanges)
