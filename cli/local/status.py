"""``octavo status``: shows the cluster that ``octavo up`` runs on a data directory."""

import shlex

import typer
from octavo.cli.local.common import DATA_DIR_DEFAULT, DataDirOption, observe_directory, tell_left_stopped
from octavo.cli.output import print_json, print_line, print_table
from octavo.cli.running_cluster import ClusterState, RunningCluster
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, Session, command


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app, logs=False, brief=True)(status)


async def status(session: Session, data_dir: DataDirOption = DATA_DIR_DEFAULT) -> int:
    """Show the cluster that runs on this machine.

    The exit status is 0 if the cluster of `octavo up` and all its bookies are ready, otherwise 1. `octavo bookies`
    shows more about the bookies.
    """
    directory = data_dir.absolute()
    cluster = observe_directory(directory)
    if session.as_json:
        print_json(
            {
                "state": cluster.state.value,
                "pid": None if cluster.holder is None else cluster.holder.process_id,
                "metadata": cluster.metadata,
                "data_dir": str(directory),
                "bookies": list(cluster.bookies),
            }
        )
    else:
        _print(cluster, str(directory))
        tell_left_stopped(cluster)
    all_ready = all(bookie["state"] == "ready" for bookie in cluster.bookies)
    return EXIT_OK if cluster.state is ClusterState.READY and all_ready else EXIT_FAILURE


def _print(cluster: RunningCluster, directory: str) -> None:
    process = "" if cluster.holder is None else f" (process {cluster.holder.process_id})"
    print_line(f"The cluster in {directory} is {cluster.state.value}{process}.")
    if cluster.metadata is not None:
        print_line(f"  export OCTAVO_METADATA={shlex.quote(cluster.metadata)}")
    if cluster.bookies:
        print_table(
            ["bookie", "state", "pid", "port", "log"],
            [
                ["-" if bookie[key] is None else bookie[key] for key in ("name", "state", "pid", "port", "log")]
                for bookie in cluster.bookies
            ],
        )
