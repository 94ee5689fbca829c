"""Learns from the metadata whether ledgers are private of which the bookie may have forgotten it (rule S3).

A bookie that is in doubt may have lost the states of ledgers whose entries it holds: in a damaged page of its journal,
or in a damaged block of its index, which was rebuilt from the entry logs since. Nothing else that it holds tells which
of them are private. So the first client that is to be given something of such a ledger waits for one read of the
metadata. What they say never changes; it is kept with the ledger's state, and not asked again.

While the metadata cannot be read, the client is refused, and may ask again.
"""

import asyncio
from typing import Final

from octavo.bookie.storage.storage import Storage
from octavo.metadata import MetadataStore
from octavo.protocol.errors import BookieOverloadedError, MetadataUnavailableError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId

_READS_AT_ONCE: Final = 8
"""Reads of the metadata at a time: after a rebuild thousands of readers may come with ledgers of their own, and the
bookie's own requests to the store must not wait behind all of them."""


class PrivacyUnknownError(BookieOverloadedError):
    """The bookie does not know whether a ledger is private; :meth:`LedgerPrivacy.learn` can tell."""

    def __init__(self, ledger_id: LedgerId) -> None:
        super().__init__(
            f"ledger {ledger_id}: this bookie has lost whether it is private, and the metadata have not told it yet; "
            "try again",
            may_have_happened=False,
        )


class LedgerPrivacy:
    """See the module."""

    def __init__(self, storage: Storage, store: MetadataStore) -> None:
        self._storage = storage
        self._store = store
        self._turns = asyncio.Semaphore(_READS_AT_ONCE)
        self._reads: dict[LedgerId, asyncio.Task[None]] = {}

    async def learn(self, ledger_id: LedgerId) -> None:
        """Return when the ledger's state says whether it is private. Requests for the same ledger share one read.
        Raises :class:`PrivacyUnknownError` while the metadata cannot be read, :class:`NoSuchLedgerError` if they do
        not have the ledger, and what the storage raises."""
        read = self._reads.get(ledger_id)
        if read is None:
            read = self._reads[ledger_id] = asyncio.get_running_loop().create_task(self._learn(ledger_id))
            read.add_done_callback(lambda read: self._read_ended(ledger_id, read))
        await asyncio.shield(read)

    async def stop(self) -> None:
        """End what is under way."""
        reads = list(self._reads.values())
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    async def _learn(self, ledger_id: LedgerId) -> None:
        try:
            async with self._turns:
                metadata = (await self._store.read_either(ledger_id)).value
        except MetadataUnavailableError as error:
            raise PrivacyUnknownError(ledger_id) from error
        except NoSuchLedgerError:
            raise NoSuchLedgerError(
                f"ledger {ledger_id} is not in the metadata, and this bookie has lost whether it is private: it gives "
                "nothing of it to clients",
                may_have_happened=False,
            ) from None
        self._storage.writer.note_privacy(ledger_id, private=metadata.private)

    def _read_ended(self, ledger_id: LedgerId, read: asyncio.Task[None]) -> None:
        del self._reads[ledger_id]
        if not read.cancelled():
            read.exception()  # the clients that waited may all have gone
