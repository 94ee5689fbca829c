"""The metadata of ledgers and streams as ``octavo ledger`` shows them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.cli.output import custom_metadata_as_json
from octavo.metadata.debts import Debt, stored_debt
from octavo.metadata.model import LedgerMetadata

if TYPE_CHECKING:
    from octavo.metadata.either import EitherMetadata
    from octavo.metadata.stream_model import StreamMetadata


def summary_as_json(metadata: "EitherMetadata") -> dict[str, Any]:
    """What ``list --json`` shows. Of a stream, ``last_entry_id`` is the place at which it rests."""
    return {
        "ledger_id": metadata.ledger_id,
        "kind": "ledger" if isinstance(metadata, LedgerMetadata) else "stream",
        "state": metadata.state.value,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "created_at": metadata.created_at.isoformat(),
    }


def ledger_as_json(metadata: LedgerMetadata) -> dict[str, Any]:
    """Everything but the verifier and the salt."""
    return {
        "ledger_id": metadata.ledger_id,
        "kind": "ledger",
        "state": metadata.state.value,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "digest": metadata.digest.value,
        "private": metadata.private,
        "sync": metadata.sync.value,
        "full_copies": None if metadata.full_copies is None else metadata.full_copies.value,
        "created_at": metadata.created_at.isoformat(),
        "fenced_at": metadata.fenced_at.isoformat() if metadata.fenced_at is not None else None,
        "fenced_by": metadata.fenced_by or None,
        "custom_metadata": custom_metadata_as_json(metadata.custom_metadata),
        "fragments": [
            {
                "first_entry_id": fragment.first_entry_id,
                "bookies": list(fragment.bookies),
                "debt": stored_debt(metadata.debt_of(fragment)),
            }
            for fragment in metadata.fragments
        ],
    }


def describe_debt(debt: Debt) -> str:
    """The entries of a fragment that may have fewer copies than the write quorum."""
    return "-" if debt.is_empty else f"{debt.first} to {debt.last}"


def debts_of(metadata: "EitherMetadata", parts: "Sequence[EitherMetadata]") -> list[Debt]:
    """What is owed of each fragment of all parts."""
    if isinstance(metadata, LedgerMetadata):
        return [metadata.debt_of(fragment) for fragment in metadata.fragments]
    found: list[Debt] = []
    for part in parts:
        if not isinstance(part, LedgerMetadata):
            owed = (part.debt_of(fragment) for fragment in part.fragments)
            # A part that was a page begins with the fragment in which the stream begins, not within it.
            found += [debt.within(metadata.start_place, debt.last) for debt in owed]
    return found


def stream_as_json(metadata: "StreamMetadata", parts: "Sequence[StreamMetadata]") -> dict[str, Any]:
    """Everything but the verifiers, the salts and the owner. Quorums and digest are those of the last fragment.
    ``parts``: all of them, also those in pages."""
    last = metadata.last_fragment
    fragments = [fragment for part in parts for fragment in part.fragments]
    return {
        "ledger_id": metadata.ledger_id,
        "kind": "stream",
        "state": metadata.state.value,
        "term": metadata.term,
        "first_position": metadata.start,
        "last_position": metadata.end_position,
        "ensemble_size": len(last.bookies),
        "write_quorum": last.write_quorum,
        "ack_quorum": last.ack_quorum,
        "last_entry_id": metadata.last_entry_id,
        "length": metadata.length,
        "digest": metadata.keys[last.key].digest.value,
        "private": metadata.private,
        "full_copies": None if metadata.full_copies is None else metadata.full_copies.value,
        "created_at": metadata.created_at.isoformat(),
        "fenced_at": metadata.fenced_at.isoformat() if metadata.fenced_at is not None else None,
        "fenced_by": metadata.fenced_by or None,
        "custom_metadata": custom_metadata_as_json(metadata.custom_metadata),
        "pages": len(metadata.pages),
        "fragments": [
            {
                "first_entry_id": fragment.first_entry_id,
                "term": fragment.term,
                "first_position": fragment.first_position,
                "bookies": list(fragment.bookies),
                "debt": stored_debt(debt),
            }
            for fragment, debt in zip(fragments, debts_of(metadata, parts), strict=True)
        ],
    }
