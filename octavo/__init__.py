"""Octavo: a replicated, append-only log store for asyncio Python."""

from octavo._version import __version__

__all__ = ["__version__"]
