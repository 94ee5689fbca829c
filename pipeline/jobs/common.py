"""Functions that all jobs share."""

from contextlib import aclosing

from octavo.metadata.ledger.stored import StoredKind
from octavo.pipeline import FORMAT_NAME, register
from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.cluster import connected, either_of_each, existing_ledgers
from octavo.pipeline.base.options import ClusterOptions, parse_source_options
from octavo.pipeline.base.paths import settled
from octavo.pipeline.base.selection import Selection
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


def streams_left_out(cluster: ClusterOptions, ledgers: str | None) -> int:
    """How many streams ``ledgers`` selects: a scan of ledgers reads none of them, as their entries are read by the name
    of their log (rule X1). A stream that is selected by its id alone is an error of the scan."""
    if ledgers is None:
        return 0
    options = parse_source_options({**cluster_options(cluster), "ledgers": ledgers})
    selection = options.selection
    if not selection.conditions and selection.ranges.count() == len(selection.required):
        return 0
    with LoopThread("octavo planning") as loop:
        return loop.run(_count_streams(settled(options.cluster), selection))


async def _count_streams(cluster: ClusterOptions, selection: Selection) -> int:
    async with connected(cluster) as client:
        ids = [one for one in await existing_ledgers(client) if one in selection.scope]
        streams = 0
        async with aclosing(either_of_each(client, ids)) as found:
            async for metadata in found:
                is_stream = metadata.kind is StoredKind.STREAM
                streams += is_stream and selection.matches(metadata.ledger_id, metadata.custom_metadata)
        return streams


def check_one_of(names: str, *given: object) -> None:
    """Raise :class:`InvalidArgumentError` unless exactly one of the arguments is given."""
    if sum(one is not None for one in given) != 1:
        raise InvalidArgumentError(f"give one of {names}")
