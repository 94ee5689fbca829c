"""One Spark session and one cluster of real bookie processes for all tests of the pipeline."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from support.processes import Up
from support.spark import start_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_spark(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with Up(tmp_path_factory.mktemp("pipeline") / "data") as up:
        yield up.wait_ready()
