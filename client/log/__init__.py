"""Logs: one name, positions without gaps, one leader at a time, made of a chain of ledgers."""
