"""Ledgers as an application sees them: connect, write, read, follow."""

from octavo.client.client import BookieStatus, Client, connect
from octavo.client.options import ClientOptions
from octavo.client.read.reader import LedgerReader
from octavo.client.write.writer import LedgerWriter

__all__ = ["BookieStatus", "Client", "ClientOptions", "LedgerReader", "LedgerWriter", "connect"]
