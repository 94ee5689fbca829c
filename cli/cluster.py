"""``octavo cluster``: a cluster's metadata as a whole: make, look at, destroy."""

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import MetadataUnavailableError

if TYPE_CHECKING:
    from octavo.metadata import MetadataStore

app = typer.Typer(name="cluster", help="Make, look at and destroy a cluster's metadata.", no_args_is_help=True)


async def _open(session: Session, *, create: bool = False) -> "MetadataStore":
    from octavo.metadata import open_metadata_store  # noqa: PLC0415 - `octavo --help` does without

    return await open_metadata_store(session.metadata_uri, create=create)


@command(app)
async def init(session: Session) -> None:
    """Make an empty cluster in the metadata store. Nothing happens to one that is there already.

    `octavo up` and bookies do the same when they find none.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415

    try:
        async with await _open(session) as store:
            cluster_id, made = await store.cluster_id(), False
    except MetadataUnavailableError as error:
        if error.may_have_happened:
            raise
        async with await _open(session, create=True) as store:
            cluster_id, made = await store.cluster_id(), True
    if session.as_json:
        print_json({"cluster_id": cluster_id, "metadata": session.metadata_uri, "created": made})
    elif made:
        print_line(f"cluster {cluster_id} made at {session.metadata_uri}")
    else:
        print_line(f"cluster {cluster_id} is there already, at {session.metadata_uri}")


@command(app)
async def show(
    session: Session,
    ledgers: Annotated[
        bool, typer.Option("--ledgers", help="Count the ledgers, too: with millions it takes a while.")
    ] = False,
) -> None:
    """Show a cluster's id, its bookies, and with --ledgers how many ledgers it has."""
    from octavo.cli.output import print_json, print_line, progress_bar  # noqa: PLC0415

    async with await _open(session) as store:
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
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Destroy a cluster's metadata: every ledger is lost, whatever bookies still have on disk.

    Refuses while bookies are running. Interrupted, it goes on where it stopped when called again.
    """
    from octavo.cli.output import print_json, print_line, progress_bar  # noqa: PLC0415
    from octavo.metadata.connect import destroy_metadata_store  # noqa: PLC0415

    if not yes:
        if not sys.stdin.isatty():
            raise CommandError("destroying a cluster loses all its ledgers; say --yes to do it without being asked")
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
        print_line(f"the cluster at {session.metadata_uri} is destroyed")


async def _agreed(question: str) -> bool:
    """Ask at the terminal; anything but a yes is a no."""
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    # In a thread: a Ctrl-C must end the command while it waits.
    answer = await asyncio.to_thread(sys.stdin.readline)
    return answer.strip().lower() in {"y", "yes"}
