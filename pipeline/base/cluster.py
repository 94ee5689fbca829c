"""Connects a client from the options of the data source, on the driver and in every task."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from octavo.client.client import Client
from octavo.client.connect import connect
from octavo.client.read.reader import LedgerReader
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.pipeline.base.options import ClusterOptions
from octavo.protocol.errors import InvalidArgumentError, LedgerKindError, NoSuchLedgerError, UnauthorizedError
from octavo.protocol.ids import LedgerId
from octavo.security.secret_files import read_secret, without_newline

METADATA_READS_AT_ONCE_MAX = 32
"""Ledgers whose metadata is read concurrently: enough to hide the latency of the store without overloading it."""


def read_password(options: ClusterOptions) -> bytes:
    """The password from the file or environment variable on this machine; empty if the variable is not set.

    One newline at the end of the file is removed. Raises :class:`InvalidArgumentError` if the file cannot be read, or
    every user of this machine could read it.
    """
    if options.password_file is None:
        return os.environb.get(options.password_variable.encode(), b"")
    try:
        return without_newline(read_secret(options.password_file, "passwordFile"))
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{error.message}; the file must exist on every machine") from error


async def open_reader(client: Client, ledger_id: int, options: ClusterOptions) -> LedgerReader:
    """Open a ledger without recovery, with the password of the options.

    Raises :class:`UnauthorizedError`, which names the options, for a wrong or missing password.
    """
    password = read_password(options)
    try:
        return await client.open_ledger(ledger_id, password=password, recover=False)
    except UnauthorizedError as error:
        given = password_hint(options, password)
        raise UnauthorizedError(f"ledger {ledger_id} needs its password and digest type, and {given}") from error


def password_hint(options: ClusterOptions, password: bytes) -> str:
    """Where the wrong password came from, for messages."""
    if options.password_file is not None:
        return f"passwordFile {options.password_file} holds another one"
    if password:
        return f"the environment variable {options.password_variable} holds another one"
    return f"none is given: set the option passwordFile, or the environment variable {options.password_variable}"


@asynccontextmanager
async def connected(options: ClusterOptions) -> AsyncIterator[Client]:
    """A client of the cluster, closed at the end of the block."""
    client_options: dict[str, Any] = dict(options.client_options)
    if options.tls is not None:
        client_options["tls"] = options.tls
    if options.key_file is not None:
        client_options["key_file"] = options.key_file
    async with connect(options.metadata_uri, **client_options) as client:
        yield client


async def catch_up_with_metadata(client: Client) -> None:
    """After this call the client sees every change of the metadata that was made before it, also from a server that
    lags. Costs a write to the store, so it is for a task about to take something for lost (rule M3). Raises
    :class:`MetadataUnavailableError`."""
    await client._store.confirm_absent([LedgerId(0)])  # of any ledger: what counts is that the store has to be current


async def metadata_of_each(client: Client, ledger_ids: Iterable[int]) -> AsyncGenerator[LedgerMetadata]:
    """The metadata of these ledgers, in order, read ahead concurrently. Deleted ledgers and streams are left out: a
    caller that walks all ledgers names the streams that it has not looked at (rule X1)."""

    async def read(ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await client._store.read_ledger(LedgerId(ledger_id))).value
        except (NoSuchLedgerError, LedgerKindError):
            return None

    async with aclosing(_read_ahead(read, ledger_ids)) as found:
        async for metadata in found:
            yield metadata


async def either_of_each(client: Client, ledger_ids: Iterable[int]) -> AsyncGenerator[EitherMetadata]:
    """The metadata of these ledgers and streams, in order, read ahead concurrently. Deleted ones are left out."""

    async def read(ledger_id: int) -> EitherMetadata | None:
        try:
            return (await client._store.read_either(LedgerId(ledger_id))).value
        except NoSuchLedgerError:
            return None

    ahead: AsyncGenerator[EitherMetadata] = _read_ahead(read, ledger_ids)
    async with aclosing(ahead) as found:
        async for metadata in found:
            yield metadata


async def _read_ahead[M](
    read: Callable[[int], Coroutine[Any, Any, M | None]], ledger_ids: Iterable[int]
) -> AsyncGenerator[M]:
    """Yield the results of ``read`` for each id, in order and without None."""
    pending: list[asyncio.Task[M | None]] = []
    try:
        for ledger_id in ledger_ids:
            pending.append(asyncio.ensure_future(read(ledger_id)))
            if len(pending) >= METADATA_READS_AT_ONCE_MAX and (metadata := await pending.pop(0)) is not None:
                yield metadata
        while pending:
            if (metadata := await pending.pop(0)) is not None:
                yield metadata
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def existing_ledgers(client: Client, first: int = 0) -> Sequence[LedgerId]:
    """The ids of all ledgers and streams from ``first`` on, ascending."""
    return [ledger_id async for ledger_id in client.list_ledgers() if ledger_id >= first]
