"""`octavo ledger`: create, fill, read, follow and inspect ledgers."""
