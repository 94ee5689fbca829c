"""Spark as users run it, and ledgers for it: one session for all tests of a run, with real bookies."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from octavo.pipeline import register
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from support.commands.processes import Up
from support.waiting import wait_until

import octavo

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java processes that live only as long as a test."""

SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    # Tests have few rows: compiling a query takes longer than interpreting it. One test compiles (test_scan).
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpoint.fileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.log.level": "ERROR",
}

WORKER_IS_LATE = "Python worker failed to connect back"
"""Spark gives the Python process of a streaming source ten seconds to start, which no setting changes. They are not
enough on a slow and busy machine."""

_WORKERS = Path(__file__).with_name("spark_workers")
"""Where the module of the daemon is that starts Python workers."""


def set_worker_environment() -> None:
    """Make Python workers use this interpreter, and keep them from importing folders of the tree as packages."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONSAFEPATH"] = "1"
    os.environ["PYTHONPATH"] = str(_WORKERS)
    for name in list(os.environ):
        if name.startswith("OCTAVO_") and name != "OCTAVO_NO_SKIPS":
            del os.environ[name]


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """The query once its source works, or once it has failed. It is started again while the source's process is late:
    nothing has been read or written then."""
    while True:
        query = start()
        wait_until(partial(_has_begun, query), "the query has its source")
        error = query.exception()
        if error is None or WORKER_IS_LATE not in str(error):
            return query


def while_late[T](run: Callable[[], T]) -> T:
    """The result of ``run``, which runs a query to its end. As :func:`started`."""
    while True:
        try:
            return run()
        except StreamingQueryException as error:
            if WORKER_IS_LATE not in str(error):
                raise


def _has_begun(query: StreamingQuery) -> bool:
    return not query.isActive or not query.status["message"].startswith("Initializing")


def start_spark(folder: Path, **settings: str) -> SparkSession:
    """A session with two cores in this process, the format registered."""
    set_worker_environment()
    builder = SparkSession.builder.master("local[2]").appName("octavo tests")
    for name, value in {**SPARK_SETTINGS, "spark.local.dir": str(folder / "local"), **settings}.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    builder = builder.config("spark.python.daemon.module", "preloading_daemon")
    session = builder.getOrCreate()
    register(session)
    return session


def with_client[T](uri: str, work: Callable[[octavo.Client], Coroutine[Any, Any, T]]) -> T:
    """The result of ``work`` for a client of the cluster."""

    async def run() -> T:
        async with octavo.connect(uri) as client:
            return await work(client)

    return asyncio.run(run())


def write_ledger(
    uri: str,
    payloads: Sequence[bytes],
    *,
    custom_metadata: Mapping[str, bytes] | None = None,
    password: bytes = b"",
    sizes: tuple[int, int, int] = (3, 3, 2),
    digest: octavo.Digest = octavo.Digest.CRC32C,
) -> int:
    """Write a closed ledger with these entries. Returns its id."""

    async def write(client: octavo.Client) -> int:
        async with client.create_ledger(
            *sizes, custom_metadata=custom_metadata, password=password, digest=digest
        ) as ledger:
            await ledger.add_many(payloads)
        return ledger.id

    return with_client(uri, write)


def ledger_payloads(uri: str, ledger_id: int, password: bytes = b"") -> list[bytes]:
    """The entries of a ledger, read by a client."""

    async def read(client: octavo.Client) -> list[bytes]:
        async with client.open_ledger(ledger_id, recover=False, password=password) as reader:
            return [entry.payload async for entry in reader]

    return with_client(uri, read)


def scan(spark: SparkSession, uri: str, **options: object) -> DataFrame:
    """``spark.read`` of the format with these options."""
    reader = spark.read.format("octavo").option("metadata", uri)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def collected(frame: DataFrame) -> list[tuple[int, int, bytes | None]]:
    """Ledger, entry and value of every row, sorted."""
    rows = frame.select("ledger_id", "entry_id", "value").collect()
    return sorted((row.ledger_id, row.entry_id, None if row.value is None else bytes(row.value)) for row in rows)


def rows_of(ledger_id: int, payloads: Sequence[bytes], first: int = 0) -> list[tuple[int, int, bytes | None]]:
    """The result of :func:`collected` for entries from ``first`` on."""
    return [(ledger_id, entry_id, payload) for entry_id, payload in enumerate(payloads, first)]


def bookies_of(up: Up) -> dict[str, str]:
    """Bookie id -> address."""
    return {bookie["bookie_id"]: bookie["address"] for bookie in up.run("bookies", "--json").json}


def bookie_ids(up: Up) -> dict[str, str]:
    """Folder of a bookie -> its id, which its cookie holds."""
    folders = [folder for folder in up.directory.iterdir() if folder.is_dir() and "bookie" in folder.name]
    return {
        folder.name: bookie_id
        for folder in folders
        for bookie_id in bookies_of(up)
        if any(bookie_id.encode() in cookie.read_bytes() for cookie in folder.rglob("cookie"))
    }
