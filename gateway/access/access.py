"""Access to a gateway: the principals, as known last, and the clients that are not known yet (rule K14).

A connection that is not authenticated has a share of the places, makes way when that is used up, and ends when its time
is over. When a principal is changed, disabled or removed, its connections end: what was handed over is added all the
same, and the client, which connects again, finds its rights of now.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from octavo.gateway.access.gate import Gate, Peer
from octavo.gateway.access.sasl import Known
from octavo.metadata.cluster.principals import Principals
from octavo.security.audit import Audit
from octavo.security.names import is_of_a_bookie
from octavo.security.roles import Role
from octavo.security.salted_keys import salted_decoy
from octavo.security.scram import decoy
from octavo.security.strangers import Strangers
from octavo.security.topic_rights import Grants

DENIAL_REASONS: Final = ("certificate", "key", "right")
"""What was not enough when a client was refused."""

AUTHENTICATION_SECONDS: Final = 10.0
"""A client that is not authenticated by then loses its connection."""


_NONCE_BYTES: Final = 24


class GatewayAccess:
    """See the module."""

    def __init__(
        self,
        audit: Audit | None = None,
        *,
        required: bool = False,
        connections_max: int = 2000,
        authentication_seconds: float = AUTHENTICATION_SECONDS,
    ) -> None:
        """``required``: whether clients must be principals; else every client may do everything."""
        self.audit = audit or Audit()
        self.required = required
        self.principals = Principals()
        self.refusals: Counter[str] = Counter()
        """Since the start, each of :data:`DENIAL_REASONS`."""
        self._strangers = Strangers(connections_max)
        self._authentication_seconds = authentication_seconds
        self._timers: dict[Gate, asyncio.TimerHandle] = {}
        self._gates: dict[Gate, None] = {}
        self._grants: dict[str, Grants] = {}
        self._decoy_seed = secrets.token_bytes(32)

    @property
    def strangers(self) -> int:
        """Connections that are not authenticated, where that is required."""
        return len(self._strangers)

    def gate(self, peer: Peer, end: Callable[[], object]) -> Gate:
        """The gate of a new connection. ``end`` closes it."""
        if not self.required:
            return Gate(None, peer, end)
        gate = Gate(self, peer, end)
        if not gate.is_open:
            self._strangers.enter(gate)
            loop = asyncio.get_running_loop()
            self._timers[gate] = loop.call_later(self._authentication_seconds, gate.end)
        return gate

    def give_way(self) -> bool:
        """The oldest connection that is not authenticated ends, as its place is needed; False if there is none."""
        return self._strangers.give_way()

    def update(self, principals: Principals) -> None:
        """The principals have changed: connections of those of whom something else is true now end."""
        changed = principals.changed_since(self.principals)
        self.principals = principals
        for name in changed:
            self._grants.pop(name, None)
        for gate in [gate for gate in self._gates if gate.name in changed]:
            gate.end()

    # --- what gates ask -----------------------------------------------------------------------------------------------

    def grants_of(self, name: str) -> Grants | None:
        """The grants of a principal; None: there is none that may be authenticated."""
        principal = self.principals.by_name.get(name)
        if principal is None or principal.disabled or is_of_a_bookie(name):
            return None
        found = self._grants.get(name)
        if found is None:
            found = self._grants[name] = Grants(principal.grants, everything=Role.ADMIN in principal.roles)
        return found

    def known(self, name: str) -> Known:
        """The verifiers of a name, whether it exists or not."""
        principal = self.principals.by_name.get(name)
        seed = self.principals.decoy_seed or self._decoy_seed
        verifier = None if principal is None else principal.verifier
        salted = None if principal is None else principal.salted
        return Known(
            self.grants_of(name) is not None,
            decoy(self._decoy_seed, name) if verifier is None else verifier,
            salted_decoy(seed, name) if salted is None else salted,
        )

    def entered(self, gate: Gate) -> None:
        """The gate knows its principal."""
        self._no_stranger(gate)
        self._gates[gate] = None

    def left(self, gate: Gate) -> None:
        """Its connection is lost."""
        self._no_stranger(gate)
        self._gates.pop(gate, None)

    def nonce(self) -> str:
        """Characters that no client can guess."""
        return secrets.token_urlsafe(_NONCE_BYTES)

    def noted(self, event: str, **facts: Any) -> None:
        """Something was done: a line of the audit log."""
        self.audit.note(event, **facts)

    def refused(self, event: str, reason: str, **facts: Any) -> None:
        """Something was refused, for one of :data:`DENIAL_REASONS`: a line of the audit log."""
        self.refusals[reason] += 1
        self.audit.refused(event, reason, **facts)

    def _no_stranger(self, gate: Gate) -> None:
        self._strangers.leave(gate)
        timer = self._timers.pop(gate, None)
        if timer is not None:
            timer.cancel()
