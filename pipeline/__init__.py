"""Ledgers in Spark: the data source ``octavo`` (batch and streaming, source and sink) and jobs over whole clusters.

    from octavo.pipeline import register

    register(spark)
    spark.read.format("octavo").option("metadata", uri).option("ledgers", "all").load()

Needs the extra ``octavo[spark]``. Nothing else in Octavo imports this package but ``octavo pipeline``.
"""

import os
import sys
from typing import TYPE_CHECKING

from octavo.pipeline.base.format_name import FORMAT_NAME

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FORMAT_NAME", "register"]


def register(spark: "SparkSession") -> None:
    """Make the format ``octavo`` known to a Spark session; once per session, and in each thread that uses it.

    With a local master, Python workers then run this interpreter unless ``PYSPARK_PYTHON`` names another one. (Spark
    itself would run the first ``python3`` on the path, which is another one if the environment is not activated.)

    Examples:
        >>> from octavo.pipeline import register
        >>> register(spark)
        >>> reader = spark.read.format("octavo").option("metadata", "sqlite:///octavo-data/metadata.db")

    Raises:
        ModuleNotFoundError: The extra ``spark`` is not installed.
    """
    from octavo.pipeline.datasource import OctavoDataSource  # noqa: PLC0415 - PySpark is loaded only where it is used

    context = spark.sparkContext
    if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
        context.pythonExec = sys.executable
    spark.dataSource.register(OctavoDataSource)
    # Spark looks formats up in the session that is active in the thread, which in a thread of ours is none yet; this
    # makes it so.
    spark.createDataFrame([], "nothing int")
