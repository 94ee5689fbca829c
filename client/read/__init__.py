"""Reading and following a ledger."""
