"""A copy of a bookie's folder beside the original: it does not start while that serves, and does not disturb it."""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.identity.cookie import COOKIE_NAME, IdentityRefusedError, decode_cookie
from octavo.bookie.identity.duplicate_start import find_running_original
from octavo.metadata import BookieRegistration, BookieState, Cookie, MetadataStore
from octavo.protocol.errors import (
    BookieOverloadedError,
    BookieShuttingDownError,
    OctavoError,
    UnauthorizedError,
    WrongClusterError,
)
from octavo.protocol.frames import frame_of
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import CONNECTION_REQUEST_ID, Added, Op, ReadAnswer, encode_error
from support.raw_client import RawClient, add, read, seal

A = BookieId("a")


@asynccontextmanager
async def running(directory: Path, store: MetadataStore, seed: int = 1) -> AsyncIterator[Bookie]:
    config = load_config(None, {}, {"data_dir": directory, "port": 0, "journal_segment_bytes": 16 << 20})
    filesystem = RealFileSystem()
    try:
        bookie = await Bookie.start(
            config, filesystem=filesystem, store=store, rng=random.Random(seed), software="0-test"
        )
        try:
            yield bookie
        finally:
            await bookie.stop()
    finally:
        await filesystem.close()


async def copied(original: Path) -> Path:
    """As ``cp -r`` copies a folder in use."""
    copy = original.with_name("copy")
    await asyncio.to_thread(shutil.copytree, original, copy)
    return copy


def generation(directory: Path) -> int:
    cookie = decode_cookie((directory / COOKIE_NAME).read_bytes())
    assert cookie is not None
    return cookie.generation


async def register(store: MetadataStore, bookie_id: BookieId, address: str) -> None:
    """What a bookie leaves that was killed a moment ago."""
    await store.register_bookie(
        BookieRegistration(
            bookie_id=bookie_id, address=address, state=BookieState.WRITABLE, version="0", boot_id="before"
        )
    )


async def test_copy_beside_a_bookie_that_serves_is_refused_and_neither_is_changed(
    tmp_path: Path, store: MetadataStore
) -> None:
    async with running(tmp_path / "original", store) as original:
        copy = await copied(tmp_path / "original")
        for seed in (2, 3):
            with pytest.raises(IdentityRefusedError, match=rf"is already running at {original.address}.* a copy"):
                async with running(copy, store, seed):
                    pass
        assert generation(copy) == generation(tmp_path / "original") == 1
        assert [bookie.address for bookie in (await store.list_bookies()).values()] == [original.address]
        host, _, port = original.address.rpartition(":")
        async with RawClient(host, int(port)) as client:
            await client.greet()
            assert isinstance(await client.ask(add(1, seal(1, 0, [b"goes on"]))), Added)
            assert isinstance(await client.ask(read(1, 0, 0)), ReadAnswer)


async def test_folder_that_was_moved_starts_elsewhere_and_what_was_left_behind_does_not(
    tmp_path: Path, store: MetadataStore
) -> None:
    async with running(tmp_path / "original", store) as bookie:
        bookie_id = bookie.bookie_id
    copy = await copied(tmp_path / "original")
    async with running(copy, store, 2) as moved:
        assert moved.bookie_id == bookie_id
        with pytest.raises(IdentityRefusedError):
            async with running(tmp_path / "original", store, 3):
                pass


@pytest.mark.parametrize("listener", ["none", "another bookie", "another protocol"])
async def test_registration_left_by_a_kill_stops_no_start(tmp_path: Path, store: MetadataStore, listener: str) -> None:
    async with running(tmp_path / "bookie", store) as bookie:
        bookie_id, freed = bookie.bookie_id, bookie.address

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server, running(tmp_path / "other", store, 7) as other:
        port = server.sockets[0].getsockname()[1]
        address = {"none": freed, "another bookie": other.address, "another protocol": f"127.0.0.1:{port}"}[listener]
        await register(store, bookie_id, address)
        async with running(tmp_path / "bookie", store, 2) as again:
            assert again.bookie_id == bookie_id
            assert (await store.list_bookies())[bookie_id].address == again.address


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[str]:
    """The address of a process that answers every hello with these bytes, and keeps the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def refusal(error: OctavoError) -> bytes:
    return frame_of(encode_error(CONNECTION_REQUEST_ID, Op.ERROR, error))


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (refusal(UnauthorizedError("this bookie speaks TLS only")), "may be running at"),
        (refusal(BookieOverloadedError("too many connections")), "may be running at"),
        (refusal(BookieShuttingDownError("stopping")), "may be running at"),
        (refusal(WrongClusterError("bookie b answers here, not a")), None),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
    ],
)
async def test_any_answer_that_only_octavo_gives_may_be_the_original(
    store: MetadataStore, answer: bytes, found: str | None
) -> None:
    async with listening(answer) as address:
        await register(store, A, address)
        original = await find_running_original(store, A, await store.cluster_id(), "0-test")
    if found is None:
        assert original is None
    else:
        assert original is not None
        assert f"bookie a {found} {address}" in original.where
        assert not original.certain


async def test_a_registered_process_that_takes_connections_and_never_answers_may_be_paused(
    store: MetadataStore,
) -> None:
    async with listening(b"") as address:
        await register(store, A, address)
        original = await find_running_original(store, A, await store.cluster_id(), "0-test", answer_seconds=0.02)
    assert original is not None
    assert f"is registered at {address}, where a process listens and does not answer" in original.where


async def test_a_bookie_that_has_lost_its_registration_is_found_at_the_address_in_its_cookie(
    store: MetadataStore,
) -> None:
    refuses = refusal(UnauthorizedError("this bookie speaks TLS only"))
    async with listening(refuses) as address, listening(b"") as silent:
        version = await store.create_cookie(Cookie(bookie_id=A, generation=1, address=address))
        cluster_id = await store.cluster_id()
        assert await find_running_original(store, A, cluster_id, "0-test") is not None
        # Another bookie has moved in there: what answers is that one.
        await register(store, BookieId("b"), address)
        assert await find_running_original(store, A, cluster_id, "0-test") is None
        # No bookie is registered there: what listens may be anything.
        await store.compare_and_set_cookie(Cookie(bookie_id=A, generation=1, address=silent), version)
        assert await find_running_original(store, A, cluster_id, "0-test", answer_seconds=0.02) is None


async def test_address_whose_host_cannot_be_looked_up_is_where_no_original_runs(store: MetadataStore) -> None:
    """A version that did not check its settings has registered it."""
    await register(store, A, f"{'h' * 64}:3181")
    found = await find_running_original(store, A, cluster_id=await store.cluster_id(), software="0", answer_seconds=10)
    assert found is None
