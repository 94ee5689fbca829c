"""The one way to read a file that holds a secret: keys, passwords, tokens and credentials.

A file that every user of the host can read keeps no secret, and is refused (rule S4). Its group may read it: that is
how a bookie's own user gets at files of root. Pipes and other files without a mode of their own are taken as they are.
"""

import os
import stat
from pathlib import Path

from octavo.protocol.errors import InvalidArgumentError


def read_secret(path: str | Path, what: str) -> bytes:
    """The content of the file. ``what`` names its kind in errors (``password file``).

    Raises :class:`InvalidArgumentError`, which never shows the secret, if it cannot be read, or every user of this host
    could.
    """
    try:
        with open(path, "rb") as file:
            _check_mode(os.fstat(file.fileno()).st_mode, path, what)
            return file.read()
    except OSError as error:
        raise InvalidArgumentError(f"{what} {path}: {error.strerror or error}") from error


def check_secret(path: str | Path, what: str) -> None:
    """As :func:`read_secret`, for a file that something else reads."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InvalidArgumentError(f"{what} {path}: {error.strerror or error}") from error
    _check_mode(mode, path, what)


def without_newline(content: bytes) -> bytes:
    """The content without one newline at its end, which editors and ``echo`` add; every other byte counts."""
    return content[:-2] if content.endswith(b"\r\n") else content.removesuffix(b"\n")


def _check_mode(mode: int, path: str | Path, what: str) -> None:
    if stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise InvalidArgumentError(
            f"{what} {path}: every user of this host can read it; run `chmod 600 {path}`, or `chmod o= {path}` if its "
            "group may read it"
        )
