"""The hold on garbage collection: while it stands in the metadata, no bookie drops a ledger (rule B5).

An operator, or a restore of older metadata, sets it. Bookies read it before every garbage collection.
"""

from datetime import datetime
from typing import Final, NamedTuple

from octavo.metadata.encoding import FieldReader, decode_object, encode_instant, encode_object
from octavo.metadata.store.store import MetadataStore
from octavo.protocol.errors import MetadataConflictError

DOCUMENT: Final = "cluster/garbage-hold"

FORMAT: Final = 1


class GarbageHold(NamedTuple):
    """Why and since when no bookie drops ledgers."""

    reason: str
    since: datetime


async def read_hold(store: MetadataStore) -> GarbageHold | None:
    """The hold; None if bookies may collect garbage. Raises as the store does."""
    found = await store.read_document(DOCUMENT)
    return None if found is None else decode_hold(found.value)


async def set_hold(store: MetadataStore, hold: GarbageHold) -> GarbageHold:
    """Set the hold unless there is one already; the hold that then stands."""
    while True:
        present = await read_hold(store)
        if present is not None:
            return present
        try:
            await store.create_document(DOCUMENT, encode_hold(hold))
        except MetadataConflictError:
            continue
        return hold


def encode_hold(hold: GarbageHold) -> bytes:
    """The stored form (:mod:`octavo.metadata.encoding`)."""
    return encode_object({"reason": hold.reason, "since": encode_instant(hold.since)}, format_number=FORMAT)


def decode_hold(value: bytes) -> GarbageHold:
    """From the stored form. Raises :class:`MetadataError`; a hold that cannot be understood is still a hold."""
    what = "the hold on garbage collection"
    reader = FieldReader(decode_object(value, what=what, format_max=FORMAT), what)
    return GarbageHold(reader.get("reason", str), reader.instant("since"))
