"""Datasets in the metadata store: reads and publishes their ledgers, and deletes ledgers that were never published.

Every ledger that a sink writes has tags (:class:`Tags`) in its custom metadata. They identify the job of a ledger that
its dataset does not list.
"""

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from octavo.client.client import Client
from octavo.metadata.clocks.proven_time import EARLIEST_MS
from octavo.metadata.connect import open_cluster
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.pipeline.base.cluster import connected, existing_ledgers, metadata_of_each
from octavo.pipeline.base.manifest import (
    Head,
    Publication,
    PublishedLedger,
    decode_head,
    decode_segment,
    encode_segment,
)
from octavo.pipeline.base.options import ClusterOptions, check_dataset_name
from octavo.protocol.errors import (
    InvalidArgumentError,
    MetadataConflictError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)

_PREFIX = "datasets/"

PUBLISH_ATTEMPTS_MAX = 100
"""Attempts of one publication. An attempt fails only when another job has published in the meantime."""

_UNAVAILABLE_ATTEMPTS_MAX = 5
"""Attempts to read the head while the store is unavailable."""

SEGMENT_GRACE_SECONDS = 3600.0
"""Age above which a segment that no head names is deleted. A segment is written shortly before its head."""


class Tags:
    """Keys of the custom metadata of ledgers that a sink writes."""

    DATASET = "octavo.dataset"
    JOB = "octavo.job"
    QUERY = "octavo.query"
    BATCH = "octavo.batch"
    PARTITION = "octavo.partition"
    ATTEMPT = "octavo.attempt"
    KEY = "octavo.key"
    FOR_LOG = "octavo.for-log"
    """Of ledgers that hold rows on their way into a log: its name. Such ledgers have no dataset."""


@dataclass(frozen=True, slots=True)
class DatasetStore:
    """Datasets of one cluster: a client and a handle on the metadata."""

    client: Client
    store: MetadataStore

    async def names(self) -> list[str]:
        """The names of all datasets."""
        ends = "/head"
        return [
            name.removeprefix(_PREFIX).removesuffix(ends)
            async for name in self.store.list_documents(_PREFIX)
            if name.endswith(ends)
        ]

    async def read_head(self, name: str) -> tuple[Head, Version | None]:
        """The head and its version; an empty head and None if nothing has been published."""
        document = await self.store.read_document(_head_name(name))
        if document is None:
            return Head(), None
        return decode_head(document.value, name), document.version

    async def ledgers(self, name: str) -> list[PublishedLedger]:
        """The published ledgers, in order. Raises :class:`InvalidArgumentError` if the dataset does not exist."""
        head, version = await self.read_head(name)
        if version is None:
            known = ", ".join(await self.names()) or "none"
            raise InvalidArgumentError(f"there is no dataset {name!r}; there are: {known}")
        return await self._all_of(name, head)

    async def publish(self, name: str, publication: Publication) -> bool:
        """Publish ledgers. Returns whether this call published them; False if they had been published before.

        Replaced ledgers are deleted once they are out of the set. Raises :class:`MetadataConflictError` after
        :data:`PUBLISH_ATTEMPTS_MAX` conflicts, and :class:`MetadataUnavailableError` if the store does not answer; the
        publication may then have happened, and calling again is safe.
        """
        mine = False
        for _ in range(PUBLISH_ATTEMPTS_MAX):
            head, version = await _with_retries(lambda: self.read_head(name))
            after = head.published(publication)
            if after is head:
                return mine
            replaced = await self._all_of(name, head) if publication.replaces else []
            segments = [await self._write_segment(name, part) for part in after.overflow()]
            if segments:
                after = after.moved(segments)
            try:
                await self.store.put_document(_head_name(name), after.encode(), version)
            except MetadataConflictError:
                continue
            except MetadataUnavailableError:
                # It may have been stored: the next round reads the head again.
                mine = True
                continue
            await self.delete(ledger.ledger_id for ledger in replaced)
            return True
        raise MetadataConflictError(f"dataset {name} changed {PUBLISH_ATTEMPTS_MAX} times while this job published")

    async def delete(self, ledger_ids: Iterable[int]) -> int:
        """Delete ledgers, ignoring those that do not exist. Returns the number deleted."""
        deleted = 0
        for ledger_id in ledger_ids:
            try:
                await self.client.delete_ledger(ledger_id)
            except NoSuchLedgerError:
                continue
            deleted += 1
        return deleted

    async def sweep(
        self, name: str, keep: Collection[int], is_garbage: Callable[[LedgerMetadata], bool], first: int = 0
    ) -> list[int]:
        """Delete the ledgers tagged with this dataset that are not in ``keep`` and that ``is_garbage`` selects, among
        those from ``first`` on. Returns their ids."""
        found = []
        async for metadata in metadata_of_each(self.client, await existing_ledgers(self.client, first)):
            tagged = metadata.custom_metadata.get(Tags.DATASET) == name.encode()
            if tagged and metadata.ledger_id not in keep and is_garbage(metadata):
                found.append(metadata.ledger_id)
        await self.delete(found)
        return list(found)

    async def clean(self, only: str | None = None, *, older_than_seconds: float) -> "list[Cleaned]":
        """Delete the ledgers that failed jobs have left, of all datasets or one: ledgers of jobs and batches that were
        published without them, and unpublished ledgers of at least that age, whose job is taken for failed.

        Raises :class:`InvalidArgumentError` if the named dataset neither exists nor has any ledger.
        """
        names = [only] if only is not None else await self.names()
        states = {name: await self._state(name) for name in names}
        found: dict[str, list[int]] = {name: [] for name in names}
        traces = {name for name, (_, version, _) in states.items() if version is not None}
        # A ledger is young if it is so by this host's clock or by the store's: its job may be running (rule M5).
        now = min(datetime.now(UTC), datetime.fromtimestamp(await self.store.time_ms() / 1000, UTC))
        async for metadata in metadata_of_each(self.client, await existing_ledgers(self.client)):
            tag = metadata.custom_metadata.get(Tags.DATASET)
            name = None if tag is None else tag.decode(errors="replace")
            if name is None or (only is not None and name != only):
                continue
            if name not in states:
                states[name], found[name] = await self._state(name), []
            traces.add(name)
            head, _, published = states[name]
            old = is_old(metadata.created_at, now, older_than_seconds)
            if metadata.ledger_id not in published and (old or _is_settled(head, metadata.custom_metadata)):
                found[name].append(metadata.ledger_id)
        if only is not None and only not in traces:
            raise InvalidArgumentError(
                f"there is no dataset {only!r}; there are: {', '.join(await self.names()) or 'none'}"
            )
        cleaned = []
        for name, ledger_ids in sorted(found.items()):
            await self.delete(ledger_ids)
            cleaned.append(Cleaned(name, tuple(ledger_ids), await self._clean_segments(name, states[name][0])))
        return cleaned

    async def _state(self, name: str) -> tuple[Head, Version | None, frozenset[int]]:
        """The head, its version, and the ledgers published."""
        head, version = await self.read_head(name)
        return head, version, frozenset(ledger.ledger_id for ledger in await self._all_of(name, head))

    async def _clean_segments(self, name: str, head: Head) -> int:
        prefix = _segment_name(name, "")
        removed = 0
        # A segment is young if it is so by this host's clock or by the store's: its head may be about to name it.
        now = min(time.time(), await self.store.time_ms() / 1000)
        async for document_name in self.store.list_documents(prefix):
            if document_name.removeprefix(prefix) in head.segments:
                continue
            document = await self.store.read_document(document_name)
            if document is None:
                continue
            _, written_at = decode_segment(document.value, name)
            if now - written_at > SEGMENT_GRACE_SECONDS:
                await self.store.delete_document(document_name)
                removed += 1
        return removed

    async def _all_of(self, name: str, head: Head) -> list[PublishedLedger]:
        ledgers: list[PublishedLedger] = []
        for segment in head.segments:
            document = await self.store.read_document(_segment_name(name, segment))
            if document is None:
                raise MetadataConflictError(f"dataset {name} was replaced while it was read; read it again")
            ledgers += decode_segment(document.value, name)[0]
        return [*ledgers, *head.recent]

    async def _write_segment(self, name: str, ledgers: Sequence[PublishedLedger]) -> str:
        token = secrets.token_hex(16)
        written_at = max(time.time(), await self.store.time_ms() / 1000)
        await self.store.create_document(_segment_name(name, token), encode_segment(ledgers, written_at=written_at))
        return token


