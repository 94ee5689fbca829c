"""docs/pipeline.md works as it stands there: its programs in one session, its commands on a cluster."""

import re
import shlex
import shutil
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest
from octavo.cli.main import main
from pyspark.sql import SparkSession
from support.commands.processes import Up
from support.spark import scan, while_late, write_ledger
from support.tree import ROOT

PAGE = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def documented(module_folder: Path) -> Iterator[Up]:
    """A cluster of its own, where the commands look for one."""
    with Up(module_folder / "octavo-data") as up:
        yield up.wait_ready()


def test_the_programs_do_what_the_page_says(spark: SparkSession, documented: Up, tmp_path: Path) -> None:
    write_ledger(documented.uri, [b"an error", b"none"], custom_metadata={"app": b"orders"})
    assert documented.run("log", "create", "orders").status == 0
    assert documented.run("log", "append", "orders", stdin=b"a line\n").status == 0
    assert documented.run("log", "create", "events", "--keys", "1000").status == 0
    names = {"spark": spark, "uri": documented.uri, "folder": tmp_path}
    for code in blocks("python"):
        # A query that is run again goes on from its checkpoint.
        while_late(partial(exec, compile(code, "docs/pipeline.md", "exec"), names))
    assert scan(spark, documented.uri, dataset="orders-copy").count() == 2


def test_the_commands_do_what_the_page_says(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In this process, on the session there is: test_standalone starts one as a process of its own."""
    monkeypatch.chdir(tmp_path)
    with Up(tmp_path / "octavo-data") as up:
        run_commands(spark, up.wait_ready(), capfd)


def run_commands(spark: SparkSession, up: Up, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "scripts" / "sample", "scripts/sample")
    samples = [f"scripts/sample/{name}" for name in ("dpkg.log", "alternatives-crlf.log")]
    (commands,) = blocks("sh")
    shown = {}
    for command in commands.splitlines():
        octavo, *arguments = shlex.split(command, comments=True)
        status = main(arguments)
        printed = capfd.readouterr()
        assert (octavo, status) == ("octavo", 0), (command, printed)
        assert printed.out != "", command
        shown[arguments[1]] = printed.out
    assert {tuple(ledger) for ledger in payloads_by_ledger(spark, up, "again")} == {
        tuple(Path(name).read_bytes().removesuffix(b"\n").split(b"\n")) for name in samples
    }
    (table,) = blocks("text")
    head, tail = table.split("...\n")
    assert shown["loglines"].startswith(head)
    assert shown["loglines"].endswith(tail)
    assert texts(Path("package-log.svg")) == texts(ROOT / "docs" / "package-log.svg"), (
        "run scripts/artifacts/draw_package_log.py"
    )
    assert Path("inventory.png").stat().st_size > 1000
    assert Path("report/replicas").is_dir()


def payloads_by_ledger(spark: SparkSession, up: Up, dataset: str) -> list[list[bytes]]:
    rows = scan(spark, up.uri, dataset=dataset).orderBy("ledger_id", "entry_id").collect()
    return [[bytes(row.value) for row in group] for _, group in groupby(rows, key=lambda row: row.ledger_id)]


def texts(drawing: Path) -> list[str]:
    """The words in a plot, but for the numbers along its axes, which depend on the version of matplotlib."""
    found = re.findall(r"<text [^>]*>(.*?)</text>", drawing.read_text(encoding="utf-8"), re.DOTALL)
    return [text for text in found if not re.fullmatch(r"[\d.,]+", text)]


def test_a_command_that_spark_refuses_says_why_in_one_line(
    spark: SparkSession,
    documented: Up,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OCTAVO_METADATA", documented.uri)
    for arguments, status, message in (
        (["export", "out", "--dataset", "nothing"], 1, "octavo: there is no dataset 'nothing'; there are: "),
        (["loglines", "--ledgers", "x"], 2, "octavo: ledgers: 'x' selects nothing; give ids and ranges"),
        (["ingest", "/nowhere", "--dataset", "a b"], 2, "octavo: 'a b' is not a valid name of a dataset"),
        (["export", "out"], 2, "octavo: give --ledgers, --dataset or --log"),
    ):
        assert main(["pipeline", *arguments]) == status
        (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("octavo:")]
        assert line.startswith(message), line
