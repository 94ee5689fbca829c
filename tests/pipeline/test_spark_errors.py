"""Errors that Spark reports become one line, with or without the traceback of a Python process."""

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest
from octavo.cli.pipeline_run import cancel_jobs, describe_spark_error
from octavo.pipeline.base.errors import brief_errors
from octavo.protocol.errors import InvalidArgumentError
from pyspark.errors import PySparkException

HIDE = "SPARK_HIDE_TRACEBACK"


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to create it: octavo.protocol.errors.InvalidArgumentError: unknown "
            "option 'leders' SQLSTATE: 38000",
            "unknown option 'leders'",
        ),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback (most recent call last):\n  File ...\n"
            "octavo.protocol.errors.UnauthorizedError: ledger 1 needs its password\n SQLSTATE: 38000",
            "ledger 1 needs its password",
        ),
        (
            "[PATH_ALREADY_EXISTS] Path file:/out already exists.",
            "[PATH_ALREADY_EXISTS] Path file:/out already exists.",
        ),
    ],
)
def test_report_of_spark_becomes_one_line(report: str, line: str) -> None:
    assert describe_spark_error(PySparkException(report)) == line


def fail(error: Exception) -> None:
    with pytest.raises(type(error)), brief_errors():
        raise error


def test_traceback_is_hidden_for_errors_of_octavo_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HIDE, raising=False)
    fail(ZeroDivisionError())
    assert HIDE not in os.environ
    fail(InvalidArgumentError("wrong"))
    assert os.environ[HIDE] == "1"
    monkeypatch.delenv(HIDE)


async def test_a_cancellation_waits_for_the_end_of_the_work_although_the_jvm_has_stopped_by_itself() -> None:
    """Ctrl-C in a terminal reaches the JVM, too: its answer to the cancellation was printed as an internal error."""
    working: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    class Context:
        def cancelAllJobs(self) -> None:  # noqa: N802 - Spark's name
            asyncio.get_running_loop().call_soon(working.cancel)
            raise RuntimeError("SparkContext was shut down")

    started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    started.set_result(SimpleNamespace(sparkContext=Context()))
    await cancel_jobs(working, started)
    assert working.cancelled()
