"""The operator's read-only switch on disk, so that a restart does not undo it."""

import json
from pathlib import Path

from octavo.bookie.disk.filesystem import FileSystem, file_gate, read_file, replace_file, sync_names

FILE_NAME = "read-only"
"""In the data directory. It holds ``{"reason": ...}``; the bookie is read-only while it is there."""

UNREADABLE = "the file read-only in the data directory cannot be understood"


async def load_read_only(filesystem: FileSystem, data_directory: Path) -> str | None:
    """The reason; None when the operator has not made the bookie read-only. A file that cannot be understood counts as
    the wish to be read-only: the operator can take that back. Raises OSError."""
    try:
        content = await read_file(filesystem, data_directory / FILE_NAME)
    except FileNotFoundError:
        return None
    try:
        return str(json.loads(content)["reason"])
    except (ValueError, KeyError, TypeError):
        return UNREADABLE


async def save_read_only(filesystem: FileSystem, data_directory: Path, reason: str | None) -> None:
    """Durable when it returns. Raises OSError."""
    path = data_directory / FILE_NAME
    if reason is not None:
        await replace_file(filesystem, path, json.dumps({"reason": reason}).encode())
        return
    async with file_gate(filesystem, path):
        try:
            await filesystem.remove(path)
        except FileNotFoundError:
            return
        await sync_names(filesystem, data_directory)
