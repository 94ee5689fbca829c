"""The URI by which SQLite opens a file. The one that `pathlib` gives loads modules that no short command needs."""

from pathlib import PurePath
from typing import Final

_PLAIN: Final = frozenset(b"/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
"""Bytes of a path that stand for themselves."""


def file_uri(file: PurePath) -> str:
    """The URI of the file with this absolute path. Any byte may stand in a path: SQLite takes each as ``%`` and its
    number."""
    return "file://" + "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in bytes(file))
