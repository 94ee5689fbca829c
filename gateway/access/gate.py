"""The gate of one connection: who the client is, and what it may ask (rule K14). Pure."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from octavo.gateway.access.sasl import Known, SaslExchange
from octavo.gateway.codes import Code, RefusedError
from octavo.security.topic_rights import Grants, TopicRight

_NO_GRANTS: Final = Grants()

_REFUSALS: Final = {
    TopicRight.GROUP: (Code.GROUP_AUTHORIZATION_FAILED, "group"),
}
"""The code for a missing right, and what it is a right to. All others are to topics."""


class Peer(NamedTuple):
    """The client's side of a connection."""

    address: str
    """`HOST:PORT`."""
    over_tls: bool
    names: tuple[str, ...] = ()
    """The names of Octavo in its verified certificate."""


class Owner(Protocol):
    """The part that the gates of a gateway share."""

    def known(self, name: str) -> Known:
        """As :meth:`Finder.known`."""

    def grants_of(self, name: str) -> Grants | None:
        """The grants of a principal; None: there is none that may be authenticated."""

    def entered(self, gate: "Gate") -> None:
        """The gate knows its principal."""

    def left(self, gate: "Gate") -> None:
        """Its connection is lost."""

    def nonce(self) -> str:
        """Characters that no client can guess."""

    def noted(self, event: str, **facts: Any) -> None:
        """Something was done: a line of the audit log."""

    def refused(self, event: str, reason: str, **facts: Any) -> None:
        """Something was refused, for one of the reasons that are counted: a line of the audit log."""


class Gate:
    """See the module. ``end`` closes the connection at once."""

    __slots__ = ("_end", "_grants", "_owner", "_sasl", "is_open", "is_over", "name", "peer")

    def __init__(self, owner: Owner | None, peer: Peer, end: Callable[[], object]) -> None:
        """``owner`` None: the gateway asks no client who it is."""
        self._owner = owner
        self._end = end
        self._sasl = None if owner is None else SaslExchange(owner, over_tls=peer.over_tls)
        self._grants = Grants.everything() if owner is None else _NO_GRANTS
        self.peer = peer
        self.name: str | None = None
        """The principal; None while it is not known."""
        self.is_open = owner is None
        """Whether requests are served."""
        self.is_over = False
        """Whether the connection is to be closed, once the client has the answer."""
        if owner is not None:
            self._greet(owner)

    def _greet(self, owner: Owner) -> None:
        for name in self.peer.names:
            grants = owner.grants_of(name)
            if grants is not None:
                self._enter(owner, name, grants, "certificate")
                return
        if self.peer.names:
            names = ", ".join(self.peer.names)[:200]
            owner.refused("authenticate", "certificate", peer=self.peer.address, certificate=names)

    # --- authentication -----------------------------------------------------------------------------------------------

    def choose(self, mechanism: str) -> tuple[Code, tuple[str, ...]]:
        """SaslHandshake: a code, and the mechanisms that there are."""
        if self._sasl is None or self.is_open:
            return Code.ILLEGAL_SASL_STATE, ()
        try:
            self._sasl.choose(mechanism)
        except RefusedError as error:
            self._refused(error)
            return error.code, self._sasl.mechanisms
        return Code.NONE, self._sasl.mechanisms

    def authenticate(self, message: bytes) -> tuple[Code, str | None, bytes]:
        """SaslAuthenticate: a code, a text, and the answer to the message."""
        owner, sasl = self._owner, self._sasl
        if owner is None or sasl is None:
            return Code.ILLEGAL_SASL_STATE, "this gateway asks no client who it is", b""
        if self.is_open:
            return Code.ILLEGAL_SASL_STATE, f"the connection is authenticated already, as {self.name}", b""
        try:
            answer = sasl.received(message, owner.nonce())
            if sasl.name is not None:
                grants = owner.grants_of(sasl.name)
                assert grants is not None, "the principal was there in this step"
                self._enter(owner, sasl.name, grants, str(sasl.mechanism))
        except RefusedError as error:
            self._refused(error)
            return error.code, error.text, b""
        return Code.NONE, None, answer

    def _refused(self, error: RefusedError) -> None:
        owner, sasl = self._owner, self._sasl
        assert owner is not None, "a gateway that asks no client refuses none"
        assert sasl is not None, "as above"
        self.is_over = True
        owner.refused("authenticate", "key", peer=self.peer.address, name=sasl.asked_name or None, code=error.code.name)

    def _enter(self, owner: Owner, name: str, grants: Grants, by: str) -> None:
        self.name = name
        self._grants = grants
        self.is_open = True
        owner.noted("authenticate", principal=name, peer=self.peer.address, by=by)
        owner.entered(self)

    def refuse_stranger(self, operation: str) -> None:
        """Note that a client has asked for something before it was authenticated."""
        assert self._owner is not None, "only a gateway that asks clients who they are has strangers"
        self._owner.refused("request", "right", peer=self.peer.address, operation=operation)

    # --- rights -------------------------------------------------------------------------------------------------------

    def may(self, right: TopicRight, name: str) -> bool:
        """Whether the client has a right to the topic or group with this name."""
        return self._grants.allow(right, name)

    def check(self, right: TopicRight, name: str, operation: str) -> None:
        """Raise :class:`RefusedError` unless the client has a right to the topic or group with this name."""
        if not self._grants.allow(right, name):
            code, kind = _REFUSALS.get(right, (Code.TOPIC_AUTHORIZATION_FAILED, "topic"))
            raise self._denied(code, right, operation, kind, name)

    def check_some(self, right: TopicRight, operation: str) -> None:
        """Raise :class:`RefusedError` unless the client has a right to something."""
        if not self._grants.allow_some(right):
            raise self._denied(Code.CLUSTER_AUTHORIZATION_FAILED, right, operation, "any topic", "")

    def check_everything(self, operation: str) -> None:
        """Raise :class:`RefusedError` unless the client has the role admin."""
        if not self._grants.is_everything:
            raise self._denied(Code.CLUSTER_AUTHORIZATION_FAILED, None, operation, "the cluster", "")

    def _denied(self, code: Code, right: TopicRight | None, operation: str, kind: str, name: str) -> RefusedError:
        owner = self._owner
        lacks = "the role admin" if right is None else f"the right to {right.value}"
        if owner is not None:
            fact = {kind: name} if name else {}
            owner.refused("request", "right", principal=self.name, peer=self.peer.address, operation=operation, **fact)
        return RefusedError(code, f"{self.name} may not ask for {operation}: it lacks {lacks} {kind} {name}".rstrip())

    def done(self, operation: str, **facts: object) -> None:
        """Note in the audit log that the client has changed something."""
        if self._owner is not None:
            self._owner.noted(operation, principal=self.name, peer=self.peer.address, **facts)

    # --- the end ------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Close the connection: its principal has changed, its time to authenticate is over, or its place is needed."""
        self._grants, self.is_open, self.is_over = _NO_GRANTS, False, True
        self._end()

    def make_way(self) -> None:
        """As :meth:`end`."""
        self.end()

    def leave(self) -> None:
        """The connection is lost."""
        if self._owner is not None:
            self._owner.left(self)


OPEN_GATE: Final = Gate(None, Peer("", over_tls=False), lambda: None)
"""Lets every request through."""
