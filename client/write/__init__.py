"""Writing a ledger."""
