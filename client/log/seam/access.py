"""The ledger operations that logs use: allocate, create, end, read and delete."""

from collections.abc import Awaitable, Callable
from dataclasses import field
from typing import TYPE_CHECKING

from octavo.client.arguments import Protection
from octavo.client.counts import ClientCounts
from octavo.client.log.documents.chain import SegmentEnd
from octavo.client.log.seam.pacing import TakeoverPacing
from octavo.client.options import ClientOptions
from octavo.client.read.reader import LedgerReader
from octavo.client.read.source import TermSource
from octavo.metadata.clocks.boot_time import BootClock
from octavo.metadata.ledger.model import LOG_KEY
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.entries import LedgerSecrets
from octavo.protocol.errors import LogDamagedError, NoSuchLedgerError
from octavo.protocol.ids import LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.quorums import Quorums

if TYPE_CHECKING:
    from octavo.client.terms.streams import Streams
    from octavo.client.write.core import Core, CoreFront


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A ledger to be created as a segment."""

    ledger_id: LedgerId
    log_name: str
    quorums: Quorums
    protection: Protection
    sealed_at_ms_min: int
    """Its entries are not sealed with an earlier time (rule P10)."""
    front: "CoreFront"
    """What is told of its entries."""


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """The parts of a client that logs are made of."""

    store: MetadataStore
    options: ClientOptions
    clock_ms: Callable[[], int]
    """The time of day in milliseconds since 1970."""
    random_token: Callable[[], str]
    """A token that no other writer has."""
    uniform: Callable[[float, float], float]
    """A number drawn between two bounds."""
    pacing: TakeoverPacing
    create: Callable[[NewSegment], Awaitable["Core"]]
    """Create the ledger; raises as ``Client.create_ledger``."""
    open: Callable[[LedgerId, bytes, bool], Awaitable[LedgerReader]]
    """A reader, by ledger id, password, and whether to recover the ledger first; raises as ``Client.open_ledger``."""
    read: Callable[[TermSource, LedgerSecrets], Awaitable[LedgerReader]]
    """A reader of a piece of a stream; raises as ``Client.open_ledger``."""
    load_streams: Callable[[], "Streams"]
    """Gives the operations on streams; the first time it loads what they need."""
    boot_clock: BootClock
    """How long this host has been running."""
    counts: ClientCounts = field(default_factory=ClientCounts)
    """What the client counts."""

    @property
    def streams(self) -> "Streams":
        """The operations on streams. A client that only reads does not ask for them."""
        return self.load_streams()

    async def end_of(self, ledger_id: LedgerId, password: bytes) -> SegmentEnd | None:
        """How the ledger ended; one that is not closed is recovered and closed first. None when it does not exist.

        Raises :class:`LogDamagedError` for a ledger with entries of another one that had its id."""
        from octavo.client.write.core import created_at_ms  # noqa: PLC0415 - readers end no ledger

        try:
            reader = await self.open(ledger_id, password, True)
        except NoSuchLedgerError:
            return None
        try:
            last = reader.last_add_confirmed
            if last is None:
                return SegmentEnd(0, 0, 0)
            (entry,) = await reader.read(last, last)
            if entry.sealed_at_ms < created_at_ms(reader.metadata):
                name = reader.metadata.custom_metadata.get(LOG_KEY, b"").decode()
                raise used_before(name, ledger_id, "its last entry was sealed before it was created")
            return SegmentEnd(last + 1, reader.length, entry.sealed_at_ms)
        finally:
            await reader.close()

    async def delete(self, ledger_id: LedgerId) -> bool:
        """Delete the ledger; False when it did not exist."""
        try:
            await self.store.delete_ledger(ledger_id)
        except NoSuchLedgerError:
            return False
        return True


def used_before(log_name: str, ledger_id: LedgerId, evidence: str) -> LogDamagedError:
    """The error about a segment whose ledger's id was given out twice: by metadata that are an older copy of the store.
    ``evidence``: how it is known."""
    return LogDamagedError(
        f"log {log_name}: bookies hold entries of another ledger under the id of its segment, ledger {ledger_id} "
        f"({evidence}). The metadata store was replaced by an older copy, and gives ids out a second time. Stop all "
        "bookies and clients; start them with the newest metadata, or with metadata restored from a dump "
        "(docs/backups.md)"
    )
