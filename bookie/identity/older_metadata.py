"""Notices at a start that the metadata are an older copy of themselves, and puts garbage collection on hold (rule B5).

An older copy lacks ledgers that were created since it was made, and the bookies must keep their entries. The cookies in
the directories have two numbers that never fall while the metadata are the same: the highest generation that the
metadata have had, and the ledger ids that they have allocated. Metadata with a lower one are older.

The start makes both sides equal again, so a later start notices nothing. That is why the hold is set in the metadata
before the generation is raised there: it lasts until an operator ends it, and all bookies obey it, also those whose
directories do not show that the metadata are older.
"""

from datetime import UTC, datetime
from typing import NamedTuple

import structlog
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.updates.garbage_hold import GarbageHold, set_hold
from octavo.protocol.ids import BookieId, LedgerId

log = structlog.get_logger("octavo.bookie")


class Seen(NamedTuple):
    """The evidence about the metadata in the cookies of a bookie's directories."""

    generation: int
    """The highest generation of the bookie that the metadata are known to have had."""
    ledger_ids_stop: int
    """All ledger ids below this are known to have been allocated."""


async def hold_garbage_if_older(store: MetadataStore, bookie_id: BookieId, generation: int, seen: Seen) -> LedgerId:
    """Put garbage collection on hold if the metadata, which have this ``generation`` of the bookie, are older than what
    its cookies have ``seen``. Call it before the generation is raised in the metadata.

    Returns the lowest ledger id that the metadata have never allocated. Raises as the store does.
    """
    ids_stop = await store.ledger_ids_stop()
    if generation < seen.generation:
        older = f"they have its generation {generation}, its directories {seen.generation}"
    elif ids_stop < seen.ledger_ids_stop:
        older = (
            f"they have allocated ledger ids below {ids_stop}, its directories know of ids below {seen.ledger_ids_stop}"
        )
    else:
        return ids_stop
    reason = f"bookie {bookie_id} found metadata older than its directories ({older}): an older copy or a dump"
    since = datetime.fromtimestamp(await store.time_ms() / 1000, UTC)
    hold = await set_hold(store, GarbageHold(reason, since))
    log.error(
        "the metadata are older than the directories: no bookie collects garbage until an operator ends the hold",
        bookie=bookie_id, reason=hold.reason,
        remedy="put the newest metadata back, or check that no ledger is missing and run "
        "`octavo cluster release-garbage`",
    )  # fmt: skip
    return ids_stop
