"""Which clients the bookie serves, and with what: the gate of each connection, where authentication is required (rule
S1).

A connection is anonymous until its certificate names a principal, or the client has proved that it knows a principal's
key. Until then only PING and AUTHENTICATE are served. From then on each request needs one of the rights that the
principal's roles give (:mod:`octavo.security.roles`).

When a principal is changed, disabled or removed, its connections end. Requests that were answered stay answered; the
writer learns which were not, as with every lost connection.
"""

import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Mapping

import structlog
from octavo.metadata.cluster.principals import Principals
from octavo.protocol.errors import OctavoError, UnauthorizedError
from octavo.protocol.messages import (
    EXTENSION_DENIED,
    EXTENSION_PRINCIPAL,
    Authenticate,
    AuthenticateAnswer,
    Request,
)
from octavo.security.audit import Audit
from octavo.security.login import BookieLogin
from octavo.security.names import is_of_a_bookie, principal_uri
from octavo.security.roles import BOOKIE_ROLES, Right, Role, right_needed, rights_of
from octavo.security.scram import NONCE_BYTES, Key, Verifier, decoy, verifier_of

log = structlog.get_logger("octavo.bookie")

DENIAL_REASONS = ("certificate", "key", "role")
"""What was not enough when a client was refused."""

_NO_RIGHTS: frozenset[Right] = frozenset()


class Access:
    """The state that the gates of a bookie share: the principals, as known last."""

    def __init__(self, *, cluster_id: str, bookie_id: str, audit: Audit | None = None) -> None:
        self.audit = audit or Audit()
        self.cluster_id = cluster_id
        self.bookie_id = bookie_id
        self.principals = Principals()
        self.denied: Counter[str] = Counter()
        """Refusals since the start, each of :data:`DENIAL_REASONS`."""
        self._gates: dict[Gate, None] = {}
        self._decoy_seed = secrets.token_bytes(32)

    def update(self, principals: Principals) -> None:
        """The principals have changed: those of whom something else is true now connect again, or no more."""
        changed = principals.changed_since(self.principals)
        self.principals = principals
        for gate in [gate for gate in self._gates if gate.name in changed]:
            gate.end()

    def gate(self, end: Callable[[OctavoError], None]) -> "Gate":
        """The gate of a new connection. ``end`` closes it, telling the client why."""
        return Gate(self, end)

    def roles_of(self, name: str) -> frozenset[Role]:
        """The roles of a name in a verified certificate; empty for one that is not known, or is disabled."""
        if is_of_a_bookie(name):
            return BOOKIE_ROLES
        principal = self.principals.by_name.get(name)
        return frozenset() if principal is None or principal.disabled else principal.roles

    def find(self, name: str) -> tuple[Verifier, tuple[str, ...]]:
        """The verifier of a principal's key and its roles; no roles for one that cannot be authenticated by a key."""
        principal = self.principals.by_name.get(name)
        if principal is None or principal.disabled or principal.verifier is None:
            return decoy(self._decoy_seed, name), ()
        return principal.verifier, principal.role_names()

    def roles_by_key(self, key: Key) -> frozenset[Role]:
        """The roles of the principal that this is the key of; empty if it is the key of none. For clients that send
        their key itself, over TLS: those of the administration interface."""
        verifier, roles = self.find(key.name)
        known = hmac.compare_digest(verifier_of(key.secret).stored_key, verifier.stored_key)
        return frozenset(map(Role, roles)) if known else frozenset()

    def enter(self, gate: "Gate") -> None:
        """The gate knows its principal."""
        self._gates[gate] = None

    def leave(self, gate: "Gate") -> None:
        """Its connection is lost."""
        self._gates.pop(gate, None)


class Gate:
    """The gate of one connection: knows its principal, and what the connection may ask."""

    __slots__ = ("_access", "_end", "_login", "_rights", "name", "peer")

    def __init__(self, access: Access, end: Callable[[OctavoError], None]) -> None:
        self._access = access
        self._end = end
        self._login: BookieLogin | None = None
        self._rights = _NO_RIGHTS
        self.name: str | None = None
        """The principal; None while it is not known."""
        self.peer = "?"
        """``HOST:PORT`` of the client."""

    def greeted(self, names: tuple[str, ...]) -> Mapping[str, bytes]:
        """The client has sent its hello; its certificate has these names. Returns what the bookie's hello says of it:
        extensions."""
        for name in names:
            roles = self._access.roles_of(name)
            if roles:
                self._enter(name, roles, "certificate")
                return {EXTENSION_PRINCIPAL: name.encode()}
        if names:
            self._access.denied["certificate"] += 1
            known = ", ".join(map(principal_uri, names))
            self._access.audit.refused("authenticate", "certificate", peer=self.peer, certificate=known[:200])
            return {EXTENSION_DENIED: f"the certificate's {known} is no principal of this cluster".encode()[:1000]}
        return {EXTENSION_DENIED: b"the client has given neither a certificate of this cluster nor a key"}

    @property
    def may_repair(self) -> bool:
        """Whether the principal may read private ledgers without their keys (rule S3)."""
        return Right.REPAIR in self._rights

    def check(self, request: Request) -> None:
        """Raises :class:`UnauthorizedError` unless the connection may ask this."""
        needed = right_needed(request)
        if needed is None or needed in self._rights:
            return
        self._access.denied["role"] += 1
        ledger_id = getattr(request, "ledger_id", None)
        self._access.audit.refused(
            "request", "role", principal=self.name, peer=self.peer, operation=request.op.name, ledger=ledger_id
        )
        if self.name is None:
            raise UnauthorizedError(
                f"bookie {self._access.bookie_id} requires authentication before {request.op.name}",
                may_have_happened=False,
            )
        raise UnauthorizedError(
            f"{self.name} may not ask bookie {self._access.bookie_id} for {request.op.name}: its roles lack the right "
            f"to {needed.value}",
            may_have_happened=False,
        )

    def authenticate(self, request: Authenticate) -> AuthenticateAnswer:
        """A step of proving who the client is. Raises :class:`UnauthorizedError`; the connection must end then."""
        if self._login is None:
            access = self._access
            self._login = BookieLogin(access.find, cluster_id=access.cluster_id, bookie_id=access.bookie_id)
        try:
            answer = self._login.received(request, secrets.token_bytes(NONCE_BYTES))
        except UnauthorizedError:
            self._access.denied["key"] += 1
            self._access.audit.refused("authenticate", "key", peer=self.peer, name=request.name)
            raise
        if answer.complete:
            self._enter(request.name, frozenset(map(Role, answer.roles)), "key")
        return answer

    def end(self) -> None:
        """The principal has changed."""
        self._rights = _NO_RIGHTS
        self._end(UnauthorizedError(f"the roles or the key of {self.name} have changed: connect again"))

    def leave(self) -> None:
        """The connection is lost."""
        self._access.leave(self)

    def _enter(self, name: str, roles: frozenset[Role], by: str) -> None:
        self.name = name
        self._access.audit.note("authenticate", principal=name, peer=self.peer, by=by)
        self._rights = rights_of(roles)
        self._access.enter(self)
