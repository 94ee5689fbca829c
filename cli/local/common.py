"""Helpers that ``octavo up``, ``down`` and ``status`` share."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from octavo.cli.output import counted, print_line
from octavo.cli.running_cluster import RunningCluster, observe
from octavo.cli.session import CommandError, print_error

DATA_DIR_DEFAULT = Path("octavo-data")

DataDirOption = Annotated[
    Path, typer.Option("--data-dir", metavar="DIR", help="Directory that holds all data of the cluster.")
]


def print_ready(ready: int, wanted: int, uri: str, directory: Path) -> None:
    """Say that ``ready`` of ``wanted`` bookies serve, and how to use them."""
    number = counted(ready, "bookie") if ready == wanted else f"{ready} of {counted(wanted, 'bookie')}"
    print_line(f"Octavo is ready: {number}. Data and logs are in {directory}")
    print_line(f"  export OCTAVO_METADATA={shlex.quote(uri)}")


def left_stopped(name: str, reason: str) -> str:
    """Say that a bookie is not started again."""
    return f"{name} will not be started again: {reason}"


def tell_left_stopped(cluster: RunningCluster) -> None:
    """Print, as errors, the bookies that are not started again, with the reason of each."""
    for bookie in cluster.bookies:
        if reason := bookie.get("reason"):
            print_error(left_stopped(bookie["name"], reason))


def observe_directory(directory: Path) -> RunningCluster:
    """The cluster on ``directory``. Raises :class:`CommandError` when there is no such directory."""
    if not directory.is_dir():
        raise CommandError(
            f"there is no data directory {directory}: start a cluster with `octavo up`, or give --data-dir"
        )
    try:
        return observe(directory)
    except OSError as error:
        raise CommandError(f"cannot read the data directory {directory}: {error.strerror}") from error
