"""Fixtures of the tests of a bookie."""

from collections.abc import AsyncIterator

import pytest
from octavo.metadata import MetadataStore
from support.disks.copies import StorageHost
from support.disks.faulty_filesystem import MemoryFileSystem


@pytest.fixture
async def host(store: MetadataStore) -> AsyncIterator[StorageHost]:
    """A running storage on an empty disk in memory."""
    made = await StorageHost(MemoryFileSystem(), store).start()
    yield made
    await made.storage.close()
