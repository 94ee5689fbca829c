"""Arguments of applications, checked where they enter. All functions raise :class:`InvalidArgumentError`. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from octavo.protocol.entries import Digest
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX


class Protection(NamedTuple):
    """How the entries of a new ledger or log are protected."""

    password: bytes
    digest: Digest
    private: bool = False


def checked_protection(password: object, digest: object, private: object) -> Protection:
    """The protection, if there can be such a ledger."""
    checked = check_password(password)
    if not isinstance(digest, Digest):
        raise InvalidArgumentError(f"digest must be one of {', '.join(map(str, Digest))}, not {digest!r}")
    if not isinstance(private, bool):
        raise InvalidArgumentError(f"private must be True or False, not {private!r}")
    if private and not checked:
        raise InvalidArgumentError("private entries are read with the password, so a password is needed")
    return Protection(checked, digest, private)


def check_ledger_id(ledger_id: object) -> None:
    """Whether there can be such a ledger."""
    if type(ledger_id) is not int or not 0 <= ledger_id <= ID_MAX:
        raise InvalidArgumentError(f"a ledger id is an integer from 0 to {ID_MAX}, not {ledger_id!r}")


def check_password(password: object) -> bytes:
    """The password, if it is one."""
    if not isinstance(password, bytes):
        raise InvalidArgumentError(f"a password is bytes, not {type(password).__name__}")
    return password


def checked_custom_metadata(custom_metadata: Mapping[Any, Any] | None) -> dict[str, bytes]:
    """A copy of the custom metadata."""
    custom = dict(custom_metadata or {})
    for key, value in custom.items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise InvalidArgumentError(f"custom metadata map text to bytes; {key!r} maps to {type(value).__name__}")
    return custom
