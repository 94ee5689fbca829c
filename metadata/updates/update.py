"""Changes of the metadata of ledgers and streams, made in a compare-and-set loop (rules M1, W5, W9, F1 and F6)."""

from typing import TYPE_CHECKING, NamedTuple

from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version, Versioned
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.compare_and_set import settle_change
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import LedgerId

if TYPE_CHECKING:
    from octavo.metadata.ledger.changes import MetadataChange, RepairChange
    from octavo.metadata.stream.changes import PageFirst, StreamChange
    from octavo.metadata.stream.model import StreamMetadata


async def update_ledger(
    store: MetadataStore,
    ledger_id: LedgerId,
    change: "MetadataChange",
    *,
    writer_token: str,
    known: Versioned[LedgerMetadata] | None = None,
) -> Versioned[LedgerMetadata]:
    """Make ``change``, or find that it has been made; returns what is then stored.

    ``known`` is what the caller believes to be stored. It saves a read and may be out of date. ``writer_token`` is
    written with the change. The error with which the change refuses is raised as well.

    Raises:
        NoSuchLedgerError: The ledger has been deleted.
        MetadataUnavailableError: The store did not answer. The change may have been made; calling again settles it.
    """

    async def write(decision: Write[LedgerMetadata], expected: Version) -> Versioned[LedgerMetadata]:
        wanted = decision.metadata.written_by(writer_token)
        return Versioned(wanted, await store.compare_and_set_ledger(wanted, expected))

    return await settle_change(
        known,
        read=lambda: store.read_ledger(ledger_id),
        decide=change.decide,
        write=write,
        what=f"ledger {ledger_id}",
    )


async def update_stream(
    store: MetadataStore,
    ledger_id: LedgerId,
    change: "StreamChange",
    *,
    writer_token: str,
    known: "Versioned[StreamMetadata] | None" = None,
) -> "Versioned[StreamMetadata]":
    """As :func:`update_ledger`, for a stream (rules T1, T2, T5 and T8 to T11).

    Where the change finds no room in the tail, the oldest fragments are paged out first (rule U3).

    Raises:
        NoSuchLedgerError: The stream has been deleted.
        MetadataUnavailableError: The store did not answer. The change may have been made; calling again settles it.
    """
    from octavo.metadata.stream.changes import PageFirst  # noqa: PLC0415 - most clients meet no stream

    def decide(current: "StreamMetadata") -> "_Step | Settled | Refuse":
        decision = change.decide(current)
        return _Step(decision) if isinstance(decision, Write | PageFirst) else decision

    async def write(step: _Step, expected: Version) -> "Versioned[StreamMetadata]":
        if isinstance(step.decision, PageFirst):
            from octavo.metadata.updates.page_out import page_out  # noqa: PLC0415 - as above

            await page_out(store, ledger_id, writer_token=writer_token)
            raise MetadataConflictError(f"stream {ledger_id} was paged out; its metadata are others now")
        wanted = step.decision.metadata.written_by(writer_token)
        return Versioned(wanted, await store.compare_and_set_stream(wanted, expected))

    return await settle_change(
        known,
        read=lambda: store.read_stream(ledger_id),
        decide=decide,
        write=write,
        what=f"stream {ledger_id}",
    )


async def repair_metadata(
    store: MetadataStore, metadata: EitherMetadata, change: "RepairChange", *, writer_token: str
) -> Versioned[EitherMetadata]:
    """As :func:`update_ledger`, for a ledger or a stream, of which the caller has read these metadata."""
    if isinstance(metadata, LedgerMetadata):
        ledger = await update_ledger(store, metadata.ledger_id, change, writer_token=writer_token)
        return Versioned(ledger.value, ledger.version)
    stream = await update_stream(store, metadata.ledger_id, change, writer_token=writer_token)
    return Versioned(stream.value, stream.version)


class _Step(NamedTuple):
    """The decision that a change of a stream asks for."""

    decision: "Write[StreamMetadata] | PageFirst"
