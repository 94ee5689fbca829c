"""Runs one job of the pipeline: a Spark session in a thread, progress on a terminal, and one line for an error."""

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.cli.event_loop import finish
from octavo.cli.output import Progress, progress_bar
from octavo.cli.session import CommandError, LogLevel
from octavo.pipeline.jobs.session import spark_session
from pyspark import StatusTracker
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_SECONDS = 0.5
"""Interval at which the progress of a job is updated."""

_ERROR_LINE = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*(?:Error|Exception|Block): (?P<text>.+)$", re.MULTILINE)
"""The last line of a Python traceback in a report of Spark."""

_BRIEF_ERROR = re.compile(r": octavo\.[\w.]+(?:Error|Block): (?P<text>.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""An error of Octavo that Spark reports without its traceback."""


async def run_on_spark[T](
    name: str, job: "Callable[[SparkSession], T]", *, master: str | None, log_level: LogLevel
) -> T:
    """Run a job and return its result. Cancelling it cancels Spark's jobs and waits for the session to end.

    Raises :class:`CommandError` with one line for an error that Spark reports.
    """
    quiet = log_level is not LogLevel.DEBUG
    started: asyncio.Future[SparkSession] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def tell(spark: "SparkSession") -> None:
        if not started.done():
            started.set_result(spark)

    def work() -> T:
        with spark_session(name, master=master, quiet=quiet) as spark:
            loop.call_soon_threadsafe(tell, spark)
            try:
                return job(spark)
            except PySparkException as error:
                raise CommandError(describe_spark_error(error)) from error

    working = asyncio.ensure_future(asyncio.to_thread(work))
    with progress_bar(name, None) as progress:
        showing = asyncio.ensure_future(_show(started, progress))
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            await finish(cancel_jobs(working, started))
            raise
        finally:
            showing.cancel()


def describe_spark_error(error: PySparkException) -> str:
    """The error in one line, without the tracebacks of the processes that it passed through."""
    text = str(error)
    brief = _BRIEF_ERROR.search(text)
    if brief is not None:
        return brief["text"]
    lines = [found["text"] for found in _ERROR_LINE.finditer(text) if "pyspark" not in found[0].split(":")[0]]
    if lines:
        return lines[-1]
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


async def cancel_jobs[T](working: asyncio.Future[T], started: "asyncio.Future[SparkSession]") -> None:
    """Cancel Spark's jobs until the work has ended. Ctrl-C reaches the JVM, too, which then stops Spark by itself: what
    it says to a cancellation after that is of no interest."""
    while not working.done():
        if started.done():
            with contextlib.suppress(Exception):
                started.result().sparkContext.cancelAllJobs()
        await asyncio.wait([working], timeout=PROGRESS_SECONDS)
    if not working.cancelled():
        working.exception()  # mark it as retrieved


async def _show(started: "asyncio.Future[SparkSession]", progress: Progress) -> None:
    tracker = (await started).sparkContext.statusTracker()
    while True:
        progress(*await asyncio.to_thread(_tasks, tracker))
        await asyncio.sleep(PROGRESS_SECONDS)


def _tasks(tracker: StatusTracker) -> tuple[float, str]:
    """The number of tasks done in the running stages, and the progress as text."""
    stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
    done = sum(stage.numCompletedTasks for stage in stages if stage is not None)
    total = sum(stage.numTasks for stage in stages if stage is not None)
    return done, f"{done}/{total} tasks" if total else ""
