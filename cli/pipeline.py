"""``octavo pipeline``: jobs over whole clusters, on Spark.

Each command is one function of :mod:`octavo.pipeline.jobs` with its options and a report. Under spark-submit the same
commands run by ``cli/pipeline_submit.py``, with the master that spark-submit was given.
"""

# ruff: noqa: PLR0917 - the parameters of a command are its options, given by name

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.ledger.options import AckQuorumOption, DigestName, DigestOption, EnsembleOption, WriteQuorumOption
from octavo.cli.session import (
    EXIT_FAILURE,
    EXIT_NOTHING_DONE,
    EXIT_OK,
    CommandError,
    PasswordFileOption,
    Session,
    command,
    number,
)
from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from octavo.pipeline.base.options import ClusterOptions
    from octavo.pipeline.jobs.inventory import Share
    from octavo.pipeline.jobs.loglines import Count
    from octavo.pipeline.jobs.verify import VerifySummary
    from pyspark.sql import SparkSession

app = typer.Typer(name="pipeline", help="Jobs over whole clusters, on Spark (octavo[spark]).", no_args_is_help=True)

CLEAN_AGE_SECONDS = 24 * 3600.0
"""Default age after which the job of an unpublished ledger is treated as failed."""

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Spark's master: spark://host:port, local[4]. The default is local[*], or the master of spark-submit.",
    ),
]
LedgersOption = Annotated[
    str | None,
    typer.Option("--ledgers", metavar="WHICH", help="Ids and ranges (3,7-12), all, or app=orders, app=ord*."),
]
DatasetOption = Annotated[str | None, typer.Option("--dataset", metavar="NAME", help="Name of a published dataset.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Draw the result into a .png, .svg or .html file.")
]


class InputFormatName(StrEnum):
    """Values of the option ``--format``."""

    TEXT = "text"
    JSON_LINES = "jsonl"
    PARQUET = "parquet"


