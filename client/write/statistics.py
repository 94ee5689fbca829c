"""Makes the statistics of a writer from its core, when they are asked for: nothing is counted while entries are
added."""

import asyncio
from collections.abc import Iterable
from typing import Final

from octavo.client.statistics.writers import (
    AddStatistics,
    LedgerWriterState,
    LedgerWriterStatistics,
    ReplicationStatistics,
)
from octavo.client.write.core import Core
from octavo.client.write.ensemble_changes import Phase
from octavo.client.write.front.front import Front
from octavo.client.write.writer_life import WriterState
from octavo.metadata.ledger.term import Term

_STATES: Final[dict[WriterState, LedgerWriterState]] = {
    WriterState.OPEN: "open",
    WriterState.FAILED: "failed",
    WriterState.DRAINING: "closing",
    WriterState.UNCLOSED: "unclosed",
    WriterState.SETTLING: "closing",
    WriterState.CLOSING_FAILED: "closing",
    WriterState.CLOSED: "closed",
}


def ledger_writer_statistics(core: Core, front: Front) -> LedgerWriterStatistics:
    """The statistics of a ledger's writer with this core."""
    failure = core.life.failure
    return LedgerWriterStatistics(
        ledger_id=core.id,
        state=_STATES[core.life.state],
        failure=None if failure is None else failure.message,
        adds=add_statistics(front),
        replication=replication_statistics(core),
    )


def replication_statistics(core: Core) -> ReplicationStatistics:
    """How far the bookies have what the core has sent."""
    pipeline, path, term = core.pipeline, core.path, core.term
    lac, length = pipeline.last_add_confirmed, pipeline.length
    if path is None:
        return _before_the_first_add(term, lac, length)
    sent, changes = path.replication.pipeline, path.replication.changes
    since, owed = sent.pending_since, sent.debt()
    slots = range(len(changes.ensemble))
    return ReplicationStatistics(
        ledger_id=term.ledger_id,
        term=term.number,
        ensemble=changes.ensemble,
        last_add_confirmed=lac,
        length=length,
        pending_entries=sent.pending,
        pending_bytes=sent.length_pushed - length,
        pending_frames=sent.pending_frames,
        pending_seconds=None if since is None else asyncio.get_running_loop().time() - since,
        unforced_entries=sent.pending - sent.unacknowledged,
        short_entries=range(0) if owed.is_empty else range(owed.first, owed.last + 1),
        retained_bytes=sent.retained_bytes,
        troubled_bookies=tuple(changes.ensemble[slot] for slot in slots if slot in changes.troubled_since),
        is_changing_ensemble=changes.phase is not Phase.IDLE,
        replaced_bookies=sum(map(sent.tenure, slots)),
    )


def _before_the_first_add(term: Term, lac: int | None, length: int) -> ReplicationStatistics:
    return ReplicationStatistics(
        ledger_id=term.ledger_id,
        term=term.number,
        ensemble=term.bookies,
        last_add_confirmed=lac,
        length=length,
        pending_entries=0,
        pending_bytes=0,
        pending_frames=0,
        pending_seconds=None,
        unforced_entries=0,
        short_entries=range(0),
        retained_bytes=0,
        troubled_bookies=(),
        is_changing_ensemble=False,
        replaced_bookies=0,
    )


def add_statistics(front: Front, *, are_in_doubt: bool = False) -> AddStatistics:
    """Where the adds of this front are. ``are_in_doubt``: what was sent is."""
    sent_entries = sum(len(batch.payloads) for batch in front.batches)
    return AddStatistics(
        queued_entries=sum(len(waiting.payloads) - waiting.at for waiting in front.queue),
        queued_bytes=sum(_payload_bytes(waiting.payloads[waiting.at :]) for waiting in front.queue),
        collected_entries=len(front.payloads),
        collected_bytes=_payload_bytes(front.payloads),
        unacknowledged_entries=sent_entries,
        unacknowledged_bytes=sum(_payload_bytes(batch.payloads) for batch in front.batches),
        in_doubt_entries=sent_entries if are_in_doubt else 0,
        held_entries=front.short_entries,
        held_bytes=front.short_bytes,
        free_entries=front.free_entries,
        free_bytes=front.free_bytes,
    )


def _payload_bytes(payloads: Iterable[bytes]) -> int:
    return sum(map(len, payloads))
