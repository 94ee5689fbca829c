"""``octavo cluster``: creates, shows and destroys the metadata of a cluster."""

import asyncio
import sys
from typing import Annotated, Any

import typer
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import MetadataUnavailableError

app = typer.Typer(name="cluster", help="Create, show and destroy the metadata of a cluster.", no_args_is_help=True)


@command(app)
async def init(session: Session) -> None:
    """Create an empty cluster in the metadata store. A cluster that already exists is left as it is.

    `octavo up` and bookies do the same when they find no cluster.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    try:
        async with await session.open_metadata() as store:
            cluster_id, made = await store.cluster_id(), False
    except MetadataUnavailableError as error:
        if error.may_have_happened:
            raise
        async with await session.open_metadata(create=True) as store:
            cluster_id, made = await store.cluster_id(), True
    if session.as_json:
        print_json({"cluster_id": cluster_id, "metadata": session.metadata_uri, "created": made})
    elif made:
        print_line(f"created cluster {cluster_id} at {session.metadata_uri}")
    else:
        print_line(f"cluster {cluster_id} already exists at {session.metadata_uri}")


@command(app)
async def show(
    session: Session,
    ledgers: Annotated[
        bool, typer.Option("--ledgers", help="Count the ledgers, too. This takes a while if there are millions.")
    ] = False,
) -> None:
    """Show the id and the bookies of a cluster.

    Bookies are counted by state. With --ledgers, the ledgers are counted, too.
    """
    from octavo.cli.output import print_json, print_line, progress_bar  # noqa: PLC0415

    async with await session.open_metadata() as store:
        facts: dict[str, Any] = {"cluster_id": await store.cluster_id(), "metadata": store.uri}
        states = [bookie.state.value for bookie in await store.list_known_bookies()]
        facts["bookies"] = {state: states.count(state) for state in ("writable", "read-only", "unavailable")}
        if ledgers:
            counted = 0
            with progress_bar("counting ledgers", None) as progress:
                async for _ in store.list_ledgers():
                    counted += 1
                    if counted % 1000 == 0:
                        progress(counted, f"{counted:,}")
            facts["ledgers"] = counted
    if session.as_json:
        print_json(facts)
        return
    print_line(f"cluster   {facts['cluster_id']}")
    print_line(f"metadata  {facts['metadata']}")
    print_line(f"bookies   {', '.join(f'{number} {state}' for state, number in facts['bookies'].items())}")
    if ledgers:
        print_line(f"ledgers   {facts['ledgers']:,}")


@command(app)
async def destroy(
    session: Session,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Destroy the metadata of a cluster. All its ledgers are lost, even if bookies still have their entries on disk.

    The command refuses while bookies are running. If it is interrupted, run it again to finish.
    """
    from octavo.cli.output import print_json, print_line, progress_bar  # noqa: PLC0415
    from octavo.metadata.connect import destroy_metadata_store  # noqa: PLC0415

    if not yes:
        if not sys.stdin.isatty():
            raise CommandError("destroying a cluster loses all its ledgers; give --yes to confirm")
        if not await _agreed(f"Destroy the cluster at {session.metadata_uri} and lose all its ledgers?"):
            raise CommandError("nothing has been destroyed")
    deleted = 0
    with progress_bar("destroying", None) as progress:

        def tell(number: int) -> None:
            nonlocal deleted
            deleted += number
            progress(deleted, f"{deleted:,} nodes")

        await destroy_metadata_store(session.metadata_uri, on_deleted=tell)
    if session.as_json:
        print_json({"metadata": session.metadata_uri, "destroyed": True})
    else:
        print_line(f"destroyed the cluster at {session.metadata_uri}")


async def _agreed(question: str) -> bool:
    """Ask on the terminal; any answer but yes counts as no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    # Read in a thread, so that Ctrl-C ends the command while it waits.
    answer = await asyncio.to_thread(sys.stdin.readline)
    return answer.strip().lower() in {"y", "yes"}
