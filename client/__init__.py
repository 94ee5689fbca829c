"""Ledgers as an application sees them: connect, write, read, follow."""