@command(app)
async def export(
    session: Session,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Folder to write, local or on any file system that Spark supports.")
    ],
    ledgers: LedgersOption = None,
    dataset: DatasetOption = None,
    log: Annotated[str | None, typer.Option("--log", metavar="NAME", help="Name of a log.")] = None,
    time_pattern: Annotated[
        str | None,
        typer.Option(
            "--time-pattern", metavar="REGEX", help="Add a column time, parsed from the first group of REGEX."
        ),
    ] = None,
    time_format: Annotated[
        str | None,
        typer.Option(
            "--time-format", metavar="PATTERN", help="Spark's datetime pattern of that time. The default is ISO 8601."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is at PATH.")] = False,
    allow_gaps: Annotated[
        bool, typer.Option("--allow-gaps", help="Write rows without a value for unreadable entries.")
    ] = False,
    master: MasterOption = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Write ledgers, a dataset or a log to Parquet.

    There is one folder for each ledger. Entries of a log also have columns position and timestamp.
    """
    _need_spark()
    from octavo.pipeline.jobs import export as job  # noqa: PLC0415

    if time_format is not None and time_pattern is None:
        raise InvalidArgumentError("--time-format needs --time-pattern")
    timestamps = None if time_pattern is None else job.Timestamps(time_pattern, time_format)

    def run(spark: "SparkSession") -> Any:
        return job.export(
            spark,
            _cluster(session, password_file),
            _located(path),
            ledgers=ledgers if log is not None else _selection(ledgers, dataset, or_log=True),
            dataset=dataset,
            log=log,
            timestamps=timestamps,
            overwrite=overwrite,
            fail_on_data_loss=not allow_gaps,
        )

    done = await _on_spark("export", run, master, session)
    _tell_transferred(session, done.entries, done.payload_bytes, f"exported to {path}", done.streams_left_out)


@command(app)
async def ingest(
    session: Session,
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="Files to read, local or on any file system that Spark supports.")
    ],
    dataset: Annotated[str, typer.Option("--dataset", metavar="NAME", help="Name of the dataset to publish.")],
    input_format: Annotated[
        InputFormatName, typer.Option("--format", metavar="FORMAT", help="Format of the files: text, jsonl or parquet.")
    ] = InputFormatName.TEXT,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="JSON field or Parquet column that is the entry.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the contents of the dataset.")] = False,
    ensemble: EnsembleOption = 3,
    write_quorum: WriteQuorumOption = 3,
    ack_quorum: AckQuorumOption = 2,
    digest: DigestOption = DigestName.CRC32C,
    master: MasterOption = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Write files into ledgers, and publish them as a dataset.

    Each text line, JSON line or Parquet row becomes one entry.
    """
    _need_spark()
    from octavo.pipeline.jobs import export as job  # noqa: PLC0415

    sink = {
        "ensembleSize": str(ensemble),
        "writeQuorum": str(write_quorum),
        "ackQuorum": str(ack_quorum),
        "digest": digest.value,
    }

    def run(spark: "SparkSession") -> Any:
        return job.ingest(
            spark,
            _cluster(session, password_file),
            _located(path),
            dataset,
            input_format=job.InputFormat(input_format.value),
            field=field,
            overwrite=overwrite,
            sink_options=sink,
        )

    done = await _on_spark("ingest", run, master, session, writable=ensemble)
    _tell_transferred(session, done.entries, done.payload_bytes, f"published in dataset {dataset}")


@command(app)
async def verify(
    session: Session,
    ledgers: LedgersOption = None,
    dataset: DatasetOption = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="DIR", help="New folder for the report, in Parquet.")
    ] = None,
    master: MasterOption = None,
    password_file: PasswordFileOption = None,
) -> int:
    """Read and compare all copies of ledgers and logs.

    Every copy of every entry of closed ledgers is verified, and of logs that are streams all that has an end. What is
    not verified is counted with the reason. The exit status is 1 if there is any problem, and 3 if there was nothing to
    verify.
    """
    _need_spark()
    from octavo.cli.output import counted, print_json, print_line, print_table  # noqa: PLC0415
    from octavo.pipeline.jobs import verify as job  # noqa: PLC0415
    from octavo.pipeline.jobs.coverage import WORDS, Why  # noqa: PLC0415

    where = None if report is None else report.absolute()

    def run(spark: "SparkSession") -> Any:
        return job.verify(spark, _cluster(session, password_file), ledgers=ledgers, dataset=dataset, report=where)

    found = await _on_spark("verify", run, master, session)
    if session.as_json:
        print_json(
            {
                "sound": found.sound,
                "ledgers": found.ledgers,
                "streams": found.streams,
                "replicas": found.replicas,
                "bytes": found.sealed_bytes,
                "problems": found.problems,
                "ledgers_with_problems": found.ledgers_with_problems,
                "not_covered": found.not_covered,
                "on_one_host": found.on_one_host,
            }
        )
    else:
        print_table(["problem", "replicas"], list(found.problems.items()))
        for why, number in found.not_covered.items():
            print_line(f"not verified: {number:,} {WORDS[Why(why)]}")
        if found.on_one_host:
            print_line(f"fragments whose copies are all on bookies of one host: {found.on_one_host:,}")
        print_line(
            f"{counted(found.ledgers, 'ledger')} ({found.streams:,} of them streams), "
            f"{counted(found.replicas, 'replica of an entry', 'replicas of entries')}, "
            f"{counted(found.sealed_bytes, 'byte')}: {_verdict(found)}"
        )
    if found.replicas == 0:
        return EXIT_NOTHING_DONE
    return EXIT_OK if found.sound else EXIT_FAILURE


def _verdict(found: "VerifySummary") -> str:
    if found.ledgers_with_problems:
        return f"problems in ledgers {', '.join(map(str, found.ledgers_with_problems))}"
    if found.replicas == 0:
        return "nothing was verified"
    return "all sound"