def is_old(created_at: datetime, now: datetime, older_than_seconds: float) -> bool:
    """Whether a ledger without a publication is at least that old. One that was created by a clock that was never set
    is not, unless every age will do."""
    if older_than_seconds <= 0:
        return True
    return created_at.timestamp() * 1000 >= EARLIEST_MS and (now - created_at).total_seconds() >= older_than_seconds


class Cleaned(NamedTuple):
    """The ledgers and the number of segments that :meth:`DatasetStore.clean` deleted of one dataset."""

    dataset: str
    ledger_ids: tuple[int, ...]
    segments: int


@asynccontextmanager
async def dataset_store(options: ClusterOptions) -> AsyncIterator[DatasetStore]:
    """The datasets of a cluster, disconnected at the end of the block."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connected(options))
        store = await stack.enter_async_context(await open_cluster(options.metadata_uri))
        yield DatasetStore(client, store)


def _is_settled(head: Head, custom_metadata: Mapping[str, bytes]) -> bool:
    """Whether the job or batch that wrote an unpublished ledger has been published, without this ledger."""
    query, batch = custom_metadata.get(Tags.QUERY), custom_metadata.get(Tags.BATCH)
    if query is not None and batch is not None:
        return head.has(query.decode(), int(batch))
    job = custom_metadata.get(Tags.JOB)
    return job is not None and head.has(job.decode(), None)


async def _with_retries[T](read: Callable[[], Awaitable[T]]) -> T:
    """The result of ``read``, retried while the store does not answer."""
    for _ in range(_UNAVAILABLE_ATTEMPTS_MAX - 1):
        try:
            return await read()
        except MetadataUnavailableError:
            continue
    return await read()


def _head_name(name: str) -> str:
    return f"{_PREFIX}{check_dataset_name(name)}/head"


def _segment_name(name: str, token: str) -> str:
    return f"{_PREFIX}{check_dataset_name(name)}/segments/{token}"
