"""Looks into the write-ahead log of a metadata file."""

from pathlib import Path


def commits_in_log(path: Path) -> int:
    """Transactions in the write-ahead log: each ends with a page whose header tells the size of the database."""
    log = path.with_name(path.name + "-wal").read_bytes()
    page_bytes = int.from_bytes(log[8:12])
    pages = range(32, len(log), 24 + page_bytes)
    salts = log[16:24]
    return sum(log[at + 8 : at + 16] == salts and any(log[at + 4 : at + 8]) for at in pages)
