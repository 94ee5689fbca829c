"""The text of an error of the operating system, with what to do about it. Pure."""

import errno
from collections.abc import Mapping
from typing import Final

_REMEDIES: Final[Mapping[int | None, str]] = {
    errno.EMFILE: "this process has no file descriptors left: raise its limit (`ulimit -n`, LimitNOFILE= of a systemd "
    "unit), or close what it does not need",
    errno.ENFILE: "this host has no file descriptors left: raise fs.file-max, or end what does not need to run",
}


def explained(error: OSError) -> str:
    """The error's own text, and the remedy if there is one."""
    text = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno)
    return text if remedy is None else f"{text}: {remedy}"
