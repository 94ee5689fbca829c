"""A process with a bookie in it forks: the child has no part in the bookie (rule H1)."""

import random
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.metadata import MetadataStore
from octavo.metadata.cluster.registration import split_address
from support.forks import (
    in_child,
    living_child,
    open_files_below,
    run_in_child,
    shared_with_a_child,
    sockets_of_internet,
)
from support.raw_client import RawClient, add, seal


async def started(directory: Path, filesystem: RealFileSystem, store: MetadataStore) -> Bookie:
    config = load_config(None, {}, {"data_dir": directory, "port": 0, "journal_segment_bytes": 16 << 20})
    return await Bookie.start(config, filesystem=filesystem, store=store, rng=random.Random(1), software="0-test")


async def test_child_of_a_process_with_a_bookie_holds_no_socket_and_no_file_of_it(
    tmp_path: Path, store: MetadataStore
) -> None:
    before = sockets_of_internet()
    filesystem = RealFileSystem()
    bookie = await started(tmp_path / "b", filesystem, store)
    async with RawClient(*split_address(bookie.address)) as client:
        await client.greet()
        client.send(add(1, seal(1, 0, [b"before"])))
        await client.receive()
        opened = sockets_of_internet() - before
        assert len(opened) == 3, "the raw client's; the bookie listens, and has accepted"
        assert open_files_below(tmp_path)

        assert len(shared_with_a_child(opened)) == 1, "the raw client's, which is not Octavo's"
        assert in_child(lambda: open_files_below(tmp_path)) == []
        assert run_in_child(bookie.stop).startswith("ForkedError: ")
        assert run_in_child(lambda: filesystem.list_directory(tmp_path)).startswith("ForkedError: ")

        client.send(add(1, seal(1, 1, [b"after"])))
        await client.receive()
    await bookie.stop()
    await filesystem.close()


async def test_lock_of_a_directory_ends_with_its_bookie_although_a_forked_child_lives(tmp_path: Path) -> None:
    filesystem = RealFileSystem()
    release = await filesystem.lock(tmp_path / "lock")
    with living_child():
        with pytest.raises(BlockingIOError):
            await filesystem.lock(tmp_path / "lock")
        release()
        (await filesystem.lock(tmp_path / "lock"))()
    await filesystem.close()
