"""A disk that fails to read index or journal keeps a bookie from starting, but not for good: the next attempt may
succeed, and nothing is given up before an operator says so."""

import asyncio
import errno
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.identity.errors import BookieStartError, DataWrongError
from octavo.bookie.offline.layout import Layout
from octavo.bookie.offline.reset_identity import reset_identity
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.protocol.messages import ReadAnswer, Request
from support.metadata.ledger_metadata import open_ledger
from support.raw_client import RawClient, add, read, seal
from support.waiting import WAIT_SECONDS

READS_THAT_SUCCEED = {".runs": 2, ".segment": 0}
"""By kind of file: an index part's tail and footer, read first, can be read; its blocks cannot."""


class _FailingFile:
    """A real file that cannot be read after a number of times."""

    def __init__(self, file: Any, reads: int) -> None:
        self._file = file
        self._reads = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    async def read(self, offset: int, size: int) -> bytes:
        self._reads -= 1
        if self._reads < 0:
            raise OSError(errno.EIO, "input/output error")
        content: bytes = await self._file.read(offset, size)
        return content


class _FailingDisk(RealFileSystem):
    fails_at: str | None = None

    async def open(self, path: Path, **how: Any) -> Any:
        file = await super().open(path, **how)
        return _FailingFile(file, READS_THAT_SUCCEED[path.suffix]) if path.suffix == self.fails_at else file


class _Host:
    """A bookie's disk, and what is needed to start it."""

    def __init__(self, store: MetadataStore, folder: Path) -> None:
        self.store = store
        self.disk = _FailingDisk()
        self.config = load_config(None, {}, {"data_dir": folder, "port": 0, "journal_segment_bytes": 16 << 20})

    @asynccontextmanager
    async def bookie(self) -> AsyncIterator[Bookie]:
        rng = random.Random(1)
        bookie = await Bookie.start(self.config, filesystem=self.disk, store=self.store, rng=rng, software="0")
        try:
            yield bookie
        finally:
            await bookie.stop()


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[_Host]:
    """One that holds entry 0 of ledger 0, and has stopped."""
    async with await open_metadata_store(f"memory://{tmp_path.name}", create=True) as store:
        host = _Host(store, tmp_path)
        assert await store.allocate_ledger_id() == 0
        async with host.bookie() as bookie:
            await ask(bookie, add(0, seal(0, 0, [b"kept"])))
        yield host
        await host.disk.close()


@pytest.mark.parametrize(("kind", "remedy"), [(".runs", "rebuild-index"), (".segment", "reset-identity")])
async def test_a_read_error_at_the_start_is_told_and_the_next_start_may_succeed(
    host: _Host, kind: str, remedy: str
) -> None:
    host.disk.fails_at = kind
    with pytest.raises(BookieStartError, match=rf"\{kind}, offset \d+: cannot be read.*{remedy}") as raised:
        await host.bookie().__aenter__()
    assert not isinstance(raised.value, DataWrongError)
    host.disk.fails_at = None
    async with host.bookie() as bookie:
        answer = await ask(bookie, read(0, 0, 1))
    assert isinstance(answer, ReadAnswer)
    assert b"kept" in b"".join(answer.entries)
    assert not answer.unknown


async def test_a_journal_that_stays_unreadable_is_given_up_by_a_bookie_in_doubt(host: _Host) -> None:
    layout = Layout.of(host.config.data_dir, host.config.journal_directory)
    await reset_identity(host.disk, layout, host.store, bookie_id=None, rng=random.Random(2))
    await host.store.create_ledger(open_ledger(0))
    host.disk.fails_at = ".segment"
    async with host.bookie() as bookie:
        answer = await ask(bookie, read(0, 0, 1))
    assert isinstance(answer, ReadAnswer)
    assert b"kept" in b"".join(answer.entries), "it was in an entry log"
    assert list(answer.unknown) == [(1, 1)]


async def ask(bookie: Bookie, request: Request) -> object:
    host, _, port = bookie.address.rpartition(":")
    async with RawClient(host, int(port)) as client:
        await client.greet()
        return await asyncio.wait_for(client.ask(request), WAIT_SECONDS)
