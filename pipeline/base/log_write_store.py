"""The writes into logs that the metadata store knows, and the ledgers that hold their rows meanwhile.

The ledgers have tags (:class:`~octavo.pipeline.base.datasets.Tags`), so that those of failed attempts are found.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from octavo.client.client import Client
from octavo.client.log.documents.names import list_document
from octavo.client.log.documents.stream import decode_any_log
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.pipeline.base.cluster import existing_ledgers, metadata_of_each
from octavo.pipeline.base.datasets import Tags, is_old
from octavo.pipeline.base.log_writes import LogWrite, decode_log_write
from octavo.protocol.errors import MetadataConflictError, MetadataUnavailableError, NoSuchLedgerError

_PREFIX = "spark-writes/"

_ATTEMPTS_MAX = 5
"""Attempts to read or to store a write while the store does not answer."""


class LogWrites(NamedTuple):
    """The writes into one log. ``store`` is that of ``client``'s cluster."""

    client: Client
    store: MetadataStore
    log_id: str

    async def read(self, job: str) -> tuple[LogWrite | None, Version | None]:
        """The last write of the job or query, and its version; None if there is none."""
        name = _document(self.log_id, job)
        for attempt in range(_ATTEMPTS_MAX):
            try:
                found = await self.store.read_document(name)
            except MetadataUnavailableError:
                if attempt == _ATTEMPTS_MAX - 1:
                    raise
                continue
            return (None, None) if found is None else (decode_log_write(found.value, name), found.version)
        raise AssertionError("the last attempt returns or raises")

    async def store_write(self, write: LogWrite, expected: Version | None) -> bool:
        """Store it if the document is still of the expected version. False: it is not, or that is not known; read
        it again."""
        try:
            await self.store.put_document(_document(self.log_id, write.job), write.encode(), expected)
        except (MetadataConflictError, MetadataUnavailableError):
            return False
        return True

    async def forget(self, job: str) -> None:
        """Delete the document of a job that is not committed again."""
        await self.store.delete_document(_document(self.log_id, job))

    async def delete(self, ledger_ids: Iterable[int]) -> None:
        """Delete ledgers; those that are gone are left out."""
        await _delete(self.client, ledger_ids)

    async def sweep(self, write: LogWrite, first: int) -> None:
        """Delete the ledgers that other attempts of this write have left, among those from ``first`` on."""
        keep = {ledger.ledger_id for ledger in write.ledgers}
        wanted = {Tags.FOR_LOG: write.log.encode(), Tags.JOB: tag_of(write.job, write.batch).encode()}
        found = []
        async for metadata in metadata_of_each(self.client, await existing_ledgers(self.client, first)):
            tags = metadata.custom_metadata
            if metadata.ledger_id not in keep and all(tags.get(name) == value for name, value in wanted.items()):
                found.append(metadata.ledger_id)
        await self.delete(found)


def tag_of(job: str, batch: int | None) -> str:
    """The tag of the ledgers of a write."""
    return job if batch is None else f"{job}/{batch}"


class CleanedWrites(NamedTuple):
    """Ledgers, and the number of documents of writes, that :func:`clean_log_writes` has deleted."""

    ledger_ids: tuple[int, ...]
    writes: int


async def clean_log_writes(client: Client, store: MetadataStore, *, older_than_seconds: float) -> CleanedWrites:
    """Delete what failed writes into logs have left.

    Those are the ledgers that no write needs any more, once they have the given age. No write is needed whose log is
    gone, nor an unfinished one of a job without a name, once all of its ledgers have that age.
    """
    # A ledger is young if it is so by this host's clock or by the store's: its job may be running (rule M5).
    now = min(datetime.now(UTC), datetime.fromtimestamp(await store.time_ms() / 1000, UTC))
    ledgers: dict[int, LedgerMetadata] = {
        metadata.ledger_id: metadata
        async for metadata in metadata_of_each(client, await existing_ledgers(client))
        if Tags.FOR_LOG in metadata.custom_metadata
    }
    # The documents are read after the ledgers: what was staged by then, and is needed, is in one of them.
    needed: set[int] = set()
    writes = 0
    for name in [name async for name in store.list_documents(_PREFIX)]:
        log_id, _, _ = name.removeprefix(_PREFIX).partition("/")
        found = await store.read_document(name)
        if found is None:
            continue
        write = decode_log_write(found.value, name)
        is_there = await _is_there(store, write.log, log_id)
        if is_there and (write.may_repeat or not _all_old(write, ledgers, now, older_than_seconds)):
            needed.update(ledger.ledger_id for ledger in write.ledgers)
            continue
        try:
            await store.delete_document(name, found.version)
            writes += 1
        except MetadataConflictError:
            needed.update(ledger.ledger_id for ledger in write.ledgers)  # its commit goes on
    unneeded = [
        ledger_id
        for ledger_id, metadata in ledgers.items()
        if ledger_id not in needed and is_old(metadata.created_at, now, older_than_seconds)
    ]
    await _delete(client, unneeded)
    return CleanedWrites(tuple(unneeded), writes)


def _all_old(write: LogWrite, ledgers: dict[int, LedgerMetadata], now: datetime, older_than_seconds: float) -> bool:
    there = [ledgers[ledger.ledger_id] for ledger in write.ledgers if ledger.ledger_id in ledgers]
    return all(is_old(metadata.created_at, now, older_than_seconds) for metadata in there)


async def _is_there(store: MetadataStore, name: str, log_id: str) -> bool:
    found = await store.read_document(list_document(name))
    return found is not None and decode_any_log(found.value, name).log_id == log_id


async def _delete(client: Client, ledger_ids: Iterable[int]) -> None:
    for ledger_id in ledger_ids:
        try:
            await client.delete_ledger(ledger_id)
        except NoSuchLedgerError:
            continue


def _document(log_id: str, job: str) -> str:
    return f"{_PREFIX}{log_id}/{job}"
