"""The metadata of ledgers and streams as ``octavo ledger`` shows them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.cli.output import custom_metadata_as_json
from octavo.metadata.ledger.debts import Debt, stored_debt
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.any_metadata import as_stream
from octavo.metadata.stream.fragment import StreamFragment, position_in

if TYPE_CHECKING:
    from octavo.metadata.ledger.model import Fragment
    from octavo.metadata.ledger.stored import StoredLedger
    from octavo.metadata.stream.any_metadata import EitherMetadata
    from octavo.metadata.stream.model import StreamMetadata


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


def as_json(metadata: "EitherMetadata", parts: "Sequence[EitherMetadata]") -> dict[str, Any]:
    """Everything but verifiers, salts and owners. ``parts``: all of them, also those in pages."""
    if isinstance(metadata, LedgerMetadata):
        return ledger_as_json(metadata)
    return stream_as_json(metadata, [as_stream(part) for part in parts])


def fragments_table(
    metadata: "StoredLedger", parts: "Sequence[EitherMetadata]"
) -> tuple[list[str], list[tuple[object, ...]]]:
    """Headers and rows of the fragments in all parts. Of a stream they have positions, which its users know."""
    headers = ["first entry", "bookies"] if metadata.next_term is None else ["first position", "term", "bookies"]
    rows: list[tuple[object, ...]] = []
    for part in parts:
        for fragment in part.fragments:
            names = " ".join(fragment.bookies)
            if isinstance(fragment, StreamFragment):
                rows.append((fragment.first_position, fragment.term, names))
            else:
                rows.append((fragment.first_entry_id, names))
    if metadata.full_copies is None:
        return headers, rows
    fragments = [fragment for part in parts for fragment in part.fragments]
    owed = map(_owed, fragments, debts_of(metadata, parts))
    return [*headers, "owes copies of"], [(*row, debt) for row, debt in zip(rows, owed, strict=True)]


def _owed(fragment: "Fragment | StreamFragment", debt: Debt) -> str:
    """The entries of a fragment that may have fewer copies than the write quorum."""
    if debt.is_empty:
        return "-"
    if isinstance(fragment, StreamFragment):
        return f"{position_in(fragment, debt.first)} to {position_in(fragment, debt.last)}"
    return f"{debt.first} to {debt.last}"


def debts_of(metadata: "StoredLedger", parts: "Sequence[StoredLedger]") -> list[Debt]:
    """The debts of each fragment of all parts."""
    owed = (part.debt_of(fragment) for part in parts for fragment in part.fragments)
    # A part that was a page begins with the fragment in which the stream begins, not within it.
    return [debt.within(metadata.start_place, debt.last) for debt in owed]


def stream_as_json(metadata: "StreamMetadata", parts: "Sequence[StreamMetadata]") -> dict[str, Any]:
    """Everything but the verifiers, the salts and the owner. Quorums and digest are those of the last fragment.
    ``parts``: all of them, also those in pages."""
    last, end = metadata.last_fragment, metadata.end_position
    entries = None if end is None else end + 1 - metadata.start
    fragments = [fragment for part in parts for fragment in part.fragments]
    return {
        "ledger_id": metadata.ledger_id,
        "kind": "stream",
        "state": metadata.state.value,
        "term": metadata.term,
        "first_position": metadata.start,
        "last_position": None if entries == 0 else metadata.end_position,
        "entries": entries,
        "ensemble_size": len(last.bookies),
        "write_quorum": last.write_quorum,
        "ack_quorum": last.ack_quorum,
        "length": metadata.settled_bytes,
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
