"""``octavo down``: stops the cluster that ``octavo up`` runs on a data directory."""

import asyncio
import signal

import typer
from octavo.cli.local.common import DATA_DIR_DEFAULT, DataDirOption, observe_directory
from octavo.cli.output import print_json, print_line, progress_bar
from octavo.cli.running_cluster import ClusterState, ProcessIdentity
from octavo.cli.session import CommandError, Session, command

STOP_SECONDS_MAX = 60.0
"""How long a cluster may take to stop: three times what ``octavo up`` grants a bookie before it kills it."""

_POLL_SECONDS = 0.05


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app, logs=False, brief=True)(down)


async def down(session: Session, data_dir: DataDirOption = DATA_DIR_DEFAULT) -> None:
    """Stop the cluster that runs on this machine.

    The command waits until the cluster of `octavo up` has stopped; its data stay. It also succeeds when the
    cluster is not running, and fails when there is no data directory.
    """
    directory = data_dir.absolute()
    cluster = observe_directory(directory)
    was_running = cluster.state is not ClusterState.STOPPED
    told: ProcessIdentity | None = None
    deadline = asyncio.get_running_loop().time() + STOP_SECONDS_MAX
    with progress_bar("stopping", None):
        # The lock is free a moment before its holder ends.
        while cluster.state is not ClusterState.STOPPED or (told is not None and told.is_running):
            if asyncio.get_running_loop().time() > deadline:
                raise CommandError(
                    f"the cluster in {directory} has not stopped within {STOP_SECONDS_MAX:g} s; see {directory}/logs"
                )
            # Told once each: a second signal would end `octavo up` at once, before its bookies.
            if cluster.holder is not None and cluster.holder != told:
                told = cluster.holder
                try:
                    told.send(signal.SIGTERM)
                except PermissionError as error:
                    raise CommandError(
                        f"process {told.process_id}, which runs the cluster, belongs to another user"
                    ) from error
            await asyncio.sleep(_POLL_SECONDS)
            cluster = observe_directory(directory)
    if session.as_json:
        print_json({"data_dir": str(directory), "was_running": was_running})
    elif was_running:
        print_line(f"The cluster in {directory} has stopped.")
    else:
        print_line(f"No cluster is running in {directory}.")
