"""Ledger metadata for tests."""

from datetime import UTC, datetime

from octavo.metadata import Fragment, LedgerMetadata
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId

CREATED_AT = datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=UTC)


def bookie_ids(*names: str) -> tuple[BookieId, ...]:
    """``bookie_ids("a", "b")``: an ensemble."""
    return tuple(BookieId(name) for name in names)


def fragment(first_entry_id: int, names: str, length_before: int = 0) -> Fragment:
    """A fragment on the bookies named by the letters of ``names``."""
    return Fragment(EntryId(first_entry_id), bookie_ids(*names), length_before)


def open_ledger(ledger_id: int = 7, *fragments: Fragment, writer_token: str = "") -> LedgerMetadata:
    """An open ledger with E = Qw = 3, Qa = 2."""
    return LedgerMetadata(
        ledger_id=LedgerId(ledger_id),
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=fragments or (fragment(0, "abc"),),
        digest=Digest.CRC32C,
        custom_metadata={"app": b"orders"},
        created_at=CREATED_AT,
        verifier=b"v" * 32,
        salt=b"s" * 16,
        writer_token=writer_token,
    )
