"""One Spark session and one cluster of real bookie processes for all tests of the pipeline.

A Spark cluster of its own processes is started, and drivers are killed, only with ``OCTAVO_SPARK_CLUSTER=1``
(``make soak``): six Java processes take a twentieth of the time of all other tests.
"""

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from support.commands.processes import Up
from support.spark import start_spark

collect_ignore = (
    [] if os.environ.get("OCTAVO_SPARK_CLUSTER") == "1" else ["test_standalone.py", "test_log_sink_kills.py"]
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("pipeline") / "data") as up:
        yield up.wait_ready()
