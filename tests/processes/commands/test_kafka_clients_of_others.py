"""Clients of Kafka's protocol for Node.js, Go and Java at a gateway, fetched from their registries.

They are built from tests/support/programs/kafka_of_others with `npm`, `go` and `mvn`, which must be there: `make soak`
runs this module (tests/left_to_soak.txt). What they say of Produce and Fetch becomes golden files with ``--rewrite``
(``tests/gateway/wire/test_captures.py``).
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.commands.gateways import PROGRAMS, recorded
from support.commands.processes import Up
from support.kafka.captures import check_captures
from support.kafka.recorder import Recorder

SOURCES = PROGRAMS / "kafka_of_others"
BUILD_SECONDS = 600
RUN_SECONDS = 150
COUNT = 1000


@pytest.fixture(scope="module")
def recorder(module_folder: Path) -> Iterator[Recorder]:
    with Up(module_folder / "data").wait_ready() as up, recorded(up.uri) as recorder:
        yield recorder


@pytest.fixture
def address(recorder: Recorder) -> str:
    """Where clients reach the gateway."""
    recorder.exchanges.clear()
    return recorder.address


def run(*command: object, folder: Path | None = None, seconds: float = RUN_SECONDS) -> str:
    """What the command has printed."""
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def modules(module_folder: Path) -> Path:
    """The clients for Node.js, installed."""
    folder = module_folder / "node"
    shutil.copytree(SOURCES, folder)
    run("npm", "install", "--no-fund", "--no-audit", "--no-package-lock", folder=folder, seconds=BUILD_SECONDS)
    return folder


def test_kafkajs(recorder: Recorder, address: str, modules: Path, pytestconfig: pytest.Config) -> None:
    said = json.loads(run("node", modules / "kafkajs.mjs", address).splitlines()[-1])
    assert said.pop("received") >= COUNT
    assert said == {
        "created": True, "got": COUNT, "state": "Stable", "committed": COUNT, "reset": -2 * 3, "partitions": 5,
    }  # fmt: skip
    check_captures(pytestconfig, "kafkajs", recorder.exchanges)


def test_platformatic_kafka(recorder: Recorder, address: str, modules: Path, pytestconfig: pytest.Config) -> None:
    said = json.loads(run("node", modules / "platformatic.mjs", address).splitlines()[-1])
    assert said.pop("received") >= COUNT
    assert "platformatic" in said.pop("groups")
    assert said == {"got": COUNT, "state": ["STABLE"]}
    check_captures(pytestconfig, "platformatic", recorder.exchanges)


def test_franz_go(recorder: Recorder, address: str, module_folder: Path, pytestconfig: pytest.Config) -> None:
    folder = module_folder / "go"
    folder.mkdir()
    shutil.copy(SOURCES / "main.go", folder)
    run("go", "mod", "init", "client", folder=folder)
    run("go", "mod", "tidy", folder=folder, seconds=BUILD_SECONDS)
    run("go", "build", "-o", "client", ".", folder=folder, seconds=BUILD_SECONDS)
    assert json.loads(run(folder / "client", address)) == {"got": COUNT, "lag": 0, "state": "Stable"}
    check_captures(pytestconfig, "franz-go", recorder.exchanges)


@pytest.fixture(scope="module")
def java(recorder: Recorder, module_folder: Path) -> Callable[..., str]:
    """Runs a class of Kafka's own tools against the gateway."""
    folder = module_folder / "java"
    folder.mkdir()
    shutil.copy(SOURCES / "pom.xml", folder)
    run(
        "mvn",
        "-q",
        "-B",
        "dependency:copy-dependencies",
        "-DoutputDirectory=jars",
        folder=folder,
        seconds=BUILD_SECONDS,
    )

    def tool(name: str, *words: object) -> str:
        main = f"org.apache.kafka.tools.{name}"
        return run("java", "-Xmx256m", "-cp", f"{folder}/jars/*", main, "--bootstrap-server", recorder.address, *words)

    return tool


def test_tools_of_kafka(
    recorder: Recorder, address: str, java: Callable[..., str], pytestconfig: pytest.Config
) -> None:
    topic, group = ("--topic", "of-java"), ("--group", "verified")
    java("TopicCommand", "--create", *topic, "--partitions", 3)
    assert "PartitionCount: 3" in java("TopicCommand", "--describe", *topic)
    sent = [json.loads(line) for line in java("VerifiableProducer", *topic, "--max-messages", COUNT).splitlines()]
    assert (sent[-1]["sent"], sent[-1]["acked"]) == (COUNT, COUNT)
    options = ("--group-id", "verified", "--max-messages", COUNT, "--reset-policy", "earliest")
    read = [json.loads(line) for line in java("VerifiableConsumer", *topic, *options).splitlines()]
    assert sum(line["count"] for line in read if line["name"] == "records_consumed") == COUNT
    groups = "consumer.group.ConsumerGroupCommand"
    assert re.search(r"^verified\s+Empty\s*$", java(groups, "--list", "--state"), re.MULTILINE)
    rows = re.findall(r"^verified\s+of-java\s+\d\s+(\d+)\s+\d+\s+0\s", java(groups, "--describe", *group), re.MULTILINE)
    assert sum(map(int, rows)) == COUNT, "all are committed, and nothing lags"
    java(groups, *group, *topic, "--reset-offsets", "--to-earliest", "--execute")
    java(groups, "--delete", *group)
    java("TopicCommand", "--delete", *topic)
    assert "of-java" not in java("TopicCommand", "--list")
    check_captures(pytestconfig, "java", recorder.exchanges)


def test_tools_of_kafka_with_the_consumer_protocol(recorder: Recorder, java: Callable[..., str]) -> None:
    """Rule K16. One consumer reads a topic by name, another one topics by a pattern."""
    topic, group = ("--topic", "of-java-848"), ("--group", "of-848")
    java("TopicCommand", "--create", *topic, "--partitions", 3)
    java("VerifiableProducer", *topic, "--max-messages", COUNT)
    options = ("--group-id", "of-848", "--group-protocol", "consumer", "--max-messages", COUNT)
    said = java("VerifiableConsumer", *topic, *options, "--reset-policy", "earliest")
    read = [json.loads(line) for line in said.splitlines()]
    assert sum(line["count"] for line in read if line["name"] == "records_consumed") == COUNT
    tool = "consumer.group.ConsumerGroupCommand"
    assert re.search(r"^of-848\s+Consumer\s*$", java(tool, "--list", "--type"), re.MULTILINE)
    rows = re.findall(r"^of-848\s+of-java-848\s+\d\s+(\d+)\s+\d+\s+0\s", java(tool, "--describe", *group), re.MULTILINE)
    assert sum(map(int, rows)) == COUNT, "all are committed, and nothing lags"
    console = ("--from-beginning", "--max-messages", COUNT, "--command-property", "group.protocol=consumer")
    for chosen in (topic, ("--include", "of-.*-848")):
        assert len(java("consumer.ConsoleConsumer", *chosen, *console).splitlines()) == COUNT
    java(tool, "--delete", *group)
    java("TopicCommand", "--delete", *topic)
