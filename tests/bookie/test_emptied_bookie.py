"""Directories that were emptied but for their cookies are no new ones (rule B4)."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.identity.errors import DataWrongError
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.rebuild_index import IndexRebuild
from octavo.metadata import MetadataStore

pytestmark = pytest.mark.usefixtures("logged")


async def start_and_stop(data: Path, store: MetadataStore) -> tuple[str, int | None]:
    """The bookie's id, and the ledger id at which its doubt ends."""
    settings = {
        "data_dir": data, "port": 0, "metadata": store.uri, "journal_segment_bytes": 16 * 1024 * 1024,
        "entry_log_bytes": 1024 * 1024,
    }  # fmt: skip
    filesystem = RealFileSystem()
    try:
        bookie = await Bookie.start(
            load_config(None, {}, settings), filesystem=filesystem, store=store, rng=random.Random(1), software="0"
        )
        assert bookie.service is not None
        doubted_ids_stop = bookie.service.storage.doubted_ids_stop
        await bookie.stop()
        return bookie.bookie_id, doubted_ids_stop
    finally:
        await filesystem.close()


def leave_one_cookie(data: Path) -> None:
    for path in data.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "cookie":
            path.unlink()


def leave_every_cookie(data: Path) -> None:
    for path in data.rglob("*"):
        if path.is_file() and path.name != "cookie":
            path.unlink()


@pytest.mark.parametrize("empty", [leave_one_cookie, leave_every_cookie])
async def test_a_bookie_emptied_but_for_its_cookie_refuses_and_comes_back_in_doubt(
    tmp_path: Path, store: MetadataStore, empty: Callable[[Path], None]
) -> None:
    data = tmp_path / "bookie"
    first = await start_and_stop(data, store)
    assert await start_and_stop(data, store) == first
    newest = [await store.allocate_ledger_id() for _ in range(5)][-1]  # the bookie has never heard of these ledgers
    empty(data)
    with pytest.raises(DataWrongError, match=r"has served before.*rebuild-index"):
        await start_and_stop(data, store)
    filesystem = RealFileSystem()
    rebuilt = await IndexRebuild(filesystem, Layout.of(data)).run()
    await filesystem.close()
    assert rebuilt.in_doubt_because
    bookie_id, doubted_ids_stop = await start_and_stop(data, store)
    assert bookie_id == first[0]
    assert doubted_ids_stop is not None
    assert doubted_ids_stop > newest, "it doubts every ledger that exists, also those it does not remember"


async def test_the_first_life_counts(tmp_path: Path, store: MetadataStore) -> None:
    data = tmp_path / "bookie"
    await start_and_stop(data, store)
    leave_one_cookie(data)
    with pytest.raises(DataWrongError, match="has served before"):
        await start_and_stop(data, store)
