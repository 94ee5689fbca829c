"""Writers of ledgers that record which entries lack copies, or wait for all copies."""
