"""The facade: what connecting, creating, opening, listing and closing promise, over fake bookies and real metadata."""

import asyncio
import contextlib
import gc
import random
import re
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata import BookieRegistration, BookieState, Cookie, MetadataStore, Version, open_metadata_store
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Op
from support.clusters.reading import Cluster, cluster_of
from support.inside import connections_of
from support.metadata.interposed_store import InterposedStore
from support.waiting import WAIT_SECONDS

import octavo

QUICK: dict[str, Any] = {
    "reconnect_delay_seconds_min": 0.001,
    "reconnect_delay_seconds_max": 0.005,
    "close_timeout_seconds": 20.0,
    "explicit_lac_delay_seconds": 0.001,
}


@contextlib.asynccontextmanager
async def connected(count: int = 3, **options: Any) -> AsyncIterator[tuple[Cluster, octavo.Client]]:
    """A cluster and a client of it."""
    async with cluster_of(count) as cluster, octavo.connect(cluster.uri, **(QUICK | options)) as client:
        yield cluster, client


async def ids_of(client: octavo.Client) -> list[int]:
    return [ledger_id async for ledger_id in client.list_ledgers()]


# --- connecting ---------------------------------------------------------------------------------------------------


async def test_connect_can_be_awaited_or_entered() -> None:
    async with cluster_of(1) as cluster:
        client = await octavo.connect(cluster.uri)
        assert isinstance(client, octavo.Client)
        await client.close()
        async with octavo.connect(cluster.uri) as client:
            assert not client.closed
        assert client.closed
        async with await octavo.connect(cluster.uri) as client:
            assert not client.closed


async def test_an_opening_is_for_one_use() -> None:
    async with cluster_of(1) as cluster:
        opening = octavo.connect(cluster.uri)
        async with opening:
            with pytest.raises(RuntimeError, match="awaited or entered already"):
                await opening


async def test_an_opening_says_what_made_it() -> None:
    async with cluster_of(1) as cluster, octavo.connect(cluster.uri) as client:
        opening = client.create_ledger(1, 1, 1)
        assert repr(opening) == "<create_ledger(), not awaited or entered yet>"
        await (await opening).close()
        assert repr(opening) == "<create_ledger(), used>"
        assert repr(client.open_ledger(7)) == "<open_ledger(7), not awaited or entered yet>"


async def test_what_is_not_closed_warns() -> None:
    async with cluster_of(0) as cluster:
        client = await octavo.connect(cluster.uri)
        expected = r"<Client of cluster .*, open, 0 writers, 0 readers> was not closed"
        del client
        with pytest.warns(ResourceWarning, match=expected):
            gc.collect()
        client = await octavo.connect(cluster.uri)
        await client.close()
        del client
        gc.collect()  # a warning would fail this test


async def test_writers_and_readers_that_are_not_closed_warn() -> None:
    async with cluster_of(3) as cluster:
        client = await octavo.connect(cluster.uri, **QUICK)
        closed, reader = await client.create_ledger(), await client.create_ledger(ids="explicit")
        await closed.close()
        await reader.close()
        things = [
            await client.create_ledger(),
            await client.create_ledger(ids="explicit"),
            await client.open_ledger(closed.id),
        ]
        await connections_of(client).close()
        del client, things, closed, reader
        with pytest.warns(ResourceWarning) as told:
            gc.collect()
        names = sorted(str(one.message).split(" of ")[0] for one in told)
        assert names == ["<Client", "<ExplicitIdWriter", "<LedgerReader", "<LedgerWriter"]


async def test_what_a_program_prints_of_its_handles_tells_id_and_state() -> None:
    async with cluster_of(3) as cluster:
        client = await octavo.connect(cluster.uri, **QUICK)
        writer = await client.create_ledger()
        assert repr(writer) == f"<LedgerWriter of ledger {writer.id}, open, nothing confirmed>"
        await writer.add_many([b"a", b"b"])
        explicit = await client.create_ledger(ids="explicit")
        assert repr(explicit) == (
            f"<ExplicitIdWriter of ledger {explicit.id}, open, nothing confirmed, first missing entry 0>"
        )
        await writer.close()
        assert repr(writer) == f"<LedgerWriter of ledger {writer.id}, closed, confirmed up to entry 1>"
        reader = await client.open_ledger(writer.id)
        assert repr(reader) == f"<LedgerReader of ledger {writer.id} (closed), open, readable up to entry 1>"
        assert repr(client).endswith(", open, 1 writers, 1 readers>")
        await client.close()
        assert repr(reader).endswith("(closed), closed, readable up to entry 1>")
        assert repr(client).endswith(", closed, 0 writers, 0 readers>")


