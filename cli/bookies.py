"""``octavo bookies``: shows the bookies of a cluster, and forgets bookies that have left it for good."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from octavo.cli.session import CommandError, Session, command, describe
from octavo.protocol.errors import MetadataConflictError, NoSuchLedgerError
from octavo.protocol.ids import BookieId, is_bookie_id

if TYPE_CHECKING:
    from octavo.client.bookie_status import BookieStatus
    from octavo.metadata import MetadataStore
    from octavo.protocol.ids import LedgerId


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    command(app, logs=False, brief=True)(bookies)


async def bookies(
    session: Session,
    forget: Annotated[
        str | None,
        typer.Option(
            "--forget",
            metavar="ID",
            help="Forget this bookie, which has left the cluster for good. Refused while it is registered or a ledger"
            " still names it.",
        ),
    ] = None,
) -> None:
    """Show the bookies of the cluster.

    The table shows state, version, rack, host, space and load of each bookie, how much disk space a bookie wants that
    is read-only for lack of it, and why details are missing. A bookie in doubt
    may have lost entries: it refuses new entries for existing ledgers and never reports an entry as absent. A bookie
    that is not registered is shown as unavailable until it is forgotten with --forget.
    """
    from octavo.cli.output import print_json, print_line, print_table  # noqa: PLC0415 - `octavo --help` needs no tables

    if forget is not None:
        async with await session.open_metadata() as store:
            await forget_bookie(store, forget)
        if session.as_json:
            print_json({"bookie_id": forget, "forgotten": True})
        else:
            print_line(f"the cluster has forgotten bookie {forget}")
        return
    from octavo.client.bookie_status import ask_bookies  # noqa: PLC0415

    async with await session.open_metadata() as store:
        known = await ask_bookies(store)
    if session.as_json:
        print_json([as_json(bookie) for bookie in known])
        return
    from octavo.cli.cluster.hosts import remarks  # noqa: PLC0415

    print_table(*as_table(known, time.time()))
    for remark in remarks(known):
        print_line(remark)


def as_table(known: "Sequence[BookieStatus]", now: float) -> tuple[list[str], list[list[object]]]:
    """Headers and rows. The last columns are there only if a bookie lacks disk space, or has given no details: the
    table is wide."""
    from octavo.cli.cluster.health import shortage_in_words  # noqa: PLC0415

    headers = [
        "bookie", "address", "state", "doubt", "version", "rack", "host", "free", "capacity", "ledgers", "connections",
        "certificate",
    ]  # fmt: skip
    rows: list[list[object]] = [
        [
            bookie.bookie_id,
            bookie.address,
            bookie.state.value,
            _doubt(bookie),
            bookie.version,
            bookie.rack,
            bookie.host_id,
            _size(bookie, "free_bytes"),
            _size(bookie, "total_bytes"),
            _fact(bookie, "ledgers"),
            _fact(bookie, "connections"),
            _certificate(bookie, now),
        ]
        for bookie in known
    ]
    if any(shortage_in_words(bookie.facts) is not None for bookie in known):
        headers.append("short of space")
        for row, bookie in zip(rows, known, strict=True):
            row.append(shortage_in_words(bookie.facts))
    if any(bookie.error is not None for bookie in known):
        headers.append("no details because")
        for row, bookie in zip(rows, known, strict=True):
            row.append(why_no_details(bookie))
    return headers, rows


async def forget_bookie(store: "MetadataStore", name: str) -> None:
    """Delete the cookie of a bookie that has left the cluster.

    Raises :class:`CommandError` when the cluster does not know the bookie, while it is registered, while the metadata
    of a ledger name it, and when it starts meanwhile.
    """

    bookie_id = BookieId(name)
    # Read first: if the bookie starts from now on, its cookie changes, and the delete below fails.
    cookie = await store.read_cookie(bookie_id) if is_bookie_id(name) else None
    if cookie is None:
        raise CommandError(f"the cluster does not know a bookie {name}; `octavo bookies` lists those that it knows")
    await _check_not_registered(store, bookie_id)
    if (ledger_id := await _ledger_that_names(store, bookie_id)) is not None:
        raise CommandError(
            f"bookie {name} may hold entries of ledger {ledger_id}, whose metadata name it; "
            "it can be forgotten once no ledger names it"
        )
    # Again: it may have been starting when it was checked.
    await _check_not_registered(store, bookie_id)
    try:
        await store.delete_cookie(bookie_id, cookie.version)
    except MetadataConflictError as error:
        raise CommandError(f"bookie {name} has been started or forgotten in the meantime") from error
    # Nothing registers as the bookie from now on (rule B10); it may have done so just before.
    try:
        await _check_not_registered(store, bookie_id)
    except CommandError:
        await store.create_cookie(cookie.value)
        raise


async def _check_not_registered(store: "MetadataStore", bookie_id: BookieId) -> None:
    registration = (await store.list_bookies()).get(bookie_id)
    if registration is not None:
        raise CommandError(f"bookie {bookie_id} is registered at {registration.address}; stop it before you forget it")


async def _ledger_that_names(store: "MetadataStore", bookie_id: BookieId) -> "LedgerId | None":
    """The first ledger with the bookie in one of its fragments."""
    from octavo.metadata.updates.paging import members_of  # noqa: PLC0415 - needed by this command only

    async for ledger_id in store.list_ledgers():
        try:
            names = await members_of(store, (await store.read_either(ledger_id)).value)
        except NoSuchLedgerError:
            continue
        if bookie_id in names:
            return ledger_id
    return None


def as_json(bookie: "BookieStatus") -> dict[str, Any]:
    """A bookie's registration and facts."""
    return {
        "bookie_id": bookie.bookie_id,
        "address": bookie.address,
        "state": bookie.state.value,
        "version": bookie.version,
        "rack": bookie.rack,
        "host_id": bookie.host_id,
        "no_details_because": why_no_details(bookie),
        **{name: value for name, value in sorted((bookie.facts or {}).items()) if name not in _NOT_FACTS},
    }


_NOT_FACTS = {"bookie_id", "address", "state", "version", "rack", "host_id", "no_details_because"}


def why_no_details(bookie: "BookieStatus") -> str | None:
    """Why a bookie that was asked for its facts gave none, in one line; None if it gave them, or was not asked."""
    return None if bookie.error is None else describe(bookie.error)


def _doubt(bookie: "BookieStatus") -> str | None:
    in_doubt = _fact(bookie, "in_doubt")
    return None if in_doubt is None else "in doubt" if in_doubt else "none"


def _certificate(bookie: "BookieStatus", now: float) -> str | None:
    """How long the certificate is still valid."""
    from octavo.cli.cluster.health import certificate_days  # noqa: PLC0415

    days = certificate_days(bookie.facts, now)
    return None if days is None else f"{days} days" if days >= 0 else "expired"


def _fact(bookie: "BookieStatus", name: str) -> object:
    return None if bookie.facts is None else bookie.facts.get(name)


def _size(bookie: "BookieStatus", name: str) -> str | None:
    value = _fact(bookie, name)
    return f"{value / 1e9:,.1f} GB" if isinstance(value, int | float) else None
