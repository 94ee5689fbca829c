"""Bookies that require authentication, over real sockets: who may do what, and what ends a connection (rule S1)."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from octavo.bookie.config import BookieConfig, load_config
from octavo.bookie.server.access import Access
from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.client.wire.security import WireSecurity, read_key
from octavo.metadata.cluster.principals import DOCUMENT, Principal, Principals, encode_principals
from octavo.protocol.errors import InvalidArgumentError, OctavoError, UnauthorizedError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import (
    CAPABILITY_AUTHENTICATE,
    EXTENSION_DENIED,
    REQUESTS,
    Add,
    AddFlag,
    Authenticate,
    AuthenticateAnswer,
    Force,
    Hello,
    Info,
    ListEntries,
    Missing,
    Op,
    Ping,
    Pong,
    Read,
    ReadFlag,
    ReadLac,
    Request,
    Subscribe,
    WriteLac,
)
from octavo.repair.base.ask_bookie import may_serve, serves
from octavo.security.login import WRONG_KEY
from octavo.security.roles import RIGHTS, Right, Role, right_needed, rights_of
from octavo.security.scram import MECHANISM, Key, verifier_of
from support.clusters.certificates import Certificates
from support.clusters.fake_bookie import FakeBookie
from support.clusters.principals import DOCUMENTS, GUARDED, KEYS, PRINCIPALS, raw, set_principals
from support.clusters.tls_bookies import Cluster, cluster_of, tls_settings
from support.raw_client import RawClient, add, key_of, read, seal, seal_lac
from support.waiting import WAIT_SECONDS, eventually

import octavo

pytestmark = pytest.mark.usefixtures("logged")

LEDGER = 7

OPERATIONS: dict[str, Request] = {
    "ping": Ping(),
    "info": Info(),
    "read": read(LEDGER, 0, 9),
    "read_lac": ReadLac(LEDGER, b"", ReadFlag.NONE, 0, None, 0, 0, 0),
    "list": ListEntries(LEDGER, 0, 9),
    "subscribe": Subscribe(1, LEDGER, b"", 0, 0, None),
    "add": add(LEDGER, seal(LEDGER, 1, [b"x"])),
    "recovery add": add(LEDGER, seal(LEDGER, 2, [b"x"]), recovery=True),
    "private add": Add(8, key_of(8), AddFlag.PRIVATE, 0, seal(8, 0, [b"x"])),
    "deferred add": Add(LEDGER, key_of(LEDGER), AddFlag.DEFERRED_SYNC, 0, seal(LEDGER, 3, [b"x"])),
    "write_lac": WriteLac(LEDGER, key_of(LEDGER), 0, seal_lac(LEDGER, 0)),
    "force": Force(LEDGER, key_of(LEDGER), 0, ()),
    "read for repair": Read(LEDGER, b"", ReadFlag.REPAIR, 0, 0, 9, 1, (0,), 10, 1 << 20),
    "missing": Missing(LEDGER, 0, 9, 1, (0,)),
    "fencing read_lac": ReadLac(LEDGER, key_of(LEDGER), ReadFlag.FENCE, 0, None, 0, 0, 0),
    "fencing read": read(LEDGER, 0, 9, fence=True),
    "fencing read for repair": Read(
        LEDGER, key_of(LEDGER), ReadFlag.FENCE | ReadFlag.REPAIR, 0, 0, 9, 1, (0,), 10, 1 << 20
    ),
}
"""Every operation, in an order in which a principal who may do all of them can."""

OBSERVE = {"ping", "info"}
READ = OBSERVE | {"read", "read_lac", "list", "subscribe"}
WRITE = {
    "add", "recovery add", "private add", "deferred add", "write_lac", "force",
    "fencing read_lac", "fencing read", "fencing read for repair",
}  # fmt: skip
REPAIR = {"read for repair", "missing"}
MAY: dict[Role | None, set[str]] = {
    None: {"ping"},
    Role.OBSERVE: OBSERVE,
    Role.READ: READ,
    Role.APPEND: READ | WRITE,
    Role.REPAIR: READ | REPAIR,
    Role.ADMIN: READ | WRITE | REPAIR,
}


@pytest.fixture
def key_files(tmp_path: Path) -> dict[Role, str]:
    paths = {}
    for role, key in KEYS.items():
        path = tmp_path / f"{role}.key"
        path.touch(0o600)
        path.write_text(f"{key.to_text()}\n")
        paths[role] = str(path)
    return paths


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with cluster_of(GUARDED, documents=DOCUMENTS) as cluster:
        yield cluster


def test_the_table_of_operations_has_every_request_with_every_flag() -> None:
    asked = {type(request) for request in OPERATIONS.values()}
    assert asked | {Authenticate} == set(octavo_requests())
    assert {request.flags for request in OPERATIONS.values() if isinstance(request, Add)} == {
        AddFlag.NONE,
        AddFlag.RECOVERY,
        AddFlag.PRIVATE,
        AddFlag.DEFERRED_SYNC,
    }
    flags = {request.flags for request in OPERATIONS.values() if isinstance(request, Read)}
    assert flags == {ReadFlag.NONE, ReadFlag.FENCE, ReadFlag.REPAIR, ReadFlag.FENCE | ReadFlag.REPAIR}


def octavo_requests() -> list[type[Request]]:
    return list(REQUESTS.values())


@pytest.mark.parametrize("role", [None, *Role])
async def test_each_role_may_do_what_the_table_says_and_nothing_else(cluster: Cluster, role: Role | None) -> None:
    (bookie,) = cluster.bookies
    async with raw(bookie, Role.ADMIN) as admin:
        assert not isinstance(await admin.ask(add(LEDGER, seal(LEDGER, 0, [b"entry"]))), OctavoError)
    async with raw(bookie, role) as client:
        served = set()
        for name, request in OPERATIONS.items():
            answer = await client.ask(request)
            if not isinstance(answer, UnauthorizedError):
                served.add(name)
        assert served == MAY[role]
        assert await client.ask(Ping()) == Pong(), "a refusal ends no connection"
    assert bookie.service.access is not None
    assert bookie.service.access.denied["role"] == len(OPERATIONS) - len(MAY[role])


def test_the_pure_tables_agree_with_the_one_above() -> None:
    for role, rights in RIGHTS.items():
        allowed = {
            name for name, request in OPERATIONS.items() if (need := right_needed(request)) is None or need in rights
        }
        assert allowed == MAY[role]
    assert rights_of([Role.REPAIR, Role.APPEND]) == frozenset(Right), "what a bookie may"
    assert rights_of([]) == frozenset()


# --- clients ----------------------------------------------------------------------------------------------------------


async def denied(cluster: Cluster, **options: object) -> OctavoError:
    """The error of a client that asks the bookie for something."""
    async with asyncio.timeout(WAIT_SECONDS), cluster.client(**options) as client:
        with pytest.raises(OctavoError) as caught:
            await client.read_replica("b1", 1, 0, 1)
        return caught.value


async def test_a_client_with_a_key_writes_and_reads_as_its_roles_allow(
    cluster: Cluster, key_files: dict[Role, str]
) -> None:
    async with cluster.client(key_file=key_files[Role.APPEND]) as client, client.create_ledger(1, 1, 1) as ledger:
        assert await ledger.add(b"entry") == 0
    async with cluster.client(key_file=key_files[Role.READ]) as client:
        async with client.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader] == [b"entry"]
        with pytest.raises(UnauthorizedError, match="may not ask bookie b1 for ADD"):
            async with client.create_ledger(1, 1, 1) as forbidden:
                await forbidden.add(b"entry")


async def test_a_client_without_a_key_or_with_a_wrong_one_is_denied_in_words(cluster: Cluster, tmp_path: Path) -> None:
    error = await denied(cluster)
    assert isinstance(error, UnauthorizedError)
    assert "b1 requires authentication: the client has given neither a certificate" in error.message
    for key in (Key("the-append", bytes(32)), Key("stranger", bytes(32))):
        path = tmp_path / key.name
        path.touch(0o600)
        path.write_text(key.to_text())
        error = await denied(cluster, key_file=str(path))
        assert isinstance(error, UnauthorizedError)
        assert WRONG_KEY in error.message


async def test_a_client_that_is_denied_learns_why_it_sees_no_details(cluster: Cluster) -> None:
    async with cluster.client() as client:
        (seen,) = await client.bookies(details=True)
    assert seen.facts is None
    assert isinstance(seen.error, UnauthorizedError)
    assert "b1 requires authentication" in seen.error.message


async def test_a_bookie_that_denies_its_clients_is_alive_until_it_is_stopped(cluster: Cluster) -> None:
    """It serves others on, so it must not be retired (rule O4); repair can copy nothing from it."""

    async def asked(question: Callable[[ConnectionPool, BookieId], Awaitable[bool]]) -> bool:
        cluster_id = await cluster.store.cluster_id()
        pool = ConnectionPool(cluster.store, cluster_id=cluster_id, options=ClientOptions(), rng=random.Random(1))
        try:
            return await question(pool, BookieId("b1"))
        finally:
            await pool.close()

    assert await asked(may_serve)
    assert not await asked(serves)
    await cluster.bookies[0].stop()
    assert not await asked(may_serve)


async def test_a_certificate_names_a_principal_and_every_bookie_is_one(certificates: Certificates) -> None:
    principals = Principals().with_principal(Principal(name="writer", roles=frozenset({Role.APPEND})))
    settings = {**tls_settings(certificates.server("b1")), "auth": "required"}
    async with cluster_of(settings, documents={DOCUMENT: encode_principals(principals)}) as cluster:
        for uri in ("octavo:writer", "octavo:bookie", "octavo:bookie/b9"):
            tls = certificates.client("any", uris=(uri,))
            async with cluster.client(tls=tls) as client, client.create_ledger(1, 1, 1) as ledger:
                assert await ledger.add(b"entry") == 0
                (bookie,) = cluster.bookies
                seen = {(connection.principal, connection.uses_tls) for connection in bookie.service.connections}
                assert (uri.removeprefix("octavo:"), True) in seen
        error = await denied(cluster, tls=certificates.client("stranger"))
        assert isinstance(error, UnauthorizedError)
        assert "octavo:stranger is no principal of this cluster" in error.message
        assert "requires authentication" in (await denied(cluster, tls=certificates.client())).message


async def test_a_principal_that_is_removed_mid_add_loses_its_connections_and_nothing_acknowledged(
    cluster: Cluster, key_files: dict[Role, str]
) -> None:
    async with cluster.client(key_file=key_files[Role.APPEND], add_quorum_timeout_seconds=3600) as client:
        ledger = await client.create_ledger(1, 1, 1)
        acknowledged = await ledger.add(b"before")
        await set_principals(cluster, PRINCIPALS.without("the-append"))
        refusal: OctavoError | None = None
        async with asyncio.timeout(WAIT_SECONDS):
            while refusal is None:
                try:
                    acknowledged = await ledger.add(b"under way")
                except OctavoError as error:
                    refusal = error
        assert isinstance(refusal, UnauthorizedError)
        assert WRONG_KEY in refusal.message
        with pytest.raises(UnauthorizedError):
            await ledger.close()
    async with cluster.client(key_file=key_files[Role.ADMIN]) as client, client.open_ledger(ledger.id) as reader:
        assert len([entry async for entry in reader]) > acknowledged


async def test_a_writer_that_is_denied_by_a_quorum_fails_at_once() -> None:
    open_to_all: dict[str, object] = {"repair": False}
    async with (
        cluster_of(GUARDED, GUARDED, open_to_all, documents=DOCUMENTS) as cluster,
        asyncio.timeout(WAIT_SECONDS),
        cluster.client(add_quorum_timeout_seconds=3600) as client,
    ):
        ledger = await client.create_ledger(3, 3, 2)
        with pytest.raises(UnauthorizedError, match="its bookies deny this client"):
            await ledger.add(b"entry")
        with pytest.raises(UnauthorizedError):
            await ledger.close()


async def test_a_writer_that_one_bookie_denies_goes_on_with_the_others() -> None:
    open_to_all: dict[str, object] = {"repair": False}
    async with (
        cluster_of(GUARDED, open_to_all, open_to_all, documents=DOCUMENTS) as cluster,
        asyncio.timeout(WAIT_SECONDS),
        cluster.client(add_quorum_timeout_seconds=3600) as client,
        client.create_ledger(3, 3, 2) as ledger,
    ):
        assert [await ledger.add(b"entry") for _ in range(10)] == list(range(10))


async def test_a_writer_whose_principal_gets_another_role_goes_on(cluster: Cluster, key_files: dict[Role, str]) -> None:
    (bookie,) = cluster.bookies
    changed = Principal(
        name="the-append",
        roles=frozenset({Role.APPEND, Role.REPAIR}),
        verifier=verifier_of(KEYS[Role.APPEND].secret),
    )
    async with (
        asyncio.timeout(WAIT_SECONDS),
        cluster.client(key_file=key_files[Role.APPEND], add_quorum_timeout_seconds=3600) as client,
        client.create_ledger(1, 1, 1) as ledger,
    ):
        await ledger.add(b"before")
        await set_principals(cluster, PRINCIPALS.with_principal(changed))
        assert bookie.service.access is not None
        access = bookie.service.access
        count = 1
        while "repair" not in access.principals.by_name["the-append"].role_names() or count < 50:
            assert await ledger.add(b"under way") == count
            count += 1
        assert await ledger.add(b"after") == count


@pytest.mark.parametrize(
    "changed",
    [
        Principal(name="the-read", roles=frozenset({Role.OBSERVE}), verifier=verifier_of(KEYS[Role.READ].secret)),
        Principal(name="the-read", roles=frozenset({Role.READ}), verifier=verifier_of(bytes(32))),
        Principal(
            name="the-read", roles=frozenset({Role.READ}), verifier=verifier_of(KEYS[Role.READ].secret), disabled=True
        ),
    ],
    ids=["roles", "key", "disabled"],
)
async def test_a_change_of_a_principal_ends_its_connections_and_no_others(cluster: Cluster, changed: Principal) -> None:
    (bookie,) = cluster.bookies
    async with raw(bookie, Role.READ) as reading, raw(bookie, Role.APPEND) as writing:
        await set_principals(cluster, PRINCIPALS.with_principal(changed))
        frame = await asyncio.wait_for(reading.receive(), WAIT_SECONDS)
        assert frame[0] == 0, "the connection itself"
        assert "the roles or the key of the-read have changed" in frame[3]
        assert await reading.reader.read() == b""
        assert await writing.ask(Ping()) == Pong()


async def test_a_damaged_document_changes_nothing(cluster: Cluster, logged: list[MutableMapping[str, object]]) -> None:
    (bookie,) = cluster.bookies
    stored = await cluster.store.read_document(DOCUMENT)
    assert stored is not None
    await cluster.store.compare_and_set_document(DOCUMENT, b"damaged", stored.version)
    await eventually(lambda: any("principals cannot be read" in str(entry["event"]) for entry in logged))
    async with raw(bookie, Role.READ) as client:
        assert await client.ask(Ping()) == Pong()


# --- attacks ----------------------------------------------------------------------------------------------------------


async def test_a_failed_authentication_ends_the_connection(cluster: Cluster) -> None:
    (bookie,) = cluster.bookies
    for steps in (
        [Authenticate("PLAIN", "the-admin", b"")],
        [Authenticate(MECHANISM, "the-admin", bytes(32)), Authenticate(MECHANISM, "the-admin", bytes(32))],
    ):
        async with raw(bookie) as client:
            *first, last = steps
            for step in first:
                assert isinstance(await client.ask(step), AuthenticateAnswer)
            client.send(last)
            frame = await client.receive()
            assert frame[0] == 0, "the connection itself"
            assert await client.reader.read() == b""
    assert bookie.service.access is not None
    assert bookie.service.access.denied["key"] == 2


async def test_a_name_of_kilobytes_is_refused_as_a_broken_message_and_one_of_megabytes_is_not_even_read(
    cluster: Cluster,
) -> None:
    (bookie,) = cluster.bookies
    async with raw(bookie) as client:
        client.send(Authenticate(MECHANISM, "x" * 50_000, bytes(32)))
        frame = await asyncio.wait_for(client.receive(), WAIT_SECONDS)
        assert "Authenticate.name" in frame[3]
        assert await client.reader.read() == b""
    async with raw(bookie) as client:
        client.send(Authenticate(MECHANISM, "x" * (7 << 20), bytes(32)))
        with contextlib.suppress(ConnectionError):  # it is closed with bytes that the bookie has not read
            await asyncio.wait_for(client.reader.read(), WAIT_SECONDS)
    assert bookie.service.frames.held == 0
    async with raw(bookie, Role.READ) as client:
        assert await client.ask(Ping()) == Pong()


async def test_random_bytes_instead_of_an_authentication_get_nothing_and_leave_nothing(cluster: Cluster) -> None:
    """Fuzzing over a socket: whatever is sent before or during an exchange, nothing but PING is served."""
    (bookie,) = cluster.bookies
    rng = random.Random(19)
    valid = [
        Authenticate(MECHANISM, "the-admin", bytes(32)).encode(1),
        read(LEDGER, 0, 9).encode(1),
        Info().encode(1),
        add(LEDGER, seal(LEDGER, 0, [b"x"])).encode(1),
    ]
    for _ in range(60):
        async with raw(bookie) as client:
            for _ in range(rng.randint(1, 4)):
                body = bytearray(rng.choice(valid))
                for _ in range(rng.randint(0, 6)):
                    body[rng.randrange(len(body))] = rng.randrange(256)
                client.send_body(bytes(body))
            client.writer.write_eof()
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    frame = await asyncio.wait_for(client.receive(), WAIT_SECONDS)
                    served = frame[2] == 0 and frame[1] not in {Op.PING, Op.AUTHENTICATE}
                    assert not served, f"{frame} was an answer to a client that is not known"
    assert bookie.service.storage.ledgers.known_ids() == []
    await eventually(lambda: not bookie.service.connections)
    assert bookie.service.frames.held == 0
    async with raw(bookie, Role.READ) as client:
        assert await client.ask(Ping()) == Pong()


async def test_a_bookie_without_authentication_does_not_know_the_operation() -> None:
    async with cluster_of({}) as cluster:
        host, _, port = cluster.bookies[0].address.rpartition(":")
        async with RawClient(host, int(port)) as client:
            hello = await client.greet()
            assert CAPABILITY_AUTHENTICATE not in hello.capabilities
            answer = await client.ask(Authenticate(MECHANISM, "x", bytes(32)))
            assert isinstance(answer, octavo.UnsupportedOperationError)


async def test_a_key_is_not_used_without_tls_beyond_this_host(key_files: dict[Role, str]) -> None:
    security = WireSecurity(ClientOptions(key_file=key_files[Role.READ]))
    theirs = Hello("octavo", 1, 1, "x", "c", "b1", "boot", (CAPABILITY_AUTHENTICATE,))
    for peer, allowed in ((("127.0.0.1", 1), True), (("::1", 1, 0, 0), True), (("10.0.0.1", 1), False), (None, False)):
        transport = _Transport(peer)
        if allowed:
            assert security.login(theirs, transport) is not None
        else:
            with pytest.raises(UnauthorizedError, match="used over TLS or within one host only"):
                security.login(theirs, transport)


class _Transport(asyncio.Transport):
    def __init__(self, peer: object) -> None:
        super().__init__({"peername": peer})


async def test_a_false_bookie_that_cannot_sign_is_not_believed(key_files: dict[Role, str]) -> None:
    async with cluster_of() as cluster, FakeBookie("b1", cluster_id=await cluster.store.cluster_id()) as false:
        false.capabilities = (CAPABILITY_AUTHENTICATE,)
        nonce_then_lie = cycle(
            [AuthenticateAnswer(False, (), bytes(32)), AuthenticateAnswer(True, ("admin",), bytes(32))]
        )
        false.answer(Authenticate, lambda _request: next(nonce_then_lie))
        await cluster.store.register_bookie(false.registration())
        error = await denied(cluster, key_file=key_files[Role.READ])
        assert isinstance(error, UnauthorizedError)
        assert "does not know the key of the-read" in error.message


# --- settings ---------------------------------------------------------------------------------------------------------


def config(**settings: object) -> BookieConfig:
    return load_config(None, {}, {"data_dir": "/b", "advertise": "h:1", **settings})


def test_a_bookie_beyond_this_host_requires_tls_and_authentication_unless_told_otherwise() -> None:
    files = {"tls_certificate": "/c", "tls_key": "/k", "tls_ca": "/ca"}
    assert not config().authentication_required
    assert not config(host="localhost").authentication_required
    assert not config(host="::1").authentication_required
    assert config(host="0.0.0.0", tls="required", **files).authentication_required
    assert not config(host="0.0.0.0", auth="none").authentication_required
    with pytest.raises(InvalidArgumentError, match=r'set tls .* or auth = "none"'):
        config(host="10.0.0.1")
    with pytest.raises(InvalidArgumentError, match="set tls_ca"):
        config(auth="required")
    assert config(auth="required", key_file="/k").authentication_required


async def test_a_bookie_that_is_open_to_all_says_so_at_each_start(
    logged: list[MutableMapping[str, object]],
) -> None:
    settings: dict[str, object] = {"host": "0.0.0.0", "advertise": "127.0.0.1:3181", "auth": "none"}
    async with cluster_of(settings):
        assert any("open to all" in str(entry["event"]) for entry in logged)
    logged.clear()
    async with cluster_of({}):
        assert not any("open to all" in str(entry["event"]) for entry in logged)


def test_a_key_file_that_cannot_be_used_is_named_without_its_content(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(InvalidArgumentError, match="No such file"):
        read_key(str(path))
    text = KEYS[Role.READ].to_text()
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(InvalidArgumentError, match="every user of this host can read it"):
        read_key(str(path))
    path.chmod(0o600)
    assert read_key(str(path)) == KEYS[Role.READ]
    path.write_text(text[:-9])
    with pytest.raises(InvalidArgumentError) as caught:
        read_key(str(path))
    assert text[10:20] not in caught.value.message


async def test_secrets_appear_in_no_log_and_no_facts(
    cluster: Cluster, key_files: dict[Role, str], logged: list[MutableMapping[str, object]]
) -> None:
    async with cluster.client(key_file=key_files[Role.APPEND]) as client, client.create_ledger(1, 1, 1) as ledger:
        await ledger.add(b"entry")
        said = f"{logged} {await client.bookies(details=True)} {cluster.bookies[0].subject.settings}"
    async with raw(cluster.bookies[0]) as stranger:
        said += str(await stranger.ask(Authenticate(MECHANISM, "the-read", bytes(32))))
    secret = KEYS[Role.APPEND]
    assert "b1" in said
    for form in (secret.to_text().partition(":")[2], secret.secret.hex(), str(secret.secret)[2:-1]):
        assert form not in said


def test_a_disabled_principal_has_no_roles_by_its_certificate_either() -> None:
    access = Access(cluster_id="cluster", bookie_id="b1")
    principal = Principal(name="orders", roles=frozenset({Role.APPEND}))
    access.update(Principals().with_principal(principal))
    assert access.roles_of("orders") == {Role.APPEND}
    assert EXTENSION_DENIED not in access.gate(lambda _error: None).greeted(("orders",))
    access.update(Principals().with_principal(replace(principal, disabled=True)))
    assert access.roles_of("orders") == frozenset()
    assert EXTENSION_DENIED in access.gate(lambda _error: None).greeted(("orders",))


def test_a_connection_whose_principal_has_changed_may_ask_nothing_more() -> None:
    """Also what arrived before the connection is closed."""
    access = Access(cluster_id="cluster", bookie_id="b1")
    principal = Principal(name="orders", roles=frozenset({Role.APPEND}))
    access.update(Principals().with_principal(principal))
    ended: list[OctavoError] = []
    gate = access.gate(ended.append)
    gate.greeted(("orders",))
    request = add(1, seal(1, 0, [b"x"]))
    gate.check(request)
    access.update(Principals())
    assert len(ended) == 1
    with pytest.raises(UnauthorizedError):
        gate.check(request)
