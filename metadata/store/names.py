"""The names of documents and locks."""

import re
from typing import Final

from octavo.protocol.errors import InvalidArgumentError

_NAME: Final = re.compile(r"(?!.{513})[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


def check_name(name: str) -> None:
    """Raise :class:`InvalidArgumentError` unless a document or a lock may have this name."""
    if _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name!r} is not a valid name: it must be words of letters, digits and ._- joined by /, "
            "at most 512 characters"
        )
