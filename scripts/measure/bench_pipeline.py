"""Compare the speed of the pipeline with that of plain clients, on a new three-bookie cluster.

bench_pipeline.py [--megabytes 2000] [--scans 4] [--reads-only] [--spark-arguments=ARGUMENTS] [--rounds 1]
    [--data-dir DIR]

Entries of 1 KiB; ledgers with E = Qw = 3, Qa = 2. *Write*: two processes of ``octavo bench write``, compared with a
Spark job (``local[2]``) that ingests Parquet. *Read*: two processes, each iterating over one ledger, alternating with
scans of both ledgers in one session (``local[2]``) that add up the lengths of the values. The first scan of a session
is reported separately, because it starts Python workers and runs Java code that is not compiled yet. *Verify*: every
replica of these ledgers. Memory is the largest resident size of any Python worker.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import add_data_dir, temporary_cluster, temporary_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ENTRY_BYTES = 1024
OCTAVO = (sys.executable, "-P", "-m", "octavo.cli.main")


def side_by_side(uri: str, commands: Sequence[Sequence[str]]) -> tuple[list[dict[str, Any]], float]:
    """Run commands concurrently. Returns the JSON of each, and the seconds of the longest measurement."""
    environment = {**os.environ, "OCTAVO_METADATA": uri}
    processes = [
        subprocess.Popen([*OCTAVO, *command, "--json"], env=environment, stdout=subprocess.PIPE) for command in commands
    ]
    results = [json.loads(process.communicate()[0]) for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a benchmark failed")
    return results, max(result["seconds"] for result in results)


def timed[T](work: Callable[[], T]) -> tuple[T, float]:
    """The result of ``work``, and how many seconds it took."""
    begun = time.perf_counter()
    return work(), time.perf_counter() - begun


def largest_worker_bytes() -> int:
    """The largest resident size that any living Python worker has had. Workers outlive their tasks."""
    largest = 0
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdecimal() and b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                status = (folder / "status").read_text()
                largest = max(largest, *(1024 * int(found) for found in re.findall(r"VmHWM:\s+(\d+) kB", status)), 0)
    return largest


def measure_reads(
    uri: str, spark: "SparkSession", ledgers: Sequence[str], entries: int, scans: int
) -> tuple[list[float], list[float]]:
    """Alternate plain reads with scans. Returns the MB/s of each read (one more than scans) and of each scan."""
    from pyspark.sql import functions as F  # noqa: PLC0415 - after the environment is set

    def scanned() -> "DataFrame":
        # A new frame for each scan, because Spark keeps the shuffled data of a frame.
        reader = spark.read.format("octavo").option("metadata", uri).option("ledgers", ",".join(ledgers))
        return reader.option("minPartitions", "2").load().agg(F.count("*"), F.sum(F.length("value")))

    megabytes = entries * ENTRY_BYTES / 1e6
    plain, spark_rates = [], []
    for number in range(scans + 1):
        _, seconds = side_by_side(uri, [("bench", "read", ledger) for ledger in ledgers])
        plain.append(megabytes / seconds)
        print(f"  read, two clients: {plain[-1]:,.0f} MB/s", flush=True)
        if number < scans:
            rows, seconds = timed(scanned().collect)
            assert tuple(rows[0]) == (entries, entries * ENTRY_BYTES), rows
            spark_rates.append(megabytes / seconds)
            print(f"  read, Spark local[2], scan {number + 1}: {spark_rates[-1]:,.0f} MB/s", flush=True)
    return plain, spark_rates


def measure_jobs(uri: str, spark: "SparkSession", ledgers: Sequence[str], entries: int, folder: Path) -> float:
    """Measure ``verify``, which is printed, and ``ingest``, whose MB/s are returned."""
    from octavo.pipeline.base.options import ClusterOptions  # noqa: PLC0415
    from octavo.pipeline.jobs.export import InputFormat, ingest  # noqa: PLC0415 - after the environment is set
    from octavo.pipeline.jobs.verify import verify  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    cluster = ClusterOptions(uri)
    found, seconds = timed(lambda: verify(spark, cluster, ledgers=",".join(ledgers)))
    print(f"  verify, Spark local[2], of all replicas: {found.sealed_bytes / 1e6 / seconds:,.0f} MB/s")
    print(f"  largest Python worker after verifying: {largest_worker_bytes() / 1e6:,.0f} MB resident")
    source = str(folder / "rows.parquet")
    values = spark.range(0, entries, 1, 2).select(F.rpad(F.col("id").cast("string"), ENTRY_BYTES, "x").alias("value"))
    values.write.parquet(source)
    _, seconds = timed(lambda: ingest(spark, cluster, source, "bench", input_format=InputFormat.PARQUET))
    print(f"  largest Python worker after writing: {largest_worker_bytes() / 1e6:,.0f} MB resident")
    shutil.rmtree(source)
    return entries * ENTRY_BYTES / 1e6 / seconds


def measure(uri: str, entries: int, folder: Path, scans: int, *, reads_only: bool) -> None:
    """Run one round and print its rates in MB/s of payload."""
    from octavo.pipeline.jobs.session import spark_session  # noqa: PLC0415 - after the environment is set

    half = ("bench", "write", "--entry-size", str(ENTRY_BYTES), "--count", str(entries // 2))
    written, seconds = side_by_side(uri, [half, half])
    write_rate = entries * ENTRY_BYTES / 1e6 / seconds
    print(f"  write, two clients: {write_rate:,.0f} MB/s", flush=True)
    ledgers = [str(result["ledger_ids"][0]) for result in written]
    with spark_session("bench", master="local[2]") as spark:
        spark.range(1).count()
        plain, spark_rates = measure_reads(uri, spark, ledgers, entries, scans)
        print(f"  largest Python worker after reading: {largest_worker_bytes() / 1e6:,.0f} MB resident")
        print(f"  read, the first scan of a session: {spark_rates[0] / median(plain):.2f} of two clients (median)")
        if scans > 1:
            warm = median(spark_rates[1:])
            print(f"  read, median of the scans after it: {warm:,.0f} MB/s, {warm / median(plain):.2f} of two clients")
        if not reads_only:
            rate = measure_jobs(uri, spark, ledgers, entries, folder)
            print(f"  write, Spark local[2]: {rate:,.0f} MB/s, {rate / write_rate:.2f} of two clients")


def main() -> int:
    """Run the benchmark. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000, help="payload of each case in MB")
    parser.add_argument("--scans", type=int, default=4, help="number of scans in one session")
    parser.add_argument("--reads-only", action="store_true", help="skip verify and ingest")
    parser.add_argument("--spark-arguments", help="additional arguments of spark-submit, as one string after =")
    parser.add_argument("--rounds", type=int, default=1)
    add_data_dir(parser)
    arguments = parser.parse_args()
    os.environ["PYTHONSAFEPATH"] = "1"
    if arguments.spark_arguments:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"{arguments.spark_arguments} pyspark-shell"
    entries = arguments.megabytes * 1_000_000 // ENTRY_BYTES // 2 * 2
    for number in range(arguments.rounds):
        print(f"round {number + 1}: {arguments.megabytes} MB in entries of {ENTRY_BYTES} B", flush=True)
        with temporary_folder(arguments.data_dir) as folder, temporary_cluster(folder) as cluster:
            uri = cluster.wait_for("ready")["metadata"]
            measure(uri, entries, folder, arguments.scans, reads_only=arguments.reads_only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
