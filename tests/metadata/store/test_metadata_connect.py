"""Opening a store by its URI."""

from pathlib import Path

import pytest
from octavo.metadata import open_metadata_store
from octavo.metadata.connect import open_cluster
from octavo.protocol.errors import InvalidArgumentError, MetadataUnavailableError
from support.descriptors import no_descriptors_left
from support.metadata.memory_stores import memory_uri

import octavo


@pytest.mark.parametrize("uri", ["", "metadata.db", "sqlite:/x", "postgres://host/db", "memory:"])
async def test_unknown_uri_is_refused_and_the_known_schemes_are_listed(uri: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"known schemes are sqlite://, zk://, zk\+tls://"):
        await open_metadata_store(uri)


async def test_named_memory_store_is_shared_while_it_is_open() -> None:
    async with await open_metadata_store("memory://shared") as one, await open_metadata_store("memory://shared") as two:
        assert await one.cluster_id() == await two.cluster_id()
        assert one.uri == "memory://shared"
    del one, two
    async with await open_metadata_store("memory://shared") as three:
        assert await three.allocate_ledger_id() == 0


async def test_memory_store_without_a_name_is_private() -> None:
    async with await open_metadata_store("memory://") as one, await open_metadata_store("memory://") as two:
        assert await one.cluster_id() != await two.cluster_id()


@pytest.mark.parametrize("uri", ["memory://", "memory://cluster"])
async def test_store_in_memory_is_refused_where_no_bookie_can_be(uri: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"has no bookies and never will.*sqlite:///PATH.*zk://") as refused:
        await octavo.connect(uri)
    assert repr(uri) in refused.value.message
    with pytest.raises(InvalidArgumentError, match="has no bookies"):
        await open_cluster(uri, create=True)


async def test_store_in_memory_that_a_test_has_open_is_connected_to() -> None:
    uri = memory_uri("open")
    async with await open_metadata_store(uri) as store, octavo.connect(uri) as client:
        assert await client.bookies() == []
        assert await store.list_known_bookies() == []


async def test_relative_path_is_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MetadataUnavailableError, match=r"data/metadata\.db"):
        await open_metadata_store("sqlite:///data/metadata.db")
    assert not (tmp_path / "data").exists()
    async with await open_metadata_store("sqlite:///data/metadata.db", create=True) as store:
        assert store.uri == "sqlite:///data/metadata.db"
        assert (tmp_path / "data" / "metadata.db").is_file()


async def test_absolute_path_has_four_slashes(tmp_path: Path) -> None:
    async with await open_metadata_store(f"sqlite:///{tmp_path}/metadata.db", create=True) as store:
        assert store.uri == f"sqlite:///{tmp_path}/metadata.db"
    assert (tmp_path / "metadata.db").is_file()


async def test_lease_must_last(tmp_path: Path) -> None:
    for uri in ("memory://", f"sqlite:///{tmp_path}/metadata.db"):
        with pytest.raises(InvalidArgumentError, match="lease"):
            await open_metadata_store(uri, create=True, lease_seconds=0)
    with pytest.raises(MetadataUnavailableError, match="there is no metadata store"):
        await open_metadata_store(f"sqlite:///{tmp_path}/metadata.db")


@pytest.mark.parametrize("spare", [0, 1, 2])
async def test_process_without_descriptors_is_told_so(tmp_path: Path, spare: int) -> None:
    uri = f"sqlite:///{tmp_path}/metadata.db"
    async with await open_metadata_store(uri, create=True):
        pass
    with no_descriptors_left(spare=spare), pytest.raises(MetadataUnavailableError) as refused:
        await open_metadata_store(uri)
    assert "Too many open files" in refused.value.message
    assert "ulimit -n" in refused.value.message
    assert not refused.value.may_have_happened
    async with await open_metadata_store(uri):
        pass