async def test_unknown_schemes_are_refused() -> None:
    with pytest.raises(octavo.InvalidArgumentError, match="not a metadata URI"):
        await octavo.connect("redis://localhost")


async def test_a_client_notes_its_name_and_the_time_in_what_it_fences() -> None:
    now = datetime(2026, 5, 4, 12, 30, tzinfo=UTC)
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as writing:
        for name, expected in (("standby 2", r"standby 2"), (None, r".+, process \d+")):
            writer = await writing.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await writer.add(b"x")
            async with (
                octavo.connect(cluster.uri, client_name=name, wall_clock=lambda: now) as client,
                client.open_ledger(writer.id) as reader,
            ):
                assert reader.metadata.fenced_at == now
                assert re.fullmatch(expected, reader.metadata.fenced_by)
            await writer.close()
        with pytest.raises(octavo.InvalidArgumentError, match="client_name has at most 128 characters"):
            octavo.connect(cluster.uri, client_name="x" * 129)


async def test_closed_client_refuses_everything_and_closing_twice_is_fine() -> None:
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri)
        await asyncio.gather(client.close(), client.close())
        for call in (
            lambda: client.create_ledger().__aenter__(),
            lambda: client.open_ledger(0).__aenter__(),
            lambda: client.delete_ledger(0),
            lambda: client.ledger_metadata(0),
            client.bookies,
            lambda: ids_of(client),
        ):
            with pytest.raises(octavo.ClientClosedError):
                await call()


# --- writing and reading -------------------------------------------------------------------------------------------


async def test_what_is_written_is_read_back() -> None:
    async with connected() as (_, client):
        async with client.create_ledger(custom_metadata={"app": b"orders"}) as ledger:
            assert await ledger.add(b"zero") == 0
            assert await ledger.add_many([b"one", b"two"]) == range(1, 3)
        async with client.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader] == [b"zero", b"one", b"two"]
            assert (reader.last_add_confirmed, reader.length) == (2, 10)
        assert reader.closed
        metadata = await client.ledger_metadata(ledger.id)
        assert metadata.state is octavo.LedgerState.CLOSED
        assert metadata.custom_metadata == {"app": b"orders"}
        assert await ids_of(client) == [ledger.id]
        await client.delete_ledger(ledger.id)
        assert await ids_of(client) == []
        with pytest.raises(octavo.NoSuchLedgerError):
            await client.open_ledger(ledger.id)
        with pytest.raises(octavo.NoSuchLedgerError):
            await client.delete_ledger(ledger.id)


@pytest.mark.parametrize("digest", list(octavo.Digest))
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 2, 2), (4, 2, 1), (5, 3, 2)])
async def test_every_shape_and_digest_reads_back(sizes: tuple[int, int, int], digest: octavo.Digest) -> None:
    async with connected(5) as (_, client):
        payloads = [b"%d" % number for number in range(100)]
        async with client.create_ledger(*sizes, password=b"secret", digest=digest) as ledger:
            await ledger.add_many(payloads)
        async with client.open_ledger(ledger.id, password=b"secret") as reader:
            assert [entry.payload async for entry in reader] == payloads
            assert [entry.payload for entry in await reader.read(42, 44)] == payloads[42:45]


async def test_open_ledger_is_followed_without_disturbing_its_writer() -> None:
    async with connected() as (_, client):
        seen: list[bytes] = []
        async with client.create_ledger() as ledger:
            await ledger.add(b"zero")
            reader = await client.open_ledger(ledger.id, recover=False)

            async def follow() -> None:
                async for entry in reader.follow():
                    seen.append(entry.payload)  # noqa: PERF401 - watched while it grows

            following = asyncio.create_task(follow())
            for number in range(1, 20):
                await ledger.add(b"%d" % number)
            assert await reader.wait_last_add_confirmed(19, timeout=WAIT_SECONDS) == 19
            assert not reader.ledger_closed
        await following
        assert seen == [b"zero", *(b"%d" % number for number in range(1, 20))]


async def test_wall_clock_is_noted_in_new_ledgers() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    async with cluster_of() as cluster, octavo.connect(cluster.uri, wall_clock=lambda: noon) as client:
        async with client.create_ledger() as ledger:
            pass
        assert (await client.ledger_metadata(ledger.id)).created_at == noon


# --- passwords -----------------------------------------------------------------------------------------------------


