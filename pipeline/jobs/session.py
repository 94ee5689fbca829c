"""The Spark session in which ``octavo pipeline`` runs its jobs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.pipeline import register
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

MASTER_DEFAULT = "local[*]"

_SETTINGS = {
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Python workers would otherwise import packages from their working directory first; in a folder that has one named
    # octavo (such as a checkout of Octavo) they would not find the installed one.
    "spark.executorEnv.PYTHONSAFEPATH": "1",
}


@contextmanager
def spark_session(name: str, *, master: str | None = None, quiet: bool = True) -> Iterator[SparkSession]:
    """A session with the format registered. If this process has a session, that one is used and left unchanged.
    Otherwise a new session is started at ``master``, or at spark-submit's master, and stopped at the end.

    Python workers run under this interpreter unless ``PYSPARK_PYTHON`` names another.
    """
    try:
        present = SparkSession.active()
    except PySparkRuntimeError:
        pass  # no session yet
    else:
        register(present)
        yield present
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"octavo {name}")
    if master is not None:
        builder = builder.master(master)
    elif not _submitted():
        builder = builder.master(MASTER_DEFAULT)
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    if quiet:
        builder = builder.config("spark.log.level", "ERROR")
    spark = builder.getOrCreate()
    try:
        register(spark)
        yield spark
    finally:
        spark.stop()


def _submitted() -> bool:
    """Whether spark-submit started this process and has set the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
