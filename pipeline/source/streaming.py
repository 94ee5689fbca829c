"""The common part of the streaming sources for ledgers and for a log.

Spark calls a reader in a Python process of the driver. Between two calls the reader keeps its connections to the
cluster in a *watch*. A call that fails closes the watch, because its connections may be broken; the next call connects
again. Neither source deletes or truncates anything when Spark commits a batch.
"""

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pyarrow as pa
from octavo.pipeline.base.bridge import LoopThread
from octavo.pipeline.base.options import SourceOptions
from octavo.pipeline.source.read_limits import default_read_limit
from octavo.pipeline.source.reading import read_partition
from octavo.protocol.errors import OctavoError
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow


class Watch:
    """Connections to the cluster, kept open in an event loop in a thread of their own. A subclass opens them in its
    first call and enters them into ``_stack``."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._loop = LoopThread("octavo streaming")
        self._stack = AsyncExitStack()

    def run[T](self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which runs in the watch's loop. Raises what it raises."""
        return self._loop.run(work)

    def close(self) -> None:
        """Disconnect. Never raises."""
        try:
            self._loop.run(self._stack.aclose())
        except OctavoError:
            pass
        finally:
            self._loop.close()


class WatchingStreamReader[W: Watch](DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The part of a streaming reader that does not depend on what it reads. A subclass makes its watch, and defines the
    offsets and the partitions of a batch."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._watch: W | None = None
        self._latest: dict[str, Any] | None = None
        """The offset of the last entry that could be read when the cluster was last inspected."""

    def _make_watch(self) -> W:
        raise NotImplementedError

    def _with_watch[T](self, call: Callable[[W], T]) -> T:
        """The result of ``call``, whose argument is the open watch, or a new one after a failure."""
        watch, self._watch = self._watch or self._make_watch(), None
        try:
            result = call(watch)
        except BaseException:
            watch.close()
            raise
        self._watch = watch
        return result

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of one batch."""
        return default_read_limit(self._options)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the data when the cluster was last inspected, for the query's progress report."""
        return self._latest

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: a batch that Spark has committed stays in the cluster."""

    def stop(self) -> None:
        """Disconnect from the cluster."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        yield from read_partition(self._options, self._columns, partition)
