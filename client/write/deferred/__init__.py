"""Writers of ledgers with deferred sync (rule W10)."""
