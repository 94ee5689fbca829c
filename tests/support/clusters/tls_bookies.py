"""Bookies in memory that speak TLS, in the process of the test, and clients of them."""

import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from octavo.bookie.bookie import Bookie
from octavo.bookie.config import load_config
from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.security.audit import Audit
from octavo.security.contexts import ServerFiles
from support.disks.faulty_filesystem import MemoryFileSystem
from support.metadata.memory_stores import memory_uri


def tls_settings(files: ServerFiles, mode: str = "required") -> dict[str, Any]:
    """The settings of a bookie with these files."""
    ca = {} if files.ca is None else {"tls_ca": files.ca}
    return {
        "tls": mode, "tls_certificate": files.certificate, "tls_key": files.key, "tls_minimum": files.minimum, **ca,
    }  # fmt: skip


class Cluster:
    """Bookies ``b1``, ``b2``, ... on one metadata store in memory."""

    def __init__(self, store: MetadataStore, uri: str) -> None:
        self.store = store
        self.uri = uri
        self.bookies: list[Bookie] = []

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        """A client with these options; the environment says nothing."""
        checked = ClientOptions.from_keywords({"tls": False, **options})
        store = await open_metadata_store(self.uri)
        try:
            client = Client(store, cluster_id=await store.cluster_id(), options=checked, rng=random.Random(1))
        except BaseException:
            await store.close()
            raise
        async with contextlib.aclosing(_Closing(client)):
            yield client


class _Closing:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def aclose(self) -> None:
        await self._client.close()


async def start_bookie(
    store: MetadataStore,
    number: int,
    *,
    audit: Audit | None = None,
    filesystem: MemoryFileSystem | None = None,
    **settings: Any,
) -> Bookie:
    chosen = {
        "data_dir": Path("/bookie"), "port": 0, "journal_segment_bytes": 16 << 20, "bookie_id": f"b{number}",
        **settings,
    }  # fmt: skip
    return await Bookie.start(
        load_config(None, {}, chosen),
        filesystem=filesystem or MemoryFileSystem(),
        store=store,
        rng=random.Random(number),
        software="0",
        audit=audit,
    )


@asynccontextmanager
async def cluster_of(
    *settings: dict[str, Any], documents: Mapping[str, bytes] | None = None, audit: Audit | None = None
) -> AsyncIterator[Cluster]:
    """One bookie with each of the settings. ``documents`` are in the metadata before the bookies start."""
    uri = memory_uri("tls")
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(await open_metadata_store(uri, create=True))
        for name, value in (documents or {}).items():
            await store.create_document(name, value)
        cluster = Cluster(store, uri)
        for number, chosen in enumerate(settings, 1):
            bookie = await start_bookie(store, number, audit=audit, **chosen)
            stack.push_async_callback(bookie.stop)
            cluster.bookies.append(bookie)
        yield cluster
