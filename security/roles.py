"""Authorisation: rights, the roles that bundle them, and the right that each request needs. Pure.

The three tables here are the whole of it. A bookie asks :func:`right_needed` for each request of a connection whose
principal it knows, and serves it if the principal's roles give that right.
"""

import enum
from collections.abc import Iterable, Mapping
from typing import Final

from octavo.protocol.messages import (
    Add,
    Authenticate,
    Force,
    Info,
    ListEntries,
    Missing,
    Ping,
    Read,
    ReadFlag,
    ReadLac,
    Request,
    Subscribe,
    WriteLac,
)


class Right(enum.Enum):
    """A right that a request needs."""

    OBSERVE = "observe"
    """See the state of a bookie."""
    READ = "read"
    """See entries and which entries there are."""
    WRITE = "write"
    """Add entries, and fence ledgers. Needs the ledger's key besides."""
    REPAIR = "repair"
    """Ask for what other bookies need of a copy."""


class Role(enum.StrEnum):
    """The purpose of a principal."""

    OBSERVE = "observe"
    READ = "read"
    APPEND = "append"
    REPAIR = "repair"
    ADMIN = "admin"


RIGHTS: Final[Mapping[Role, frozenset[Right]]] = {
    Role.OBSERVE: frozenset({Right.OBSERVE}),
    Role.READ: frozenset({Right.OBSERVE, Right.READ}),
    Role.APPEND: frozenset({Right.OBSERVE, Right.READ, Right.WRITE}),
    Role.REPAIR: frozenset({Right.OBSERVE, Right.READ, Right.REPAIR}),
    Role.ADMIN: frozenset(Right),
}
"""Each role with what it may do."""

BOOKIE_ROLES: Final = frozenset({Role.REPAIR, Role.APPEND})
"""The roles of every bookie of the cluster: repair fences and recovers abandoned ledgers (rule O3)."""

_ALWAYS: Final[Mapping[type[Request], Right | None]] = {
    Authenticate: None,
    Ping: None,
    Info: Right.OBSERVE,
    ListEntries: Right.READ,
    Add: Right.WRITE,
    WriteLac: Right.WRITE,
    Force: Right.WRITE,
    Missing: Right.REPAIR,
    Subscribe: Right.READ,
}
"""Requests whose flags do not matter; None: everyone may, also before authentication."""


def rights_of(roles: Iterable[Role]) -> frozenset[Right]:
    """The rights of these roles together."""
    return frozenset[Right]().union(*(RIGHTS[role] for role in roles))


def right_needed(request: Request) -> Right | None:
    """The right without which the request is refused; None: none is needed."""
    if isinstance(request, Read | ReadLac):
        if request.flags & ReadFlag.FENCE:
            return Right.WRITE
        return Right.REPAIR if request.flags & ReadFlag.REPAIR else Right.READ
    return _ALWAYS[type(request)]
