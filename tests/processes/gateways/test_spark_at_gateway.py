"""Spark's own Kafka source and sink at a gateway: batches, a stream that is killed, its restart from its checkpoint.

The connector comes from Maven (`mvn` must be there): `make soak` runs this module (tests/left_to_soak.txt).
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands.gateways import GROUPS, PROGRAMS, run_client
from support.commands.processes import Up, environment

PROGRAM = PROGRAMS / "kafka_spark.py"
PARTITIONS = 3
COUNT = 300
BATCH_ROWS = 40
"""Of a batch of the stream."""

BUILD_SECONDS = 600
RUN_SECONDS = 400


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--kafka", 0) as running:
        yield running.wait_ready()


@pytest.fixture(scope="module")
def jars(module_folder: Path) -> Path:
    """The connector, with what it needs beside Spark."""
    folder = module_folder / "connector"
    folder.mkdir()
    shutil.copy(PROGRAMS / "kafka_of_others" / "spark" / "pom.xml", folder)
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=jars", "-DincludeScope=runtime"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    return folder / "jars"


def spark(stage: str, up: Up, jars: Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, PROGRAM, stage, up.kafka, jars, folder],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(PYSPARK_PYTHON=sys.executable),
    )


def test_sparks_kafka_source_and_sink(up: Up, jars: Path, tmp_path: Path) -> None:
    run_client(GROUPS, "topic", up.kafka, "of-spark", PARTITIONS)
    with spark("begin", up, jars, tmp_path) as killed:
        assert killed.stdout is not None
        assert json.loads(killed.stdout.readline()) == {
            "numbers": list(range(COUNT)), "has_key": True, "place": "cellar", "partitions": PARTITIONS,
            "from_ten": COUNT - 10 * PARTITIONS, "early": COUNT, "late": 0,
        }  # fmt: skip
        assert any(json.loads(line)["batch"] >= 1 for line in killed.stdout)
        killed.kill()
    with spark("go-on", up, jars, tmp_path) as process:
        output, _ = process.communicate(timeout=RUN_SECONDS)
    assert process.returncode == 0
    said = [json.loads(line) for line in output.splitlines()]
    first, second = (Counter(one["copied"]) for one in said if "copied" in one)
    assert sorted(first) == list(range(COUNT)), "the restarted stream leaves nothing out"
    twice = sum(count - 1 for count in first.values())
    assert twice <= BATCH_ROWS, "at most the batch during which it was killed is there twice"
    assert second == first, "all of it is in the checkpoint"
