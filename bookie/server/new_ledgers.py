"""Ledgers whose key is not pinned here: whether they exist, and with which key, before a client may write, fence or,
where they are private, read them.

The first add to a ledger pins its key on the bookie, and a fence of a ledger that does not exist yet would end the
writer that creates it later. So with ``verify_new_ledgers`` the first add, LAC or fence of a ledger without a pinned
key waits for one read of the metadata: the ledger must exist, and the key must be that of its password. What has been
verified is remembered; requests for the same ledger share one read.

A private ledger without a pinned key has been copied from other bookies. Its reads are verified in the same way,
whatever ``verify_new_ledgers`` says (rules S2 and S3).
"""

import asyncio
import hashlib
import hmac

from octavo.bookie.storage.storage import Storage
from octavo.metadata import MetadataStore
from octavo.protocol.entries import LedgerSecrets, verifier_matches
from octavo.protocol.errors import (
    BookieOverloadedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    UnauthorizedError,
)
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Add, Read, ReadFlag, ReadLac, Request, WriteLac

VERIFIED_MAX = 10_000
"""Ledgers remembered as verified; the oldest are dropped first and are read again."""


class NewLedgers:
    """See the module."""

    def __init__(self, storage: Storage, store: MetadataStore, *, checks_writes: bool = True) -> None:
        """``checks_writes``: ``verify_new_ledgers``."""
        self.checks_writes = checks_writes
        self._storage = storage
        self._store = store
        self._verified: dict[LedgerId, bytes] = {}
        """Ledger -> a hash of the key that was verified."""
        self._reads: dict[tuple[LedgerId, bytes], asyncio.Task[None]] = {}
        self.refused = 0

    @property
    def remembered(self) -> int:
        """Ledgers and reads that are held in memory."""
        return len(self._verified) + len(self._reads)

    def must_wait(self, request: Request) -> bool:
        """Whether the request has to wait for :meth:`verify`."""
        if isinstance(request, Read | ReadLac):
            if not request.flags & ReadFlag.FENCE:
                return False
        elif not isinstance(request, Add | WriteLac):
            return False
        ledger_id = LedgerId(request.ledger_id)
        if self._storage.ledgers.get(ledger_id).ledger_key is not None:
            return False
        return not self.is_verified(ledger_id, request.ledger_key)

    def is_verified(self, ledger_id: LedgerId, ledger_key: bytes) -> bool:
        """Whether the metadata have shown that this is the ledger's key."""
        verified = self._verified.get(ledger_id)
        return verified is not None and hmac.compare_digest(verified, _hash(ledger_key))

    async def verify(self, ledger_id: LedgerId, ledger_key: bytes) -> None:
        """Return if the ledger exists and this is its key. Raises :class:`NoSuchLedgerError`,
        :class:`UnauthorizedError`, and what the metadata store raises; nothing was done then."""
        asked = ledger_id, ledger_key
        read = self._reads.get(asked)
        if read is None:
            read = self._reads[asked] = asyncio.get_running_loop().create_task(self._verify(ledger_id, ledger_key))
            read.add_done_callback(lambda read: self._read_ended(asked, read))
        await asyncio.shield(read)

    def _read_ended(self, asked: tuple[LedgerId, bytes], read: asyncio.Task[None]) -> None:
        del self._reads[asked]
        if not read.cancelled():
            read.exception()  # the clients that waited may all have gone

    async def stop(self) -> None:
        """End what is under way."""
        reads = list(self._reads.values())
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    async def _verify(self, ledger_id: LedgerId, ledger_key: bytes) -> None:
        try:
            metadata = (await self._store.read_either(ledger_id)).value
        except MetadataUnavailableError as error:
            raise BookieOverloadedError(
                f"ledger {ledger_id} is new here, and the metadata store does not tell whether it exists; try again",
                may_have_happened=False,
            ) from error
        except NoSuchLedgerError:
            self.refused += 1
            raise NoSuchLedgerError(
                f"ledger {ledger_id} does not exist: the bookie serves no requests for it", may_have_happened=False
            ) from None
        secrets = LedgerSecrets(ledger_key, b"")
        # A stream may have had several keys: a recovering client comes with that of the fragment it reads.
        if not any(verifier_matches(key.verifier, secrets, key.digest, key.salt) for key in metadata.keys):
            self.refused += 1
            raise UnauthorizedError(f"ledger {ledger_id}: not the ledger's key", may_have_happened=False)
        self._verified.pop(ledger_id, None)
        self._verified[ledger_id] = _hash(ledger_key)
        if len(self._verified) > VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]


def _hash(ledger_key: bytes) -> bytes:
    return hashlib.sha256(ledger_key).digest()
