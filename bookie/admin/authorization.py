"""Identifies and authorises clients over TLS: the principals of the administration interface.

A client of another host is the principal of its certificate, or sends the line of its key file as a bearer token
(``Authorization: Bearer NAME:SECRET``), as Prometheus does with ``credentials_file``. Each request is checked against
the principals as the bookie knows them then.
"""

from typing import NamedTuple

from octavo.bookie.admin.administered import Subject
from octavo.bookie.admin.http_messages import HttpError, HttpRequest
from octavo.bookie.server.access import Access
from octavo.protocol.errors import InvalidArgumentError
from octavo.security.names import principal_uri
from octavo.security.roles import Right, Role, rights_of
from octavo.security.scram import Key


class Visitor(NamedTuple):
    """A principal that asks."""

    name: str
    roles: frozenset[Role]

    @property
    def may_read(self) -> bool:
        """Whether the principal may see which entries there are."""
        return Right.READ in rights_of(self.roles)

    def check(self, *, guarded: bool, what: str) -> None:
        """Raises :class:`HttpError` unless the principal may ask this."""
        if guarded and Role.ADMIN not in self.roles:
            raise HttpError(403, "Forbidden", f"{what} needs the role admin, which {self.name} does not have")
        if Right.OBSERVE not in rights_of(self.roles):
            raise HttpError(403, "Forbidden", f"{what} needs a role, and {self.name} has none")


def visitor_of(request: HttpRequest, subject: Subject) -> Visitor:
    """The principal that sends a request over TLS. Raises :class:`HttpError`."""
    if subject.ready is None:
        raise HttpError(503, "Starting", "the bookie is starting, and does not know its principals", retryable=True)
    access = subject.ready.service.access
    assert access is not None, "the settings are checked: authentication is required"
    names = request.names or ()
    if "authorization" in request.headers:
        return _by_key(request.headers["authorization"], request, access)
    for name in names:
        roles = access.roles_of(name)
        if roles:
            return Visitor(name, roles)
    if names:
        known = ", ".join(map(principal_uri, names))[:200]
        access.denied["certificate"] += 1
        access.audit.refused("authenticate", "certificate", peer=request.peer, certificate=known)
        raise _unknown(f"the certificate's {known} is no principal of this cluster")
    raise _unknown("give the certificate of a principal, or its key: Authorization: Bearer NAME:SECRET")


def _by_key(authorization: str, request: HttpRequest, access: Access) -> Visitor:
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer":
        raise _unknown("the only kind of Authorization that the bookie takes is Bearer")
    try:
        key = Key.from_text(token)
    except InvalidArgumentError:
        raise _unknown("a bearer token is the line of a key file, NAME:SECRET") from None
    roles = access.roles_by_key(key)
    if not roles:
        access.denied["key"] += 1
        access.audit.refused("authenticate", "key", peer=request.peer, name=key.name)
        raise _unknown("the name or the key is wrong, or the principal is disabled")
    return Visitor(key.name, roles)


def _unknown(message: str) -> HttpError:
    return HttpError(401, "Unauthorized", message, headers={"WWW-Authenticate": "Bearer"})
