"""The limits of one batch of a streaming query, as Spark states them and as the options do."""

from octavo.pipeline.base.options import SourceOptions
from octavo.pipeline.source.offsets import Limits
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows


def default_read_limit(options: SourceOptions) -> ReadLimit:
    """The limit of one batch, for Spark."""
    if options.entries_per_trigger_max is not None:
        return ReadMaxRows(options.entries_per_trigger_max)
    if options.bytes_per_trigger_max is not None:
        return ReadMaxBytes(options.bytes_per_trigger_max)
    return ReadAllAvailable()


def limits_of(options: SourceOptions, limit: ReadLimit) -> Limits:
    """The limits of a batch for which Spark asks with ``limit``."""
    if isinstance(limit, ReadAllAvailable):
        return Limits()
    entries, payload_bytes = options.entries_per_trigger_max, options.bytes_per_trigger_max
    if isinstance(limit, ReadMaxRows):
        entries = limit.max_rows
    if isinstance(limit, ReadMaxBytes):
        payload_bytes = limit.max_bytes
    return Limits(entries, payload_bytes)
