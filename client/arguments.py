"""Arguments of applications, checked where they enter. All functions raise :class:`InvalidArgumentError`. Pure."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import SyncMode
from octavo.protocol.entries import Digest
from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.ids import ID_MAX
from octavo.protocol.limits import E_MAX


class Protection(NamedTuple):
    """How the entries of a new ledger or log are protected."""

    password: bytes
    digest: Digest
    private: bool = False


def checked_protection(password: object, digest: object, private: object) -> Protection:
    """The protection, if there can be such a ledger."""
    checked = check_password(password)
    protection = Protection(checked, check_digest(digest), check_flag("private", private))
    if private and not checked:
        raise InvalidArgumentError("private entries are read with the password, so a password is needed")
    return protection


def check_flag(name: str, value: object) -> bool:
    """``value``, if it is True or False: what is merely true, such as the text "no", may be meant otherwise."""
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be True or False, not {value!r}")
    return value


def check_text(name: str, value: object) -> None:
    """Whether ``value`` is a str."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{name} is a str, not {value!r}")


def check_digest(digest: object) -> Digest:
    """The digest type, if it is one."""
    if not isinstance(digest, Digest):
        raise InvalidArgumentError(f"digest must be one of {', '.join(map(str, Digest))}, not {digest!r}")
    return digest


def check_time(time: object) -> None:
    """Whether ``time`` is a point in time."""
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise InvalidArgumentError(f"a time is a datetime with a time zone, not {time!r}")


def check_seconds(name: str, value: object) -> None:
    """Whether ``value`` is a number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise InvalidArgumentError(f"{name} is a number of seconds, not {value!r}")


def checked_residues(modulus: object, residues: object) -> tuple[int, ...]:
    """The residues, if ids can have them."""
    if type(modulus) is not int or not 1 <= modulus <= E_MAX:
        raise InvalidArgumentError(f"modulus is an integer from 1 to {E_MAX}, not {modulus!r}")
    if not isinstance(residues, Sequence) or not residues:
        raise InvalidArgumentError(f"residues are a sequence of integers, not {residues!r}")
    for residue in residues:
        if type(residue) is not int or not 0 <= residue < modulus:
            raise InvalidArgumentError(f"residues are integers from 0 to {modulus - 1}, not {residue!r}")
    return tuple(residues)


def check_ledger_id(ledger_id: object) -> None:
    """Whether there can be such a ledger."""
    if type(ledger_id) is not int or not 0 <= ledger_id <= ID_MAX:
        raise InvalidArgumentError(f"a ledger id is an integer from 0 to {ID_MAX}, not {ledger_id!r}")


def check_position(position: object, name: str = "a position") -> None:
    """Whether a log can ever have such a position."""
    if type(position) is not int or not 0 <= position <= ID_MAX:
        raise InvalidArgumentError(f"{name} is an integer from 0 to {ID_MAX}, not {position!r}")


def check_positions(first: int, last: int) -> None:
    """Raise :class:`InvalidArgumentError` unless these are positions, and in this order."""
    check_position(first)
    check_position(last)
    if first > last:
        raise InvalidArgumentError(f"positions are given as first <= last, not {first!r}, {last!r}")


def check_password(password: object) -> bytes:
    """The password, if it is one."""
    if not isinstance(password, bytes):
        raise InvalidArgumentError(f"a password is bytes, not {type(password).__name__}")
    return password


def checked_custom_metadata(custom_metadata: Mapping[Any, Any] | None) -> dict[str, bytes]:
    """A copy of the custom metadata."""
    if custom_metadata is not None and not isinstance(custom_metadata, Mapping):
        raise InvalidArgumentError(f"custom metadata map text to bytes; they are not {custom_metadata!r}")
    custom = dict(custom_metadata or {})
    for key, value in custom.items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise InvalidArgumentError(f"custom metadata map text to bytes; {key!r} maps to {type(value).__name__}")
    return custom


def checked_sync(sync: object, ids: str) -> SyncMode:
    """When the entries of a new ledger are to be durable."""
    modes = {mode.value: mode for mode in SyncMode}
    if not isinstance(sync, str) or sync not in modes:
        raise InvalidArgumentError(f"sync must be 'immediate' or 'deferred', not {sync!r}")
    if modes[sync] is SyncMode.DEFERRED and ids == "explicit":
        raise InvalidArgumentError("a ledger with ids='explicit' cannot have sync='deferred'")
    return modes[sync]


class LedgerKind(NamedTuple):
    """The promises about the entries of a ledger."""

    sync: SyncMode
    full_copies: FullCopies | None


ORDINARY = LedgerKind(SyncMode.IMMEDIATE, None)


def checked_kind(sync: object, full_copies: object, ids: str) -> LedgerKind:
    """The promises about the entries of a new ledger."""
    mode = checked_sync(sync, ids)
    if full_copies is None:
        return LedgerKind(mode, None)
    kinds = {kind.value: kind for kind in FullCopies}
    if not isinstance(full_copies, str) or full_copies not in kinds:
        raise InvalidArgumentError(f"full_copies must be 'recorded', 'required' or None, not {full_copies!r}")
    if mode is SyncMode.DEFERRED:
        raise InvalidArgumentError("a ledger with full_copies cannot have sync='deferred'")
    return LedgerKind(mode, kinds[full_copies])
