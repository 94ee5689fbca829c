"""A Spark cluster of its own processes: a master, two workers, executors; programs handed over by spark-submit."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from support.commands.processes import Up, environment
from support.spark import SPARK_SETTINGS, scan, write_ledger
from support.waiting import WAIT_SECONDS, wait_until

HOME = Path(pyspark.__file__).parent
PROGRAM = Path(__file__).with_name("standalone_program.py")


def spark_environment(folder: Path) -> dict[str, str]:
    return environment(
        SPARK_HOME=str(HOME),
        PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable,
        PYTHONSAFEPATH="1",
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_LOCAL_DIRS=str(folder / "local"),
        SPARK_DAEMON_MEMORY="256m",
        SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    )


@pytest.fixture(scope="module")
def master(module_folder: Path) -> Iterator[str]:
    """A master with two workers of one core each; its URL."""
    folder = module_folder
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as output:
            processes.append(
                subprocess.Popen(
                    [str(HOME / "bin" / "spark-class"), *arguments],
                    env=spark_environment(folder),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    try:
        package = "org.apache.spark.deploy"
        common = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = start("master", f"{package}.master.Master", *common)
        wait_until(lambda: master_url(log) is not None, "the master is up")
        url = str(master_url(log))
        workers = [
            start(
                name, f"{package}.worker.Worker", *common, "--cores", "1", "--memory", "1g",
                "--work-dir", str(folder / name), url,
            )
            for name in ("one", "two")
        ]  # fmt: skip
        wait_until(
            lambda: all("Successfully registered" in worker.read_text() for worker in workers), "the workers are up"
        )
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(WAIT_SECONDS)


def master_url(log: Path) -> str | None:
    found = re.search(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)", log.read_text())
    return None if found is None else found[1]


def submit(folder: Path, master: str, *command: str | Path) -> str:
    """What a program that is submitted prints."""
    settings = {**SPARK_SETTINGS, "spark.executor.memory": "512m", "spark.driver.memory": "512m"}
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [str(HOME / "bin" / "spark-submit"), "--master", master, *options, *map(str, command)],
        env=spark_environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3 * WAIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-6000:])
    return done.stdout


def test_two_workers_read_and_write_and_the_jobs_run_under_spark_submit(
    spark: SparkSession, cluster: Up, master: str, tmp_path: Path
) -> None:
    ledger_id = write_ledger(cluster.uri, [b"%07d" % i * 20 for i in range(20_000)], sizes=(3, 3, 3))
    script = cluster.run("pipeline", "script").stdout.decode().strip()
    printed = submit(tmp_path, master, PROGRAM, cluster.uri, str(ledger_id), "standalone", script)
    verified, told = map(json.loads, printed.splitlines()[-2:])
    assert (verified["sound"], verified["replicas"]) == (True, 60_000)
    assert told["rows"] == 20_000
    assert len(told["executors"]) == 2, told
    frame = scan(spark, cluster.uri, dataset="standalone")
    got = sorted(bytes(row.value) for row in frame.select("value").collect())
    # Not one comparison: pytest would take minutes to word how two lists of that length differ.
    assert len(got) == 20_000
    assert not [value for i, value in enumerate(got) if value != b"%07d" % i * 20][:1]
