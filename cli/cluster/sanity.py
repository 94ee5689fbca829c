"""``octavo cluster test``: writes to the bookies of a cluster, reads back, and cleans up."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from octavo.cli.event_loop import finish
from octavo.cli.session import EXIT_FAILURE, EXIT_OK, CommandError, Session, command, describe
from octavo.protocol.errors import OctavoError

if TYPE_CHECKING:
    from octavo.client.client import Client
    from octavo.metadata import BookieRegistration, MetadataStore
    from octavo.protocol.ids import BookieId

ENTRIES = 20
ENTRY_BYTES = 1024

TEST_KEY = "octavo.test"
"""Custom metadata key of the ledgers that the test makes, for the case that it cannot delete them."""


PATIENCE_SECONDS = 5.0
"""A bookie that does not answer for so long has failed the test."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "test", logs=False)(check_by_writing)


async def check_by_writing(
    session: Session,
    bookie: Annotated[str | None, typer.Option("--bookie", metavar="ID", help="Test only this bookie.")] = None,
) -> int:
    """Write to the bookies of a cluster, and read back.

    The command deletes what it has written. It tests each writable bookie alone, and then all of them together. The
    exit status is 1 if a bookie fails.
    """
    from octavo.cli.output import print_json, print_table  # noqa: PLC0415

    async with await session.open_metadata() as store:
        registered = await store.list_bookies()
    if bookie is not None and bookie not in registered:
        raise CommandError(f"bookie {bookie} is not registered; `octavo bookies` lists the bookies")
    alone = [
        name
        for name, registration in registered.items()
        if registration.state.value == "writable" and bookie in {None, name}
    ]
    if not alone:
        which = "no bookie is writable" if bookie is None else f"bookie {bookie} is read-only"
        raise CommandError(f"{which}, so nothing can be written to it; `octavo cluster status` says more")
    results = [await _attempt(session, [name]) for name in alone]
    if len(alone) > 1:
        results.append(await _attempt(session, alone))
    if session.as_json:
        print_json(results)
    else:
        print_table(
            ["bookies", "result", "write", "read"],
            [
                (_names(result["bookies"]), result["error"] or "works", _ms(result["write"]), _ms(result["read"]))
                for result in results
            ],
        )
    return EXIT_FAILURE if any(result["error"] for result in results) else EXIT_OK


def _names(bookies: list[str]) -> str:
    return bookies[0] if len(bookies) == 1 else f"all {len(bookies)}"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f} ms"


async def _attempt(session: Session, bookies: "list[BookieId]") -> dict[str, Any]:
    """Write, read and delete a ledger on these bookies; the times in seconds, or the error."""
    result: dict[str, Any] = {"bookies": list(bookies), "error": None, "write": None, "read": None}
    try:
        async with await _client_of(session, bookies) as client:
            await _write_and_read(client, min(len(bookies), 3), result)
    except OctavoError as error:
        result["error"] = describe(error)
    return result


async def _write_and_read(client: "Client", size: int, result: dict[str, Any]) -> None:
    payloads = [number.to_bytes(4, "big") * (ENTRY_BYTES // 4) for number in range(ENTRIES)]
    start = time.perf_counter()
    ledger = await client.create_ledger(
        ensemble_size=size, write_quorum=size, ack_quorum=size, custom_metadata={TEST_KEY: b"yes"}
    )
    try:
        for payload in payloads:
            await ledger.add(payload)
        await ledger.close()
        result["write"] = time.perf_counter() - start
        start = time.perf_counter()
        async with client.open_ledger(ledger.id) as reader:
            read = [entry.payload async for entry in reader]
        result["read"] = time.perf_counter() - start
        if read != payloads:
            result["error"] = f"ledger {ledger.id}: the entries read are not those written"
    finally:
        await finish(client.delete_ledger(ledger.id))


async def _client_of(session: Session, bookies: "list[BookieId]") -> "Client":
    """A client that places entries on these bookies only, and does not wait long for one that fails."""
    from octavo.client.client import Client  # noqa: PLC0415 - `octavo --help` needs no client
    from octavo.client.options import ClientOptions  # noqa: PLC0415
    from octavo.client.wire.protection import options_with_environment  # noqa: PLC0415

    store = await session.open_metadata()
    try:
        only = cast("MetadataStore", _OnlyBookies(store, frozenset(bookies)))
        options = options_with_environment(
            ClientOptions(
                add_quorum_timeout_seconds=PATIENCE_SECONDS,
                read_quorum_timeout_seconds=PATIENCE_SECONDS,
                close_timeout_seconds=PATIENCE_SECONDS,
            )
        )
        return Client(only, cluster_id=await store.cluster_id(), options=options)
    except BaseException:
        await store.close()
        raise


class _OnlyBookies:
    """A metadata store in which only some bookies are registered."""

    def __init__(self, store: "MetadataStore", bookies: "frozenset[BookieId]") -> None:
        self._store = store
        self._bookies = bookies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _chosen(self, registered: "Mapping[BookieId, BookieRegistration]") -> "Mapping[BookieId, BookieRegistration]":
        return {name: found for name, found in registered.items() if name in self._bookies}

    async def list_bookies(self) -> "Mapping[BookieId, BookieRegistration]":
        """Those of the bookies that are registered."""
        return self._chosen(await self._store.list_bookies())

    def watch_bookies(self) -> "_WatchOf":
        """Follow :meth:`list_bookies`."""
        return _WatchOf(self._store.watch_bookies(), self._chosen)


class _WatchOf:
    """A watch of some of the registered bookies."""

    def __init__(self, watch: Any, chosen: Any) -> None:
        self._watch = watch
        self._chosen = chosen

    async def __aenter__(self) -> "_WatchOf":
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, *exception: Any) -> None:
        await self._watch.__aexit__(*exception)

    def __aiter__(self) -> "_WatchOf":
        return self

    async def __anext__(self) -> "Mapping[BookieId, BookieRegistration]":
        chosen: Mapping[BookieId, BookieRegistration] = self._chosen(await anext(self._watch))
        return chosen
