"""Whether a process is still the bookie whose id it has (rule B10).

An *incarnation* is one start of a bookie on one set of directories: the id, the *lineage* of the data, and the
generation and token of the start. The bookie's cookie in the metadata names the one that owns the id. Another can
become the owner while a process does not run or is cut off from the metadata: ``octavo bookie reset-identity`` gives
the id to other disks, a copy of the directories is started, the bookie is forgotten or retired. So a bookie compares
itself with its cookie before every registration, and registers only if the cookie has not changed since.

:func:`lost_to` is pure.
"""

from typing import NamedTuple

import structlog
from octavo.bookie.identity.errors import DataWrongError
from octavo.metadata.cluster.registration import Cookie
from octavo.metadata.cluster.repair_states import DOCUMENT, Condition, decode_states
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.store.values import Version
from octavo.protocol.ids import BookieId

log = structlog.get_logger("octavo.bookie")


class IdentityLostError(DataWrongError):
    """The bookie's id does not belong to this process any more. The process must end."""


class Incarnation(NamedTuple):
    """The facts that the cookie in the metadata must name for this process to be the bookie."""

    bookie_id: BookieId
    lineage: str
    generation: int
    token: str


def lost_to(mine: Incarnation, known: Cookie | None, condition: Condition | None) -> str | None:
    """Why this incarnation is not the bookie any more; None if it is. ``known``: its cookie in the metadata.

    Metadata with a lower generation of the same lineage are an older copy of themselves: they know of no other owner.
    The bookie collects no garbage then (rule B5).
    """
    name = mine.bookie_id
    if condition is Condition.RETIRED:
        return f"bookie {name} has been retired; its id is never used again, and its ledgers may have been closed"
    if known is None:
        return f"the cluster does not know bookie {name} any more: it has been forgotten, or retired"
    if known.lineage and mine.lineage != known.lineage:
        return (
            f"the id {name} has been given to other data, by `octavo bookie reset-identity` or by a new start after it "
            "was forgotten"
        )
    if known.generation > mine.generation or (
        known.generation == mine.generation and known.body.decode("ascii", "replace") != mine.token
    ):
        return f"bookie {name} has been started again elsewhere, from these directories or from a copy of them"
    return None


async def confirm_identity(store: MetadataStore, mine: Incarnation) -> Version:
    """The version of the cookie that names this incarnation, for :meth:`MetadataStore.register_bookie`. Raises
    :class:`IdentityLostError` if it names another, or none."""
    found = await store.read_document(DOCUMENT)
    condition = decode_states(None if found is None else found.value).condition_of(mine.bookie_id)
    known = await store.read_cookie(mine.bookie_id)
    reason = lost_to(mine, None if known is None else known.value, condition)
    if reason is not None or known is None:
        raise IdentityLostError(
            f"{reason}; this process was paused or cut off from the metadata meanwhile, and ends: start it again on "
            "empty directories, or find out first which directories are to be the bookie"
        )
    if known.value.generation < mine.generation:
        log.error(
            "the metadata are older than the directories", bookie=mine.bookie_id,
            generation=known.value.generation, own_generation=mine.generation,
        )  # fmt: skip
    return known.version
