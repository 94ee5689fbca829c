"""Names of logs, and where the parts of a log stand in the metadata store. Pure.

A log called ``orders/eu`` has its list of segments in the document ``logs/norders_seu``: one word, in which ``_s``
stands for a slash and ``__`` for an underscore. What belongs to one incarnation of a name (pages, cursors, the lock) is
filed under the log's id, so that a log that is deleted and created again begins without them.
"""

import re
from typing import Final

from octavo.protocol.errors import InvalidArgumentError

NAME_CHARACTERS_MAX: Final = 255
CURSOR_CHARACTERS_MAX: Final = 255

_PART = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9._-]+"
_NAME: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_LISTS: Final = "logs/n"


def check_log_name(name: object) -> None:
    """Raise :class:`InvalidArgumentError` unless ``name`` is 1 to 255 of ``[A-Za-z0-9._-]``, with ``/`` between parts,
    none of which is ``.`` or ``..``."""
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS_MAX or _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name!r} is not the name of a log: 1 to {NAME_CHARACTERS_MAX} letters, digits and ._- with / between "
            "parts, none of them . or .."
        )


def check_cursor_name(name: object) -> None:
    """Raise :class:`InvalidArgumentError` for a name that no cursor can have; the rules are those of logs."""
    if not isinstance(name, str) or len(name) > CURSOR_CHARACTERS_MAX or _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(
            f"{name!r} is not the name of a cursor: 1 to {CURSOR_CHARACTERS_MAX} letters, digits and ._- with / "
            "between parts, none of them . or .."
        )


def list_document(name: str) -> str:
    """The document that holds the list of the log's segments."""
    return _LISTS + _escape(name)


def list_prefix(prefix: str) -> str:
    """The common beginning of the documents of all logs whose names start with ``prefix``."""
    return _LISTS + _escape(prefix)


def name_of_document(document: str) -> str:
    """The log whose list the document holds: the inverse of :func:`list_document`."""
    return re.sub("_[_s]", lambda found: "/" if found[0] == "_s" else "_", document.removeprefix(_LISTS))


def page_document(log_id: str, token: str) -> str:
    """A page of the log's older segments. ``token`` makes the name unique: a page is never written again."""
    return f"log-pages/{log_id}/{token}"


def cursors_document(log_id: str) -> str:
    """The document that holds all cursors of the log."""
    return f"log-cursors/{log_id}"


def ages_document(log_id: str) -> str:
    """The document by which the ages of the log's entries are counted."""
    return f"log-ages/{log_id}"


def lock_name(log_id: str) -> str:
    """The lock that the log's leader holds."""
    return f"logs/{log_id}"


def _escape(name: str) -> str:
    return name.replace("_", "__").replace("/", "_s")
