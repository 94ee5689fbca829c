"""What becomes of a handle when its session expires, its server hangs or goes, or its credentials are wrong."""

import asyncio
import io
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from octavo.bookie.logs import configure_logging
from octavo.metadata import BookieState, Fragment, MetadataStore
from octavo.metadata.zookeeper.cluster import connect_records, destroy_zookeeper_store, open_zookeeper_store
from octavo.metadata.zookeeper.layout import encode_layout
from octavo.metadata.zookeeper.messages import NO_AUTH, OK, children, delete, get, set_value
from octavo.protocol.errors import (
    InvalidArgumentError,
    LeaseLostError,
    MetadataError,
    MetadataUnavailableError,
    UnauthorizedError,
)
from octavo.protocol.ids import BookieId, EntryId
from support.clusters.secrets import write_secret
from support.metadata.ledger_metadata import bookie_ids, open_ledger
from support.metadata.metadata_clusters import cookie, new_ledger, registration, soon, until
from support.metadata.zookeeper import QUICK, Opener, expire_session, records_of, shared_server
from support.metadata.zookeeper_proxy import CHILDREN, EXISTS, GET, MULTI, SYNC, ZooKeeperProxy
from support.waiting import eventually, loop_turns
from zookeeper_server import ServerGroup, Settings

# --- logging -------------------------------------------------------------------------------------------------------


async def test_log_that_cannot_be_written_ends_no_session(
    open_store: Opener, uri: str, proxy: ZooKeeperProxy, other: MetadataStore
) -> None:
    closed = io.StringIO()
    closed.close()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(closed), cache_logger_on_first_use=False)
    try:
        store = await soon(open_store(f"zk://127.0.0.1:{proxy.port}/{uri.rpartition('/')[2]}"))
        lease = await store.register_bookie(registration("b1"))
        for _ in range(3):
            proxy.cut()
            assert list(await soon(store.list_bookies())) == ["b1"]
        await expire_session(records_of(store))
        await soon(lease.wait_lost())
        assert await soon(store.try_lock("leader", "mine")) is not None
    finally:
        structlog.reset_defaults()


# --- expiry --------------------------------------------------------------------------------------------------------


async def test_expired_session_loses_its_leases_and_nothing_else(store: MetadataStore, other: MetadataStore) -> None:
    bookie = await store.register_bookie(registration("b1"))
    lock = await store.lock("leader", "mine")
    ledger_id, version = await new_ledger(store)
    async with store.watch_ledger(ledger_id) as watch:
        await soon(anext(watch))
        await expire_session(records_of(store))
        await soon(bookie.wait_lost())
        await soon(lock.wait_lost())
        assert await other.read_lock("leader") is None
        with pytest.raises(LeaseLostError):
            await bookie.update(registration("b1", state=BookieState.READ_ONLY))
        again = await soon(store.register_bookie(registration("b1")))
        assert again.fencing_number > bookie.fencing_number
        assert list(await other.list_bookies()) == ["b1"]
        assert await soon(store.try_lock("leader", "mine")) is not None
        changed = open_ledger(ledger_id, writer_token="other")
        version = await other.compare_and_set_ledger(changed, version)
        assert await until(watch, lambda found: found is not None and found.version == version) == (changed, version)


async def test_holders_are_told_of_an_expired_session_long_before_the_next_renewal_is_due(
    uri: str, open_store: Opener
) -> None:
    store = await open_store(uri, lease_seconds=90.0)
    lease = await store.register_bookie(registration("b1"))
    await expire_session(records_of(store))
    async with asyncio.timeout(29):  # a renewal is due after thirty seconds
        await lease.wait_lost()


async def test_session_that_was_out_of_reach_for_too_long_has_expired(
    open_store: Opener, uri: str, proxy: ZooKeeperProxy, other: MetadataStore
) -> None:
    root = uri.rpartition("/")[2]
    store = await open_store(f"zk://127.0.0.1:{proxy.port}/{root}", lease_seconds=0.6)
    lease = await store.register_bookie(registration("b1"))
    async with other.watch_bookies() as watch:
        await until(watch, lambda bookies: "b1" in bookies)
        proxy.stall()
        await until(watch, lambda bookies: "b1" not in bookies)  # the servers have ended it
        await soon(lease.wait_lost())  # the owner knows, although no server could tell it
        proxy.resume()
        await soon(store.register_bookie(registration("b1", boot="boot-2")))
        await until(watch, lambda bookies: "b1" in bookies and bookies[BookieId("b1")].boot_id == "boot-2")