async def test_wrong_password_or_digest_changes_nothing_and_asks_no_bookie() -> None:
    async with connected() as (cluster, client):
        ledger = await client.create_ledger(password=b"secret")
        await ledger.add(b"a")
        before = [len(bookie.requests) for bookie in cluster.bookies]
        wrongs: tuple[dict[str, Any], ...] = (
            {"password": b"guess"},
            {},
            {"password": b"secret", "digest": octavo.Digest.HMAC_SHA256},
        )
        for wrong in wrongs:
            with pytest.raises(octavo.UnauthorizedError, match="wrong password or digest"):
                await client.open_ledger(ledger.id, **wrong)
        asked = [
            request
            for bookie, count in zip(cluster.bookies, before, strict=True)
            for request in bookie.requests[count:]
            if request.op is not Op.WRITE_LAC
        ]
        assert asked == []
        assert (await client.ledger_metadata(ledger.id)).state is octavo.LedgerState.OPEN
        assert await ledger.add(b"b") == 1


async def test_opening_recovers_a_ledger_that_has_a_writer_which_finds_out() -> None:
    async with connected() as (_, client):
        ledger = await client.create_ledger()
        assert await ledger.add(b"kept") == 0
        async with client.open_ledger(ledger.id) as reader:
            assert reader.ledger_closed
            assert [entry.payload async for entry in reader] == [b"kept"]
        with pytest.raises(octavo.LedgerFencedError):
            await ledger.add(b"too late")
        with contextlib.suppress(octavo.LedgerFencedError):
            await ledger.close()


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        {"ensemble_size": 2},
        {"ack_quorum": 0},
        {"write_quorum": 2, "ack_quorum": 3},
        {"password": "text"},
        {"digest": "crc32c"},
        {"custom_metadata": {"key": "text"}},
        {"custom_metadata": {5: b""}},
    ],
)
async def test_impossible_ledgers_are_refused_before_anything_is_made(arguments: dict[str, Any]) -> None:
    async with connected() as (_, client):
        with pytest.raises(octavo.InvalidArgumentError):
            await client.create_ledger(**arguments)
        assert await ids_of(client) == []


@pytest.mark.parametrize("ledger_id", [-1, 2**63, "1", None, True])
async def test_impossible_ledger_ids_are_refused(ledger_id: Any) -> None:
    async with connected(1) as (_, client):
        for call in (client.delete_ledger, client.ledger_metadata, client.open_ledger):
            with pytest.raises(octavo.InvalidArgumentError):
                await call(ledger_id)


async def test_too_few_bookies_leave_no_ledger() -> None:
    async with connected(2) as (_, client):
        with pytest.raises(octavo.NotEnoughBookiesError, match="there are 2"):
            await client.create_ledger()
        assert await ids_of(client) == []


async def test_read_only_bookies_get_no_new_ledgers() -> None:
    async with connected(3) as (cluster, client):
        await _register(cluster.store, "b1", cluster.bookies[1].address, BookieState.READ_ONLY)
        with pytest.raises(octavo.NotEnoughBookiesError):
            await client.create_ledger()
        async with client.create_ledger(2, 2, 2) as ledger:
            assert set(ledger.metadata.fragments[0].bookies) == {"b0", "b2"}


# --- bookies --------------------------------------------------------------------------------------------------------


async def test_bookies_are_told_with_state_and_on_demand_with_their_facts() -> None:
    async with connected(2) as (cluster, client):
        await _register(cluster.store, "b1", cluster.bookies[1].address, BookieState.READ_ONLY)
        await cluster.store.create_cookie(Cookie(bookie_id=BookieId("gone"), generation=1, address="nowhere:1"))
        cluster.bookies[0].facts = {"free_bytes": 5}
        cluster.bookies[1].refuse(Op.INFO, octavo.OctavoError("not now"))
        plain = await client.bookies()
        assert [(bookie.bookie_id, bookie.state.value) for bookie in plain] == [
            ("b0", "writable"),
            ("b1", "read-only"),
            ("gone", "unavailable"),
        ]
        assert [bookie.address for bookie in plain] == [
            cluster.bookies[0].address,
            cluster.bookies[1].address,
            "nowhere:1",
        ]
        assert [bookie.facts for bookie in plain] == [None, None, None]
        assert [bookie.error for bookie in plain] == [None, None, None]
        detailed = await client.bookies(details=True)
        assert [bookie.facts for bookie in detailed] == [{"free_bytes": 5}, None, None]
        assert [None if bookie.error is None else bookie.error.message for bookie in detailed] == [
            None,
            "not now",
            None,
        ]
        assert [bookie.version for bookie in detailed] == ["fake", "fake", None]


