"""Ledgers as an application sees them: connect, write, read, follow. :mod:`octavo` has the public names."""
