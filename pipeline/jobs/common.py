"""Functions that all jobs share."""

from octavo.pipeline import FORMAT_NAME, register
from octavo.pipeline.options import ClusterOptions, parse_source_options
from octavo.protocol.errors import InvalidArgumentError
from pyspark.sql import DataFrame, SparkSession


def cluster_options(cluster: ClusterOptions) -> dict[str, str]:
    """The options of the cluster, as strings for Spark."""
    options = {"metadata": cluster.metadata_uri, "passwordVariable": cluster.password_variable}
    if cluster.password_file is not None:
        options["passwordFile"] = cluster.password_file
    return options | {f"client.{name}": str(value) for name, value in cluster.client_options}


def entries_frame(
    spark: SparkSession,
    cluster: ClusterOptions,
    *,
    ledgers: str | None,
    dataset: str | None,
    log: str | None = None,
    **more: str,
) -> DataFrame:
    """The entries of ledgers, of a dataset or of a log. Raises :class:`InvalidArgumentError` for a wrong selection."""
    options = {**cluster_options(cluster), "minPartitions": str(spark.sparkContext.defaultParallelism), **more}
    if ledgers is not None:
        options["ledgers"] = ledgers
    if dataset is not None:
        options["dataset"] = dataset
    if log is not None:
        options["log"] = log
    # Checked here, because errors that Spark reports contain tracebacks of its workers.
    parse_source_options(options)
    register(spark)
    return spark.read.format(FORMAT_NAME).options(**options).load()


def check_one_of(names: str, *given: object) -> None:
    """Raise :class:`InvalidArgumentError` unless exactly one of the arguments is given."""
    if sum(one is not None for one in given) != 1:
        raise InvalidArgumentError(f"give one of {names}")
