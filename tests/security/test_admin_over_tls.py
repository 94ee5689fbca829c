"""The administration interface beyond loopback: TLS, principals, and their roles."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
from octavo.bookie.admin.administered import Subject
from octavo.bookie.admin.authorization import visitor_of
from octavo.bookie.admin.http_messages import HttpError, HttpRequest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.cluster.principals import DOCUMENT, Principal, encode_principals
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import EntryId
from octavo.security.audit import Audit, AuditFile
from octavo.security.contexts import client_context
from octavo.security.roles import Role
from octavo.security.scram import Key
from support.admin import Answer, Secure, ask, attended_bookie, connect
from support.clusters.certificates import STRANGER, Certificates
from support.clusters.principals import KEYS, PRINCIPALS
from support.clusters.tls_bookies import tls_settings
from support.metadata.ledger_metadata import open_ledger
from support.metadata.memory_stores import memory_uri
from support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

OBSERVED = ("/metrics", "/healthz", "/readyz", "/api/v1/bookie", "/api/v1/connections", "/api/v1/jobs")
GUARDED: tuple[tuple[str, str, object], ...] = (
    ("GET", "/api/v1/stacks", None),
    ("POST", "/api/v1/bookie/checkpoint", {}),
)


@dataclass(frozen=True)
class Running:
    """One bookie for all tests; those that change its principals change them back."""

    bookie: Bookie
    store: MetadataStore
    audit: Path
    port: int
    certificates: Certificates

    def address(self, tls: object = None) -> Secure:
        return Secure(self.port, client_context(tls or self.certificates.client()))  # type: ignore[arg-type]

    async def ask(self, target: str, *, role: Role | None = None, token: str | None = None, **what: object) -> Answer:
        """As the principal with this role, by its key."""
        token = KEYS[role].to_text() if role is not None else token
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return await ask(self.address(), what.get("method", "GET"), target, what.get("value"), headers=headers)  # type: ignore[arg-type]

    async def set_principals(self, principals: object) -> None:
        stored = await self.store.read_document(DOCUMENT)
        assert stored is not None
        await self.store.compare_and_set_document(DOCUMENT, encode_principals(principals), stored.version)  # type: ignore[arg-type]
        access = self.bookie.service.access
        assert access is not None
        await eventually(lambda: access.principals == principals)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(module_folder: Path) -> AsyncIterator[Running]:
    certificates = Certificates(module_folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    audit = Audit(AuditFile(module_folder / "audit.jsonl"))
    audit.start()
    async with await open_metadata_store(memory_uri("admin-tls"), create=True) as store:
        extra = Principal(name="operator", roles=frozenset({Role.ADMIN}))
        await store.create_document(DOCUMENT, encode_principals(PRINCIPALS.with_principal(extra)))
        # Only the resolver knows that this is the loopback interface.
        settings = {**tls_settings(certificates.server()), "auth": "required", "admin_listen": f"127.1:{port}"}
        async with attended_bookie(module_folder / "b", store, audit=audit, **settings) as (bookie, _):
            yield Running(bookie, store, module_folder / "audit.jsonl", port, certificates)
    await audit.stop()


@pytest.mark.parametrize("role", list(Role))
async def test_every_role_observes_and_only_the_role_admin_administers(running: Running, role: Role) -> None:
    for target in OBSERVED:
        assert (await running.ask(target, role=role)).status == 200, target
    for method, target, value in GUARDED:
        answer = await running.ask(target, role=role, method=method, value=value)
        if role is Role.ADMIN:
            assert answer.status in {200, 202}, answer
        else:
            assert answer.status == 403
            assert "needs the role admin" in answer.json["message"]


@pytest.mark.parametrize("role", list(Role))
async def test_a_principal_that_may_only_observe_does_not_see_which_entries_there_are(
    running: Running, role: Role
) -> None:
    """Rule S6."""
    made = []
    for private in (False, True):
        ledger_id = await running.store.allocate_ledger_id()
        await running.store.create_ledger(replace(open_ledger(ledger_id), private=private).closed(EntryId(4), 50))
        made.append(ledger_id)
    listed = (await running.ask("/api/v1/ledgers", role=role)).json
    shown = [(await running.ask(f"/api/v1/ledgers/{one}", role=role)).json for one in made]
    sees = role is not Role.OBSERVE
    for one in [*(item for item in listed["items"] if item["ledger_id"] in made), *shown]:
        assert (one["entries"], one["length"], one["withheld"]) == ((5, 50, False) if sees else (None, None, True))
        assert one["state"] == "closed"
    assert [one["custom_metadata"] for one in shown] == [{"app": "orders"} if sees else None] * 2
    for ledger_id in made:
        await running.store.delete_ledger(ledger_id)


async def test_a_certificate_names_the_principal_and_that_of_a_bookie_does_not_administer(running: Running) -> None:
    operator = running.address(running.certificates.client("operator"))
    assert (await ask(operator, "GET", "/api/v1/stacks")).status == 200
    bookie = running.address(running.certificates.client("some-bookie", uris=("octavo:bookie/b2",)))
    assert (await ask(bookie, "GET", "/metrics")).status == 200
    assert (await ask(bookie, "GET", "/api/v1/stacks")).status == 403
    refused = await ask(running.address(running.certificates.client("unknown")), "GET", "/healthz")
    assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert "octavo:unknown is no principal" in refused.json["message"]


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer",
        "Bearer x",
        f"Bearer {KEYS[Role.ADMIN].to_text()[:-2]}",
        f"Bearer {Key('the-admin', KEYS[Role.READ].secret).to_text()}",
        f"Bearer {Key('unknown', KEYS[Role.READ].secret).to_text()}",
        f"Basic {KEYS[Role.ADMIN].to_text()}",
        f"Bearer {KEYS[Role.ADMIN].to_text()}, Bearer {KEYS[Role.ADMIN].to_text()}",
    ],
)
async def test_what_is_no_key_of_a_principal_gets_nothing(running: Running, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for target in ("/healthz", "/metrics", "/no-such-path", "/api/v1/stacks"):
        answer = await ask(running.address(), "GET", target, headers=headers)
        assert (answer.status, answer.json["error"]) == (401, "Unauthorized")
        assert KEYS[Role.ADMIN].to_text()[-20:] not in str(answer)


async def test_a_removed_principal_is_refused_at_its_next_request(running: Running) -> None:
    head = f"GET /metrics HTTP/1.1\r\nHost: b\r\nAuthorization: Bearer {KEYS[Role.READ].to_text()}\r\n\r\n".encode()
    before = running.bookie.service.access
    assert before is not None
    principals = before.principals
    reader, writer = await connect(running.address())
    try:
        writer.write(head)
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        await running.set_principals(principals.without("the-read"))
        writer.write(head)
        async with asyncio.timeout(WAIT_SECONDS):
            await reader.readuntil(b"HTTP/1.1 401")
    finally:
        writer.close()
        await running.set_principals(principals)


async def test_strangers_get_no_connection_and_clients_without_tls_are_told(running: Running) -> None:
    stranger = running.address(running.certificates.client("stranger", authority=STRANGER))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await ask(stranger, "GET", "/healthz")
    answer = await ask(("127.0.0.1", running.port), "GET", "/healthz")
    assert (answer.status, answer.json["error"]) == (400, "TlsRequired")
    assert "https://" in answer.json["message"]


async def test_oversized_requests_are_answered_over_tls_and_silent_sockets_delay_no_request(running: Running) -> None:
    silent = [await asyncio.open_connection("127.0.0.1", running.port) for _ in range(20)]
    try:
        for _, writer in silent:
            writer.write(b"\x16")
        large = await ask(running.address(), "GET", "/metrics", headers={"X-Large": "x" * (1 << 20)})
        assert large.status == 431
        token = KEYS[Role.ADMIN].to_text()
        headers = {"Authorization": f"Bearer {token}"}
        body = await ask(running.address(), "POST", "/api/v1/bookie/scrub", {"x": "y" * (1 << 20)}, headers=headers)
        assert body.status == 413
    finally:
        for _, writer in silent:
            writer.close()


async def test_the_audit_log_names_who_administered_and_who_was_refused(running: Running) -> None:
    assert (await running.ask("/api/v1/bookie/checkpoint", role=Role.ADMIN, method="POST", value={})).status == 202
    await running.ask("/api/v1/bookie/checkpoint", role=Role.APPEND, method="POST", value={})
    wrong = Key("the-admin", bytes(32)).to_text()
    await running.ask("/healthz", token=wrong)

    def seen() -> set[tuple[object, ...]]:
        lines = [json.loads(line) for line in running.audit.read_text().splitlines()]
        return {
            (line["event"], line.get("principal") or line.get("name"), line["outcome"], "peer" in line)
            for line in lines
        }

    wanted = {
        ("admin", "the-admin", "ok", True),
        ("admin", "the-append", "refused", True),
        ("authenticate", "the-admin", "refused", True),
    }
    await eventually(lambda: wanted <= seen())
    for key in (*(key.to_text() for key in KEYS.values()), wrong):
        assert key.partition(":")[2] not in running.audit.read_text()


async def test_a_new_certificate_serves_new_connections(
    running: Running, logged: list[MutableMapping[str, object]]
) -> None:
    async def serial() -> object:
        _, writer = await connect(running.address())
        try:
            return writer.get_extra_info("peercert")["serialNumber"]
        finally:
            writer.close()

    before = await serial()
    running.certificates.server()  # over the same files
    running.bookie.reload_files()
    assert await serial() != before
    assert (await running.ask("/metrics", role=Role.OBSERVE)).status == 200
    assert "Bearer" not in str(logged)


async def test_a_bookie_that_starts_knows_no_principals_and_says_so() -> None:
    request = HttpRequest(method="GET", target="/healthz", headers={}, trusted=False, names=("bookie",))
    with pytest.raises(HttpError) as refused:
        visitor_of(request, Subject(settings={}))
    assert (refused.value.status, refused.value.retryable) == (503, True)
    secret = HttpRequest(method="GET", target="/", headers={"authorization": "Bearer x:y"}, trusted=False)
    assert "Bearer" not in repr(secret)


@pytest.mark.parametrize(
    ("settings", "accepted"),
    [
        ({"tls": "required", "auth": "required"}, True),
        ({"tls": "optional", "auth": "required"}, True),
        ({"tls": "required", "auth": "none"}, False),
        ({"tls": "off", "auth": "required", "repair": False}, False),
        ({"tls": "required"}, False),
        ({"tls": "required", "host": "192.0.2.1"}, True),
    ],
)
async def test_beyond_loopback_tls_and_authentication_are_needed(settings: dict[str, object], accepted: bool) -> None:
    given = {
        "data_dir": "/b", "admin_listen": "192.0.2.1:3180", "tls_certificate": "c", "tls_key": "k", "tls_ca": "a",
        **settings,
    }  # fmt: skip
    if accepted:
        assert load_config(None, {}, given).admin_listen == "192.0.2.1:3180"
    else:
        with pytest.raises(InvalidArgumentError, match="admin_listen"):
            load_config(None, {}, given)