@command(app)
async def inventory(
    session: Session,
    ledgers: LedgersOption = None,
    plot: PlotOption = None,
    master: MasterOption = None,
) -> None:
    """Count ledgers, streams, entries and bytes.

    They are counted by kind, bookie, state, age and custom metadata.
    """
    _need_spark()
    from octavo.cli.output import counted, print_json, print_line, print_table  # noqa: PLC0415
    from octavo.pipeline.jobs import inventory as job  # noqa: PLC0415

    def run(spark: "SparkSession") -> Any:
        return job.inventory(spark, _cluster(session, None), ledgers=ledgers or "all", plot=plot)

    found = await _on_spark("inventory", run, master, session)
    if session.as_json:
        print_json(found.to_json())
        return
    groups: dict[str, Sequence[Share]] = {
        "": [found.total],
        "kind": found.by_kind,
        "bookie": found.by_bookie,
        "state": found.by_state,
        "age": found.by_age,
        "metadata": found.by_custom_metadata,
    }
    print_table(
        ["", "", "ledgers", "entries", "bytes"],
        [
            (group, share.name, f"{share.ledgers:,}", f"{share.entries:,}", f"{share.length:,}")
            for group, shares in groups.items()
            for share in shares
        ],
    )
    for kind, count in found.not_counted.items():
        print_line(f"not counted: the last fragments of {counted(count, kind)}, which have no end yet")
    print_line(f"imbalance {found.imbalance:.2f} (bytes of the fullest bookie divided by the mean)")


@command(app)
async def loglines(
    session: Session,
    ledgers: LedgersOption = None,
    dataset: DatasetOption = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="PATH", help="New folder for the parsed lines, in Parquet.")
    ] = None,
    plot: PlotOption = None,
    master: MasterOption = None,
    password_file: PasswordFileOption = None,
) -> None:
    """Parse system logs in ledgers, and count their lines.

    Each entry is one line. Lines are counted by format, level, hour and template.
    """
    _need_spark()
    from octavo.cli.output import counted, print_json, print_line, print_table  # noqa: PLC0415
    from octavo.pipeline.jobs import loglines as job  # noqa: PLC0415

    def run(spark: "SparkSession") -> Any:
        return job.loglines(
            spark,
            _cluster(session, password_file),
            ledgers=_selection(ledgers, dataset),
            dataset=dataset,
            table=None if table is None else _located(table),
            plot=plot,
        )

    found = await _on_spark("loglines", run, master, session)
    if session.as_json:
        print_json(found.to_json())
        return
    groups: dict[str, Sequence[Count]] = {
        "form": found.by_format,
        "level": found.by_level,
        "hour": found.by_hour,
        "template": found.by_template,
    }
    print_table(
        ["", "lines", ""],
        [(group, f"{count.lines:,}", count.name) for group, counts in groups.items() for count in counts],
    )
    _tell_left_out(found.streams_left_out)
    print_line(f"{counted(found.lines, 'line')}, {counted(found.templates, 'template')}")


@command(app)
async def clean(
    session: Session,
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="Clean only this dataset. The default is all.")
    ] = None,
    older_than: Annotated[
        float,
        typer.Option(
            "--older-than",
            metavar="SECONDS",
            min=0,
            callback=number,
            help="Treat the job of an unpublished ledger of this age as failed.",
        ),
    ] = CLEAN_AGE_SECONDS,
) -> None:
    """Delete the ledgers of failed jobs.

    They are ledgers that were written for a dataset and are not in it, and ledgers with rows for a log that no job will
    add to it.
    """
    from octavo.cli.output import counted, print_json, print_line  # noqa: PLC0415
    from octavo.pipeline.base.datasets import dataset_store  # noqa: PLC0415
    from octavo.pipeline.base.log_write_store import clean_log_writes  # noqa: PLC0415

    async with dataset_store(_cluster(session, None)) as datasets:
        cleaned = await datasets.clean(dataset, older_than_seconds=older_than)
        writes = None
        if dataset is None:
            writes = await clean_log_writes(datasets.client, datasets.store, older_than_seconds=older_than)
    if session.as_json:
        print_json(
            {
                "datasets": [one._asdict() for one in cleaned],
                "log_writes": None if writes is None else writes._asdict(),
            }
        )
        return
    for one in cleaned:
        print_line(f"{one.dataset}: {counted(len(one.ledger_ids), 'ledger')} deleted")
    if writes is not None and writes.ledger_ids:
        print_line(f"rows for logs: {counted(len(writes.ledger_ids), 'ledger')} deleted")


