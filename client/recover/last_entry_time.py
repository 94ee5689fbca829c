"""The time of the last entry before a new term: the entries of the new one are not sealed earlier (rule P10)."""

import asyncio
from typing import Final

from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.protocol.entries import LedgerSecrets, Opener
from octavo.protocol.errors import LedgerRecoveryError, OctavoError
from octavo.protocol.ids import EntryId
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.messages import Read, ReadAnswer, ReadFlag

_RETRY_SECONDS: Final = 0.2


async def sealed_at_ms(
    stream: StreamMetadata,
    fragment: StreamFragment,
    entry_id: EntryId,
    secrets: LedgerSecrets,
    pool: ConnectionPool,
    *,
    timeout_seconds: float,
) -> int:
    """When an entry of a stream was sealed, which the bookies of this fragment hold, in milliseconds since 1970.

    Raises :class:`LedgerRecoveryError` if no bookie gives the entry in this time.
    """
    opener = Opener(stream.ledger_id, stream.keys[fragment.key].digest, secrets)
    read = Read(
        *(opener.ledger_id, secrets.ledger_key, ReadFlag.NONE, 0, entry_id, entry_id, 1, (0,), 1, FRAME_BYTES_MAX)
    )
    mask = fragment.quorums.write_mask(entry_id)
    holders = [bookie_id for position, bookie_id in enumerate(fragment.bookies) if mask >> position & 1]
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                asked = [
                    asyncio.create_task(
                        _sealed_at_ms(pool.get(bookie_id), read, opener, timeout_seconds=timeout_seconds)
                    )
                    for bookie_id in holders
                ]
                found = await _first_answer(asked)
                if found is not None:
                    return found
                await asyncio.sleep(_RETRY_SECONDS)
    except TimeoutError:
        raise LedgerRecoveryError(
            f"stream {stream.ledger_id}: none of {', '.join(holders)} gives the last entry of term {fragment.term}, "
            "whose time the next one must not fall below"
        ) from None


async def _first_answer(asked: list[asyncio.Task[int | None]]) -> int | None:
    """The first answer that gives anything; None if none does. The others are given up."""
    try:
        for answered in asyncio.as_completed(asked):
            found = await answered
            if found is not None:
                return found
    finally:
        for task in asked:
            task.cancel()
        await asyncio.wait(asked)
    return None


async def _sealed_at_ms(
    connection: BookieConnection, read: Read, opener: Opener, *, timeout_seconds: float
) -> int | None:
    """The time in one bookie's copy; None if it gives none."""
    try:
        answer = await connection.request(read, timeout_seconds=timeout_seconds)
        if not isinstance(answer, ReadAnswer) or not answer.entries:
            return None
        return opener.open(answer.entries[0]).sealed_at_ms
    except OctavoError:
        return None
