"""The metadata of ledgers and bookies as JSON, with the names that the commands ``octavo ledger`` and ``octavo
bookies`` use."""

import base64
import enum
from typing import Any, NamedTuple

from octavo.metadata import KnownBookie, LedgerMetadata, MetadataStore
from octavo.metadata.ledger.model import LOG_KEY, LedgerState
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.stream.fragment import StreamFragment
from octavo.metadata.updates.paging import members_of, parts_of
from octavo.protocol.errors import NoSuchLedgerError
from octavo.protocol.ids import LedgerId

LEDGERS_PER_PAGE_MAX = 1000

STATES = ("open", "in-recovery", "at-rest", "closed")
"""Of ledgers and streams; only streams are at rest."""

LOOKED_AT_MAX = 10_000
"""Ledgers read for one page. A filter that few ledgers pass gives a short page, and never a long request."""


class Page(NamedTuple):
    """Some ledgers; ``after``: where to go on, None at the end."""

    ledgers: list[dict[str, Any]]
    after: int | None


async def list_page(
    store: MetadataStore, *, after: int | None, limit: int, state: str | None, bookie: str | None
) -> Page:
    """The ledgers with ids above ``after``, at most ``limit``; only those in ``state``, only those that name
    ``bookie``."""
    found: list[dict[str, Any]] = []
    looked_at = 0
    async for ledger_id in store.list_ledgers(after=None if after is None else LedgerId(after)):
        try:
            metadata = (await store.read_either(ledger_id)).value
            named = bookie is None or bookie in await members_of(store, metadata)
        except NoSuchLedgerError:
            continue
        looked_at += 1
        if named and (state is None or metadata.state.value == state):
            found.append(summary(metadata))
        if len(found) >= limit or looked_at >= LOOKED_AT_MAX:
            return Page(found, ledger_id)
    return Page(found, None)


async def show(store: MetadataStore, ledger_id: LedgerId) -> dict[str, Any]:
    """All metadata of a ledger but its verifier and salt. Of a stream, the quorums and the digest are those of its
    last fragment. Raises :class:`NoSuchLedgerError`."""
    metadata = (await store.read_either(ledger_id)).value
    quorums = metadata.quorums_at(metadata.last_fragment.first_entry_id)
    return {
        **summary(metadata),
        "ensemble_size": quorums.ensemble_size,
        "write_quorum": quorums.write_quorum,
        "ack_quorum": quorums.ack_quorum,
        "digest": metadata.key_at(metadata.last_fragment.first_entry_id).digest.value,
        "custom_metadata": {key: _text(metadata.custom_metadata[key]) for key in sorted(metadata.custom_metadata)},
        "fragments": [
            {
                "first_entry_id": fragment.first_entry_id,
                "first_position": fragment.first_position if isinstance(fragment, StreamFragment) else None,
                "term": fragment.term if isinstance(fragment, StreamFragment) else 0,
                "bookies": list(fragment.bookies),
            }
            async for part in parts_of(store, metadata)
            for fragment in part.fragments
        ],
    }


def summary(metadata: EitherMetadata) -> dict[str, Any]:
    """The facts of a ledger or stream that a list shows. A ledger has ids of entries, and a stream has positions, which
    its users know, in place of them. What the metadata do not tell while a client writes is None. ``length`` is the
    payload of what has an end and was not truncated, ``log`` the name of the log that it belongs to."""
    entries: int | None = None
    last_entry_id = first_position = last_position = None
    if isinstance(metadata, LedgerMetadata):
        length, last_entry_id = metadata.length, metadata.last_entry_id
        if metadata.state is LedgerState.CLOSED:
            entries = 0 if last_entry_id is None else last_entry_id + 1
    else:
        length, first_position = metadata.settled_bytes, metadata.start
        if metadata.end_position is not None:
            entries = metadata.end_position + 1 - first_position
            last_position = metadata.end_position if entries else None
    log_name = metadata.custom_metadata.get(LOG_KEY)
    return {
        "ledger_id": metadata.ledger_id,
        "kind": metadata.kind.value,
        "state": metadata.state.value,
        "entries": entries,
        "last_entry_id": last_entry_id,
        "first_position": first_position,
        "last_position": last_position,
        "length": length,
        "created_at": metadata.created_at.isoformat(),
        "private": metadata.private,
        "log": None if log_name is None else log_name.decode(errors="replace"),
    }


class Sight(enum.Enum):
    """Of which ledgers someone who asks may see which entries there are, and what their users wrote about them."""

    ALL = "all"
    """The operator of the bookie, and principals that may read."""
    NOT_PRIVATE = "not private"
    """Anyone, where the bookie asks no client who it is: it gives the entries of these ledgers to everyone, too."""
    NONE = "none"
    """Those that may only observe bookies."""


_WITHHELD = ("entries", "last_entry_id", "first_position", "last_position", "length", "log", "custom_metadata")


def as_seen(facts: dict[str, Any], sight: Sight) -> dict[str, Any]:
    """The facts of :func:`summary` or :func:`show` for a caller with this sight: where ``withheld`` is true, the facts
    that tell which entries exist are null, and so is what the ledger's users wrote (rule S6). State, quorums and
    bookies are seen by everyone: who watches over bookies needs them."""
    withheld = sight is Sight.NONE or (sight is Sight.NOT_PRIVATE and facts["private"])
    if not withheld:
        return {**facts, "withheld": False}
    seen = {**facts, **{name: None for name in _WITHHELD if name in facts}, "withheld": True}
    if "fragments" in facts:
        seen["fragments"] = [
            {**fragment, "first_entry_id": None, "first_position": None} for fragment in facts["fragments"]
        ]
    return seen


def _text(value: bytes) -> str | dict[str, str]:
    """As a text, or as ``{"base64": ...}`` if it is none."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def bookie_view(bookie: KnownBookie) -> dict[str, Any]:
    """A bookie as the cluster knows it."""
    registration = bookie.registration
    return {
        "bookie_id": bookie.bookie_id,
        "address": bookie.address,
        "state": bookie.state.value,
        "version": None if registration is None else registration.version,
        "rack": None if registration is None else registration.rack,
        "host_id": None if registration is None else registration.host_id,
        "free_bytes": None if registration is None else registration.free_bytes,
    }
