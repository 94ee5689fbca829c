"""The layout ``stream``, the default: a log as one ledger without an end, written in terms."""
