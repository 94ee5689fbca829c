"""The metadata of a ledger with one writer: what they are, and how they may change."""