@command(app)
async def script(session: Session) -> None:
    """Print the path of the script for spark-submit.

    The script runs the same commands.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    path = str(Path(__file__).with_name("pipeline_submit.py"))
    if session.as_json:
        print_json({"script": path})
    else:
        print_line(path)


# --- both ------------------------------------------------------------------------------------------------------------


def _need_spark() -> None:
    """Raise :class:`CommandError` unless Spark is installed."""
    import importlib.util  # noqa: PLC0415

    for module in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(module) is None:
            raise CommandError(f"this command needs {module}: `pip install {module}`, or Octavo with its extra `spark`")


def _cluster(session: Session, password_file: Path | None) -> "ClusterOptions":
    from octavo.pipeline.base.options import ClusterOptions  # noqa: PLC0415
    from octavo.pipeline.base.paths import settled  # noqa: PLC0415

    file = None if password_file is None else str(password_file)
    return settled(ClusterOptions(session.metadata_uri, password_file=file))


def _located(path: str) -> str:
    """The path for Spark. A relative path is resolved here, because Spark's processes have other working
    directories."""
    return path if ":" in path else str(Path(path).absolute())


def _selection(ledgers: str | None, dataset: str | None, *, or_log: bool = False) -> str | None:
    if ledgers is None and dataset is None:
        raise InvalidArgumentError(f"give --ledgers{', --dataset or --log' if or_log else ' or --dataset'}")
    return ledgers


async def _check_bookies(session: Session, writable: int) -> None:
    """Raise :class:`CommandError` if no bookie of the cluster runs, or too few of them are writable."""
    from octavo.cli.output import counted  # noqa: PLC0415
    from octavo.metadata.cluster.registration import BookieState  # noqa: PLC0415

    async with await session.open_metadata() as store:
        found = (await store.list_bookies()).values()
    if not found:
        raise CommandError("no bookie of this cluster is running; start bookies, then run the command again")
    ready = sum(bookie.state is BookieState.WRITABLE for bookie in found)
    if ready < writable:
        raise CommandError(
            f"this job needs {counted(writable, 'writable bookie')}, and the cluster has {ready}; start more, or give "
            "a smaller ensemble (-E)"
        )


async def _on_spark[T](
    name: str, job: "Callable[[SparkSession], T]", master: str | None, session: Session, *, writable: int = 0
) -> T:
    """Run the job in a thread and return its result. Cancelling this cancels the job.

    Java is started for it, which takes seconds, so it is first seen whether there is a cluster with running bookies;
    ``writable``: how many that take new ledgers the job needs.
    """
    await _check_bookies(session, writable)
    from octavo.cli.pipeline_run import run_on_spark  # noqa: PLC0415

    return await run_on_spark(name, job, master=master, log_level=session.log_level)


def _tell_transferred(
    session: Session, entries: int, payload_bytes: int, where: str, streams_left_out: int = 0
) -> None:
    from octavo.cli.output import counted, print_json, print_line  # noqa: PLC0415

    if session.as_json:
        print_json({"entries": entries, "bytes": payload_bytes, "streams_left_out": streams_left_out})
    else:
        _tell_left_out(streams_left_out)
        print_line(f"{counted(entries, 'entry', 'entries')}, {counted(payload_bytes, 'byte')} {where}")


def _tell_left_out(streams: int) -> None:
    from octavo.cli.output import counted, print_line  # noqa: PLC0415

    if streams:
        left_out = counted(streams, "stream")
        print_line(f"left out: {left_out}; entries of streams are read by the names of their logs (export --log)")
