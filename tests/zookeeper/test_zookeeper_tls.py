"""``zk+tls://`` against a real ZooKeeper with certificates: what connects, and in which words the rest is refused."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.zookeeper.cluster import open_zookeeper_store
from octavo.metadata.zookeeper.layout import parse_uri
from octavo.metadata.zookeeper.tls import tls_files
from octavo.protocol.errors import InvalidArgumentError, MetadataUnavailableError, UnauthorizedError
from support.clusters.certificates import STRANGER, Certificates
from support.waiting import eventually
from zookeeper_server import HOST, ServerGroup, Settings

import octavo


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("zookeeper-certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[ServerGroup]:
    """One ZooKeeper that also listens with TLS, and requires certificates of its clients there."""
    files = certificates.server("zookeeper")
    pair = certificates.directory / "zookeeper.pem"
    pair.write_bytes(Path(files.key).read_bytes() + Path(files.certificate).read_bytes())
    settings = Settings(tick_milliseconds=200, sync=False, tls_pair=str(pair), tls_ca=certificates.ca, audit=True)
    folder = tmp_path_factory.mktemp("zookeeper-tls") / "servers"
    with ServerGroup(folder, settings=settings, outlives=False) as group:
        yield group


def uri_of(server: ServerGroup, *, root: str = "octavo", host: str = HOST, **files: str) -> str:
    query = "&".join(f"tls_{name}={path}" for name, path in files.items())
    return f"zk+tls://{host}:{server.servers[0].secure_port}/{root}" + (f"?{query}" if query else "")


def files_of(certificates: Certificates, name: str = "bookie") -> dict[str, str]:
    tls = certificates.client(name)
    assert tls.ca is not None and tls.certificate is not None and tls.key is not None  # noqa: PT018
    return {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}


@asynccontextmanager
async def opened(uri: str, **options: float) -> AsyncIterator[MetadataStore]:
    store = await open_zookeeper_store(uri, create=True, lease_seconds=2.0, **{"operation_seconds": 20.0, **options})  # type: ignore[arg-type]
    try:
        yield store
    finally:
        await store.close()


async def test_metadata_are_written_and_watched_over_tls(server: ServerGroup, certificates: Certificates) -> None:
    files = files_of(certificates)
    async with opened(uri_of(server, **files)) as store, opened(uri_of(server, host="localhost", **files)) as other:
        assert await store.cluster_id() == await other.cluster_id()
        await store.create_document("test/document", b"x" * 200_000)
        async with other.watch_document("test/document") as watch:
            found = await anext(aiter(watch))
            assert found is not None
            assert found.value == b"x" * 200_000
            await store.compare_and_set_document("test/document", b"y", found.version)
            changed = await anext(aiter(watch))
            assert changed is not None
            assert changed.value == b"y"


async def test_the_audit_log_has_address_and_user_of_each_change_and_no_read(
    server: ServerGroup, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/security.md describes it."""
    monkeypatch.setenv("OCTAVO_ZOOKEEPER_AUTH", "digest:octavo:PASSWORD")
    async with opened(uri_of(server, root="audited", **files_of(certificates))) as store:
        version = await store.create_document("principals", b"x")
        assert await store.read_document("principals") is not None
        await store.delete_document("principals", version)
    node = "/audited/documents/principals"

    def lines() -> list[dict[str, str]]:
        log = server.log_of(server.servers[0]).read_text().splitlines()
        fields = [line.partition(" session=")[2].split("\t")[1:] for line in log if f"znode={node}\t" in line]
        return [dict(field.split("=", 1) for field in line) for line in fields]

    await eventually(lambda: [line["operation"] for line in lines()] == ["create", "delete"])
    created, deleted = lines()
    assert (created["ip"], created["result"], deleted["result"]) == (HOST, "success", "success")
    assert {"CN=bookie", "octavo", HOST} <= {*created["user"].split(",")}, "certificate, credentials and address"
    assert "PASSWORD" not in server.log_of(server.servers[0]).read_text()


async def test_the_environment_names_the_files_that_the_uri_does_not(
    server: ServerGroup, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part, path in files_of(certificates).items():
        monkeypatch.setenv(f"OCTAVO_ZOOKEEPER_TLS_{part.upper()}", path)
    async with opened(uri_of(server)) as store:
        assert await store.cluster_id()
    async with octavo.connect(uri_of(server)) as client:
        assert [one async for one in client.list_ledgers()] == []


async def test_a_client_without_a_certificate_or_with_a_strange_one_is_refused_in_words(
    server: ServerGroup, certificates: Certificates
) -> None:
    strange_certificate, strange_key = certificates.issue("strange", authority=STRANGER)
    for files in (
        {"ca": certificates.ca},
        {"ca": certificates.ca, "certificate": strange_certificate, "key": strange_key},
    ):
        with pytest.raises((UnauthorizedError, MetadataUnavailableError), match="TLS"):
            async with opened(uri_of(server, **files), operation_seconds=3.0):
                pass


async def test_a_server_of_another_authority_is_refused_at_once(
    server: ServerGroup, certificates: Certificates
) -> None:
    strange_ca, _ = certificates.write("strange-ca", STRANGER)
    files = {**files_of(certificates), "ca": strange_ca}
    with pytest.raises(UnauthorizedError, match="certificate of the other side is refused"):
        async with opened(uri_of(server, **files)):
            pass


async def test_tls_to_the_plain_port_says_that_the_other_side_does_not_speak_it(
    server: ServerGroup, certificates: Certificates
) -> None:
    uri = uri_of(server, **files_of(certificates)).replace(
        str(server.servers[0].secure_port), str(server.servers[0].client_port)
    )
    with pytest.raises(MetadataUnavailableError, match="TLS"):
        async with opened(uri, operation_seconds=3.0):
            pass


def test_uris_name_the_files_and_errors_name_what_is_wrong(certificates: Certificates) -> None:
    address = parse_uri("zk+tls://zk1,zk2:2300/octavo?tls_ca=/ca&tls_certificate=/c&tls_key=/k&auth_file=/a")
    assert address.servers == (("zk1", 2281), ("zk2", 2300))
    assert (address.root, address.auth_file) == ("/octavo", "/a")
    assert address.tls == {"ca": "/ca", "certificate": "/c", "key": "/k"}
    assert parse_uri("zk://zk1").tls is None
    assert parse_uri("zk+tls://zk1").tls == {}
    assert tls_files(parse_uri("zk://zk1"), {"OCTAVO_ZOOKEEPER_TLS_CA": "/nowhere"}) is None
    with pytest.raises(InvalidArgumentError, match=r"for TLS write zk\+tls://"):
        parse_uri("zk://zk1?tls_ca=/ca")
    with pytest.raises(InvalidArgumentError, match="unknown parameter tls_verify"):
        parse_uri("zk+tls://zk1?tls_verify=none")
    with pytest.raises(InvalidArgumentError, match="/nowhere"):
        tls_files(parse_uri("zk+tls://zk1?tls_ca=/nowhere"), {})
    with pytest.raises(InvalidArgumentError, match="certificate and key need one another"):
        tls_files(parse_uri(f"zk+tls://zk1?tls_ca={certificates.ca}&tls_key=/k"), {})
