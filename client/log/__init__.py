"""Logs: one name, positions without gaps, one leader at a time; stored as one stream (the default) or as a chain of
ledgers."""
