"""Ledgers as an application sees them: connect, write, read, follow."""

from octavo.client.client import BookieStatus, Client, connect
from octavo.client.options import ClientOptions
from octavo.client.reader import LedgerReader
from octavo.client.writer import LedgerWriter

__all__ = ["BookieStatus", "Client", "ClientOptions", "LedgerReader", "LedgerWriter", "connect"]