async def test_break_shorter_than_the_session_loses_nothing(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    lease = await store.register_bookie(registration("b1"))
    session = records_of(store).session.session_id
    for _ in range(3):
        proxy.cut()
        await soon(store.renew_leases())
        assert list(await store.list_bookies()) == ["b1"]
    assert not lease.lost
    assert records_of(store).session.session_id == session


# --- servers that go -------------------------------------------------------------------------------------------------


async def test_operations_wait_for_servers_that_come_back(store: MetadataStore, proxy: ZooKeeperProxy) -> None:
    ledger_id, version = await new_ledger(store)
    proxy.away()
    changing = asyncio.ensure_future(store.compare_and_set_ledger(open_ledger(ledger_id, writer_token="late"), version))
    reading = asyncio.ensure_future(store.read_document("logs/a"))
    await loop_turns()
    assert not changing.done()
    assert not reading.done()
    proxy.back()
    assert await soon(changing) == version + 1
    assert await soon(reading) is None


async def test_operations_give_up_at_their_deadline_and_say_why(
    open_store: Opener, uri: str, proxy: ZooKeeperProxy, other: MetadataStore
) -> None:
    root = uri.rpartition("/")[2]
    store = await open_store(f"zk://127.0.0.1:{proxy.port}/{root}", operation_seconds=0.3)
    ledger_id, version = await new_ledger(store)
    proxy.away()
    with pytest.raises(MetadataUnavailableError):
        await store.read_ledger(ledger_id)  # the break has been noticed after this
    with pytest.raises(
        MetadataUnavailableError, match=f"ledger {ledger_id}: no answer from ZooKeeper within 0.3 s"
    ) as e:
        await store.compare_and_set_ledger(open_ledger(ledger_id), version)
    assert not e.value.may_have_happened  # it was never sent
    assert f"127.0.0.1:{proxy.port}" in e.value.message
    proxy.back()
    await soon(store_answers(store))
    proxy.stall()
    with pytest.raises(MetadataUnavailableError) as e:
        await store.compare_and_set_ledger(open_ledger(ledger_id), version)
    assert e.value.may_have_happened


async def store_answers(store: MetadataStore) -> None:
    while True:
        try:
            await store.list_bookies()
        except MetadataUnavailableError:
            continue
        return


async def test_server_that_hangs_is_left_for_another(
    open_store: Opener, uri: str, stack: AsyncExitStack, other: MetadataStore
) -> None:
    port = shared_server().servers[0].client_port
    one, two = [await stack.enter_async_context(ZooKeeperProxy(port)) for _ in range(2)]
    root = uri.rpartition("/")[2]
    # The client waits two thirds of it for the server that hangs. The machine may stand still for the last third.
    store = await open_store(f"zk://127.0.0.1:{one.port},127.0.0.1:{two.port}/{root}", lease_seconds=15.0)
    lease = await store.register_bookie(registration("b1"))
    used = one if one.requests else two
    used.stall()
    assert list(await soon(store.list_bookies())) == ["b1"]
    assert not lease.lost
    assert (two if used is one else one).requests


async def test_server_restarted_keeps_what_was_stored_and_the_session(tmp_path: Path, open_store: Opener) -> None:
    with ServerGroup(tmp_path / "zookeeper", settings=QUICK, outlives=False) as group:
        store = await open_store(f"{group.uri}/octavo", lease_seconds=20.0)
        lease = await store.register_bookie(registration("b1"))
        ledger_id, version = await new_ledger(store)
        async with store.watch_ledger(ledger_id) as watch:
            await soon(anext(watch))
            group.kill_server(1)
            changing = asyncio.ensure_future(store.compare_and_set_ledger(open_ledger(ledger_id), version))
            group.start_server(1)
            assert await soon(changing) == version + 1
            await until(watch, lambda found: found is not None and found.version == version + 1)
        await soon(store.renew_leases())
        assert not lease.lost
        assert list(await store.list_bookies()) == ["b1"]


async def test_closing_does_not_wait_for_servers_that_are_gone(store: MetadataStore, proxy: ZooKeeperProxy) -> None:
    lease = await store.register_bookie(registration("b1"))
    proxy.stall()
    begun = asyncio.get_running_loop().time()
    await soon(store.close())
    assert asyncio.get_running_loop().time() - begun < 10
    assert lease.lost


async def test_every_read_is_synced(store: MetadataStore, proxy: ZooKeeperProxy) -> None:
    ledger_id, _ = await new_ledger(store)
    await store.create_document("a", b"")
    await store.register_bookie(registration("b1"))
    del proxy.requests[:]
    await store.read_ledger(ledger_id)
    await store.read_document("a")
    await store.list_bookies()
    assert [found async for found in store.list_ledgers()] == [ledger_id]
    reads = {GET, EXISTS, CHILDREN}
    assert proxy.requests.count(GET) >= 3
    for before, kind in zip([None, *proxy.requests], proxy.requests, strict=False):
        assert kind not in reads or before in {SYNC, GET}


# --- the right cluster -----------------------------------------------------------------------------------------------


async def test_cluster_that_is_not_there_is_made_only_when_asked(uri: str) -> None:
    with pytest.raises(MetadataUnavailableError, match=r"there is no cluster at zk://.*octavo cluster init"):
        await soon(open_zookeeper_store(uri))


@pytest.mark.parametrize("lost", ["request", "answer"])
async def test_cluster_is_made_once_also_when_the_answer_is_lost(
    uri: str, proxy: ZooKeeperProxy, open_store: Opener, lost: str
) -> None:
    proxy.lose_request, proxy.lose_answer = (MULTI, None) if lost == "request" else (None, MULTI)
    store = await soon(open_store(f"zk://127.0.0.1:{proxy.port}/{uri.rpartition('/')[2]}"))
    assert proxy.lost.is_set()
    assert await (await open_store(uri)).cluster_id() == await store.cluster_id()


async def test_destroying_that_was_interrupted_is_seen_and_finished(uri: str, open_store: Opener) -> None:
    store = await open_store(uri)
    await new_ledger(store)
    await store.close()

    def interrupt(_deleted: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await destroy_zookeeper_store(uri, on_deleted=interrupt)
    with pytest.raises(MetadataError, match="being destroyed; run `octavo cluster destroy` to its end"):
        await open_store(uri)
    await destroy_zookeeper_store(uri, on_deleted=lambda _deleted: None)
    with pytest.raises(MetadataUnavailableError, match="there is no cluster"):
        await open_zookeeper_store(uri)


@pytest.mark.parametrize("kind", [SYNC, GET])
async def test_connection_that_breaks_while_the_cluster_is_checked_is_replaced(
    store: MetadataStore, proxy: ZooKeeperProxy, kind: int
) -> None:
    """The first thing that a new connection carries is the check; the event loop goes on when that is lost."""
    await new_ledger(store)
    proxy.lose_request = kind
    proxy.cut()
    await soon(proxy.lost.wait())
    await soon(new_ledger(store))


async def test_handle_notices_that_its_cluster_has_been_replaced(
    store: MetadataStore, other: MetadataStore, proxy: ZooKeeperProxy
) -> None:
    """An empty list from another cluster would be believed, and everything be garbage (rule B5)."""
    records = records_of(other)
    await new_ledger(store)
    proxy.away()
    layout = await records.nodes.read(records.paths.layout)
    assert layout is not None
    await records.session.call(set_value(records.paths.layout, encode_layout("f" * 32), -1))
    proxy.back()
    with pytest.raises(MetadataError, match="another cluster, ffff"):
        [ledger_id async for ledger_id in store.list_ledgers()]
    await records.session.call(set_value(records.paths.layout, layout.value, -1))

    async def finds_the_cluster_again() -> bool:
        try:
            return len([ledger_id async for ledger_id in store.list_ledgers()]) == 1
        except MetadataError:
            return False

    await eventually(finds_the_cluster_again)


async def test_missing_folder_is_an_error_not_an_empty_list(store: MetadataStore) -> None:
    records = records_of(store)
    await records.session.call(delete(f"{records.paths.root}/ledgers", -1))
    with pytest.raises(MetadataError, match="/ledgers is missing"):
        [ledger_id async for ledger_id in store.list_ledgers()]
    with pytest.raises(MetadataError, match="/ledgers is missing"):
        await new_ledger(store)


# --- sizes -----------------------------------------------------------------------------------------------------------


async def test_ledger_too_large_for_a_node_is_refused_by_name(store: MetadataStore) -> None:
    ledger_id, version = await new_ledger(store)
    ensembles = [bookie_ids(*(f"bookie-{number}-{'x' * 100}" for number in range(i, i + 3))) for i in range(2)]
    fragments = tuple(Fragment(EntryId(entry), ensembles[entry % 2], entry) for entry in range(2600))
    grown = replace(open_ledger(ledger_id), fragments=fragments)
    with pytest.raises(InvalidArgumentError, match=f"ledger {ledger_id}: .* exceed the 1000000"):
        await store.compare_and_set_ledger(grown, version)
    assert (await store.read_ledger(ledger_id)).version == version


async def test_server_that_takes_less_than_others_is_suspected(tmp_path: Path, open_store: Opener) -> None:
    settings = Settings(tick_milliseconds=200, sync=False, request_bytes_max=100_000)
    with ServerGroup(tmp_path / "zookeeper", settings=settings, outlives=False) as group:
        store = await open_store(f"{group.uri}/octavo")
        with pytest.raises(MetadataUnavailableError, match=r"document a: .*200\d{3} bytes; does .*jute.maxbuffer") as e:
            await soon(store.create_document("a", bytes(200_000)))
        assert not e.value.may_have_happened
        await soon(store.create_document("a", bytes(20_000)))


# --- credentials -----------------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logging("debug", "json", stream=stream)
    yield stream
    structlog.reset_defaults()


@pytest.fixture
def auth_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Credentials in a file; the environment holds the same."""
    monkeypatch.setenv("OCTAVO_ZOOKEEPER_AUTH", "digest:octavo:seCret")
    path = tmp_path / "auth"
    write_secret(path, b"digest:octavo:seCret\n")
    return path


async def test_credentials_are_shown_at_every_connection_and_never_logged(
    uri: str, proxy: ZooKeeperProxy, open_store: Opener, auth_file: Path, log: io.StringIO
) -> None:
    through_proxy = f"zk://127.0.0.1:{proxy.port}/{uri.rpartition('/')[2]}"
    store = await open_store(through_proxy)
    ledger_id, _ = await new_ledger(store)
    await store.create_document("a", b"")
    await store.register_bookie(registration("b1"))
    proxy.cut()
    assert (await soon(store.read_ledger(ledger_id))).value == open_ledger(ledger_id)
    await expire_session(records_of(store))
    assert (await soon(store.read_ledger(ledger_id))).value == open_ledger(ledger_id)
    proxy.away()
    with pytest.raises(MetadataUnavailableError) as unavailable:
        await open_store(through_proxy, operation_seconds=0.1)

    by_file = await open_store(f"{uri}?auth_file={auth_file}")
    assert (await by_file.read_ledger(ledger_id)).value == open_ledger(ledger_id)
    assert "connected to ZooKeeper" in log.getvalue()
    for told in (log.getvalue(), str(unavailable.value), repr(store), store.uri):
        assert "seCret" not in told


async def test_without_the_credentials_nothing_is_given_away(
    uri: str, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_ZOOKEEPER_AUTH", "digest:octavo:secret")
    await open_store(uri)
    for wrong in ("", "digest:octavo:guess", "digest:other:secret"):
        monkeypatch.setenv("OCTAVO_ZOOKEEPER_AUTH", wrong)
        with pytest.raises(UnauthorizedError, match=r"denies access to .*OCTAVO_ZOOKEEPER_AUTH"):
            await soon(open_store(uri))


async def test_every_node_is_for_clients_that_show_the_credentials(
    uri: str, open_store: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_ZOOKEEPER_AUTH", "digest:octavo:secret")
    store = await open_store(uri)
    gone, _ = await new_ledger(store)
    await store.delete_ledger(gone)
    (answer,) = await records_of(store).nodes.ask(
        delete(f"{records_of(store).paths.root}/ledgers/0000/000/000/000/000", -1)
    )
    assert answer.code == OK
    await new_ledger(await open_store(uri))  # makes but one folder, right before the ledger
    await store.create_document("a/b", b"")
    await store.create_cookie(cookie("b1"))
    await store.register_bookie(registration("b1"))
    assert await store.try_lock("lock", holder="b1") is not None
    monkeypatch.setenv("OCTAVO_ZOOKEEPER_AUTH", "")
    stranger = connect_records(uri, lease_seconds=2.0, operation_seconds=15.0, rng=random.Random(7))
    seen: list[str] = []

    async def walk(path: str) -> None:
        for name in await records_of(store).nodes.children(path) or []:
            await walk(f"{path}/{name}")
        (read, listed) = await stranger.nodes.ask(get(path), children(path))
        assert (path, read.code, listed.code) == (path, NO_AUTH, NO_AUTH)
        seen.append(path.removeprefix(stranger.paths.root))

    try:
        await walk(stranger.paths.root)
    finally:
        await stranger.close()
    for kind in ("/ledgers/0000/000/000/000/000/", "/documents/a%2Fb/guard-", "/cookies/b1/", "/bookies/", "/locks/"):
        assert [path for path in seen if path.startswith(kind)], kind


async def test_credentials_that_make_no_sense_are_refused_and_not_repeated(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OCTAVO_ZOOKEEPER_AUTH", "seCret")
    with pytest.raises(InvalidArgumentError, match="OCTAVO_ZOOKEEPER_AUTH") as refused:
        await open_zookeeper_store(uri)
    assert "seCret" not in str(refused.value)
    with pytest.raises(InvalidArgumentError, match=f"{tmp_path}/nowhere: No such file"):
        await open_zookeeper_store(f"{uri}?auth_file={tmp_path}/nowhere")
