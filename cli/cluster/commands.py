"""``octavo cluster``: the metadata of a cluster, its release, and the hold on garbage collection."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from octavo.cli.asking import agreed
from octavo.cli.cluster import sanity, status, transfer
from octavo.cli.session import CommandError, Session, command
from octavo.protocol.errors import MetadataUnavailableError

app = typer.Typer(name="cluster", help="Check a cluster, and manage its metadata.", no_args_is_help=True)

status.register(app)
sanity.register(app)
transfer.register(app)


@command(app, logs=False, brief=True)
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


@command(app, logs=False, brief=True)
async def show(
    session: Session,
    ledgers: Annotated[
        bool,
        typer.Option("--ledgers", help="Count ledgers and streams, too. This takes a while if there are millions."),
    ] = False,
) -> None:
    """Show id, release and bookies of a cluster.

    Bookies are counted by state. With --ledgers, ledgers and streams are counted, too.
    """
    from octavo.cli.output import print_json, print_line, progress_bar  # noqa: PLC0415
    from octavo.metadata.updates.cluster_release import finalized_release  # noqa: PLC0415

    async with await session.open_metadata() as store:
        facts: dict[str, Any] = {"cluster_id": await store.cluster_id(), "metadata": store.uri}
        facts["release"] = str(await finalized_release(store))
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
    print_line(f"release   {facts['release']}")
    print_line(f"bookies   {', '.join(f'{number} {state}' for state, number in facts['bookies'].items())}")
    if ledgers:
        print_line(f"ledgers   {facts['ledgers']:,} (streams included)")


@command(app, logs=False, brief=True)
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
        question = f"Destroy the cluster at {session.metadata_uri} and lose all its ledgers?"
        if not await agreed(question, without_terminal="destroying a cluster loses all its ledgers"):
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


@command(app, logs=False, brief=True)
async def cookies(session: Session) -> None:
    """Show the cookie of every bookie that the cluster knows.

    The generation in a cookie rises at every start of the bookie. A directory with a lower generation is an old copy,
    and the bookie refuses to start with it.
    """
    from octavo.cli.output import print_json, print_table  # noqa: PLC0415

    async with await session.open_metadata() as store:
        known = [versioned.value for versioned in await store.list_cookies()]
        registered = await store.list_bookies()
    rows = [(cookie.bookie_id, cookie.address, cookie.generation, cookie.bookie_id in registered) for cookie in known]
    if session.as_json:
        names = ("bookie_id", "address", "generation", "registered")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    print_table(
        ["bookie", "address", "generation", "registered"], [(*row[:3], "yes" if row[3] else "no") for row in rows]
    )


@command(app, logs=False, brief=True)
async def finalize(
    session: Session,
    release: Annotated[str, typer.Argument(metavar="VERSION", help="The release, for example 0.2.")],
) -> None:
    """Finalize an upgrade to a release.

    From then on the cluster may use the formats of the release, and bookies of older releases refuse to start. Run it
    once all bookies run the release; before it, every bookie can go back to the release before. The command is refused
    while an older bookie is registered.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415
    from octavo.metadata.updates import cluster_release  # noqa: PLC0415

    wanted = cluster_release.Release.parse(release)
    async with await session.open_metadata() as store:
        before = await cluster_release.read_release(store)
        known = cluster_release.own_releases()
        finalized = known[0] if before is None else before.value
        registered = await store.list_bookies()
        bookies = [(name, cluster_release.release_of(found.version)) for name, found in registered.items()]
        refusal = cluster_release.finalize_refusal(known, finalized, wanted, bookies)
        if refusal is not None:
            raise CommandError(refusal)
        if wanted != finalized or before is None:
            await cluster_release.write_release(store, wanted, before)
    changed = wanted != finalized
    if session.as_json:
        print_json({"release": str(wanted), "before": str(finalized), "changed": changed})
    elif changed:
        print_line(f"the cluster is finalized at release {wanted}; older bookies can no longer start")
    else:
        print_line(f"the cluster is at release {finalized} already")


@command(app, "hold-garbage", logs=False, brief=True)
async def hold_garbage(
    session: Session,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why, for the logs of the bookies and for other operators.")
    ] = "set by an operator",
) -> None:
    """Keep all bookies from dropping deleted ledgers.

    Use it before work on the metadata. Every bookie reads the hold before each garbage collection. `octavo cluster
    release-garbage` ends it.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415
    from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold  # noqa: PLC0415

    async with await session.open_metadata() as store:
        hold = await set_hold(store, GarbageHold(reason, datetime.now(UTC)))
    if session.as_json:
        print_json({"reason": hold.reason, "since": hold.since.isoformat()})
    else:
        print_line(f"garbage collection is on hold since {hold.since.isoformat(timespec='seconds')}: {hold.reason}")


@command(app, "release-garbage", logs=False, brief=True)
async def release_garbage(session: Session) -> None:
    """End a hold on garbage collection.

    From their next garbage collection on, bookies drop the entries of every ledger that the metadata do not list.
    After a restore, first check that no ledger is missing that you need.
    """
    from octavo.cli.output import print_json, print_line  # noqa: PLC0415
    from octavo.metadata.updates.garbage_hold import DOCUMENT, read_hold  # noqa: PLC0415

    async with await session.open_metadata() as store:
        found = await store.read_document(DOCUMENT)
        if found is not None:
            hold = await read_hold(store)
            await store.delete_document(DOCUMENT, found.version)
    if session.as_json:
        print_json({"released": found is not None})
    elif found is None or hold is None:
        print_line("garbage collection was not on hold")
    else:
        print_line(f"garbage collection is no longer on hold (it was: {hold.reason})")