async def _register(store: MetadataStore, bookie_id: str, address: str, state: BookieState) -> None:
    await store.register_bookie(
        BookieRegistration(
            bookie_id=BookieId(bookie_id), address=address, state=state, version="fake", boot_id="another"
        )
    )


# --- closing and cancelling ------------------------------------------------------------------------------------------


async def test_closing_the_client_closes_its_writers_and_ends_its_readers() -> None:
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri, **QUICK)
        ledger = await client.create_ledger()
        added = ledger.add_nowait(b"still under way")
        finished = await client.create_ledger()
        await finished.close()
        reader = await client.open_ledger(ledger.id, recover=False)
        waiting = asyncio.create_task(reader.wait_last_add_confirmed(5))
        await asyncio.sleep(0)
        await client.close()
        assert await added == 0
        assert ledger.closed
        assert reader.closed
        metadata = (await cluster.store.read_ledger(ledger.id)).value
        assert (metadata.state, metadata.last_entry_id) == (octavo.LedgerState.CLOSED, 0)
        # The ledger was closed before the reader was, or after: it ends either way.
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], octavo.OctavoError)
        with pytest.raises(octavo.ClientClosedError):
            await reader.read(0, 0)


async def test_closing_raises_the_failure_of_a_writer_once_everything_is_closed() -> None:
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri, **(QUICK | {"close_timeout_seconds": 0.8}))
        ledger = await client.create_ledger()
        for bookie in cluster.bookies:
            bookie.drop(Op.ADD)
        ledger.add_nowait(b"never acknowledged")
        with pytest.raises(octavo.QuorumLostError):
            await client.close()
        assert client.closed
        with pytest.raises(octavo.ClientClosedError):
            await client.bookies()


async def test_leaving_the_block_on_an_error_closes_and_never_masks_it() -> None:
    async with cluster_of() as cluster:
        clients: list[octavo.Client] = []

        async def fail_in_the_block() -> None:
            async with octavo.connect(cluster.uri, **(QUICK | {"close_timeout_seconds": 0.8})) as client:
                clients.append(client)
                ledger = await client.create_ledger()
                for bookie in cluster.bookies:
                    bookie.drop(Op.ADD)
                ledger.add_nowait(b"never acknowledged")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail_in_the_block()
        assert clients[0].closed


@pytest.mark.parametrize("steps", range(0, 24, 2))
async def test_create_that_is_cancelled_leaves_no_ledger_behind(steps: int) -> None:
    async with connected() as (cluster, client):
        creating = asyncio.ensure_future(_awaited(client.create_ledger()))
        for _ in range(steps):
            await asyncio.sleep(0)
        if creating.done():
            # Created before it could be cancelled: an ordinary ledger.
            assert await ids_of(client) == [creating.result().id]
            return
        creating.cancel()
        await asyncio.wait([creating])
        if creating.cancelled():
            assert [ledger_id async for ledger_id in cluster.store.list_ledgers()] == []


@pytest.mark.parametrize("also_cancelled", [False, True])
@pytest.mark.parametrize("steps", range(0, 24, 2))
async def test_create_during_which_the_client_is_closed_leaves_no_ledger_behind(
    steps: int, *, also_cancelled: bool
) -> None:
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri, **QUICK)
        left: list[int] = []

        async def create() -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                await client.create_ledger()
            finally:
                left.append(task.cancelling())

        creating = asyncio.ensure_future(create())
        for _ in range(steps):
            await asyncio.sleep(0)
        if creating.done():
            await client.close()
            return
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        if also_cancelled:
            creating.cancel()
        await asyncio.wait([creating, closing])
        if creating.cancelled():
            assert also_cancelled
        elif creating.exception() is None:
            return  # created before the client began to close: an ordinary ledger, closed by now
        else:
            assert isinstance(creating.exception(), octavo.ClientClosedError)
            assert left == [0], "the caller's task must not look cancelled to its own code"
        assert [ledger_id async for ledger_id in cluster.store.list_ledgers()] == []


@pytest.mark.parametrize("ids", ["sequential", "explicit"])
async def test_writer_is_told_at_once_that_its_own_client_deleted_the_ledger(ids: Any) -> None:
    async with connected() as (_, client):
        ledger = await client.create_ledger(ids=ids)
        await client.delete_ledger(ledger.id)
        with pytest.raises(octavo.NoSuchLedgerError) as raised:
            await (ledger.add(b"x") if isinstance(ledger, octavo.LedgerWriter) else ledger.add(b"x", entry_id=0))
        assert not raised.value.may_have_happened
        with pytest.raises(octavo.NoSuchLedgerError):
            await ledger.close()


