"""Authentication as each side sees it, message by message. Pure: nonces are arguments.

The client sends its name and a nonce; the bookie answers with its own nonce; the client sends its proof; the bookie
answers with its signature and the client's roles. A step out of order, or one that does not fit, is an
:class:`UnauthorizedError`.
"""

from collections.abc import Callable
from typing import Final

from octavo.protocol.errors import UnauthorizedError
from octavo.protocol.messages import Authenticate, AuthenticateAnswer
from octavo.security.scram import (
    MECHANISM,
    NONCE_BYTES,
    Exchange,
    Key,
    Verifier,
    client_proof,
    is_proof,
    is_signature,
    server_signature,
)

WRONG_KEY: Final = "the name or the key is wrong, or the principal is disabled"
"""The one text for all three: a client must not learn which names exist."""


class ClientLogin:
    """The client's side, of one connection. :meth:`first`, then :meth:`answered` until it returns None."""

    def __init__(self, key: Key, *, cluster_id: str, bookie_id: str, nonce: bytes) -> None:
        self._key = key
        self._cluster_id = cluster_id
        self._bookie_id = bookie_id
        self._nonce = nonce
        self._exchange: Exchange | None = None
        self.roles: tuple[str, ...] = ()
        """The roles that the bookie has granted, at the end."""

    def first(self) -> Authenticate:
        """The first message."""
        return Authenticate(MECHANISM, self._key.name, self._nonce)

    def answered(self, answer: AuthenticateAnswer) -> Authenticate | None:
        """The next message; None: both sides are authenticated. Raises :class:`UnauthorizedError`."""
        if self._exchange is None:
            if answer.complete or len(answer.data) != NONCE_BYTES:
                raise UnauthorizedError(f"bookie {self._bookie_id} skipped a step of the authentication")
            self._exchange = Exchange(self._key.name, self._cluster_id, self._bookie_id, self._nonce, answer.data)
            return Authenticate(MECHANISM, self._key.name, client_proof(self._key.secret, self._exchange))
        if not answer.complete or not is_signature(self._key.secret, self._exchange, answer.data):
            raise UnauthorizedError(
                f"bookie {self._bookie_id} does not know the key of {self._key.name}: it is not what it claims to be"
            )
        self.roles = answer.roles
        return None


class BookieLogin:
    """The bookie's side, of one connection. After an error the connection must be closed."""

    def __init__(
        self, find: Callable[[str], tuple[Verifier, tuple[str, ...]]], *, cluster_id: str, bookie_id: str
    ) -> None:
        """``find`` gives the verifier of a name and its roles: no roles for one that may not be authenticated."""
        self._find = find
        self._cluster_id = cluster_id
        self._bookie_id = bookie_id
        self._exchange: Exchange | None = None
        self.name: str | None = None
        """The principal, once it is authenticated."""

    def received(self, request: Authenticate, nonce: bytes) -> AuthenticateAnswer:
        """The answer to a message; ``nonce`` is fresh. Raises :class:`UnauthorizedError`."""
        if request.mechanism != MECHANISM:
            raise UnauthorizedError(
                f"this bookie does not support authentication by {request.mechanism!r}; use {MECHANISM}"
            )
        if self.name is not None:
            raise UnauthorizedError(f"this connection is authenticated already, as {self.name}")
        exchange = self._exchange
        if exchange is None:
            if len(request.data) != NONCE_BYTES:
                raise UnauthorizedError(f"a nonce has {NONCE_BYTES} bytes")
            self._exchange = Exchange(request.name, self._cluster_id, self._bookie_id, request.data, nonce)
            return AuthenticateAnswer(False, (), nonce)
        verifier, roles = self._find(exchange.name)
        if request.name != exchange.name or not is_proof(verifier, exchange, request.data) or not roles:
            raise UnauthorizedError(WRONG_KEY)
        self.name = exchange.name
        return AuthenticateAnswer(True, roles, server_signature(verifier, exchange))