async def test_writer_that_has_added_nothing_learns_from_its_first_adds_that_another_deleted_the_ledger() -> None:
    async with connected() as (cluster, client):
        ledger = await client.create_ledger()
        await cluster.store.delete_ledger(ledger.id)
        with pytest.raises(octavo.NoSuchLedgerError):
            await asyncio.wait_for(_add_without_end(ledger), WAIT_SECONDS)
        with pytest.raises(octavo.NoSuchLedgerError):
            await ledger.close()


async def _add_without_end(ledger: octavo.LedgerWriter) -> None:
    while True:
        await ledger.add(b"x")


async def test_writer_that_has_added_nothing_watches_nothing_and_closes_its_ledger() -> None:
    async with connected() as (cluster, client):
        some = [await client.create_ledger() for _ in range(20)]
        tasks = len(asyncio.all_tasks())  # the client's own, which its first ledger began
        more = [await client.create_ledger() for _ in range(20)]
        assert len(asyncio.all_tasks()) <= tasks, "no task for each"
        for ledger in (*some, *more):
            assert (ledger.last_add_confirmed, ledger.last_add_pushed, ledger.length) == (None, None, 0)
            await ledger.flush()
            await ledger.close()
            assert (await cluster.store.read_ledger(ledger.id)).value.is_closed


async def _awaited(opening: Awaitable[octavo.LedgerWriter]) -> octavo.LedgerWriter:
    return await opening


@pytest.mark.parametrize("steps", range(0, 12, 2))
async def test_client_closed_while_it_creates_leaves_no_open_ledger(steps: int) -> None:
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri, **QUICK)
        creating = asyncio.ensure_future(_awaited(client.create_ledger()))
        for _ in range(steps):
            await asyncio.sleep(0)
        await client.close()
        (outcome,) = await asyncio.gather(creating, return_exceptions=True)
        states = [
            (await cluster.store.read_ledger(ledger_id)).value.state async for ledger_id in cluster.store.list_ledgers()
        ]
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, octavo.ClientClosedError)
            assert states == []
        else:
            assert states == [octavo.LedgerState.CLOSED]


@pytest.mark.parametrize("how", ["cancelled", "client closed"])
async def test_create_whose_answer_is_lost_leaves_no_ledger_behind(how: str) -> None:
    async with cluster_of() as cluster:
        store = InterposedStore(await open_metadata_store(cluster.uri))
        client = Client(
            store.face, cluster_id=await store.cluster_id(), options=ClientOptions(**QUICK), rng=random.Random(1)
        )
        applied = asyncio.Event()

        async def create_and_lose_the_answer(metadata: octavo.LedgerMetadata) -> Version:
            await store.real.create_ledger(metadata)
            applied.set()
            await asyncio.Event().wait()
            raise AssertionError("nobody sets it")

        store.interpose("create_ledger", create_and_lose_the_answer)
        creating = asyncio.ensure_future(_awaited(client.create_ledger()))
        await applied.wait()
        assert len(await ids_of(client)) == 1
        if how == "cancelled":
            creating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await creating
        else:
            await client.close()
            with pytest.raises(octavo.ClientClosedError):
                await creating
        assert [ledger_id async for ledger_id in cluster.store.list_ledgers()] == []
        await client.close()


async def test_cancelling_a_close_leaves_the_closing_going_on() -> None:
    async with cluster_of() as cluster:
        client = await octavo.connect(cluster.uri, **QUICK)
        ledger = await client.create_ledger()
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await client.close()
        assert ledger.closed


async def test_entries_carry_the_time_of_sealing_which_never_falls() -> None:
    start = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    seconds = [0.0]
    async with (
        cluster_of() as cluster,
        octavo.connect(cluster.uri, wall_clock=lambda: start + timedelta(seconds=seconds[0])) as client,
        client.create_ledger() as ledger,
    ):
        for moment in (0.25, 7.5, 3.0, 8.0):  # the clock is set back once
            seconds[0] = moment
            await ledger.add(b"x")
        await ledger.close()
        async with client.open_ledger(ledger.id) as reader:
            times = [(entry.sealed_at - start).total_seconds() async for entry in reader]
    assert times == [0.25, 7.5, 7.5, 8.0]
