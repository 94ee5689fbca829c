"""The client's side of SCRAM-SHA-256 (RFC 5802 and 7677), with the key of a principal. Pure: the nonce is an argument.

The server's signature is verified: a server that knows nothing of the key can send a salt, and say that all is well.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

from octavo.protocol.errors import UnauthorizedError
from octavo.security.salted_keys import password_of
from octavo.security.scram import Key

ROUNDS_MIN: Final = 4096
"""Below it, the RFC refuses."""

ROUNDS_MAX: Final = 1_000_000
"""Half a second. A server that asks for more wants to keep the client busy."""

_BEGINNING: Final = "n,,"


class SaltedLogin:
    """The exchange of one connection: :meth:`first`, :meth:`last`, :meth:`check`, in this order."""

    def __init__(self, key: Key, nonce: str) -> None:
        """``nonce``: printable ASCII characters without a comma, which no server can guess."""
        self._password = password_of(key).encode()
        self._nonce = nonce
        self._bare = f"n={key.name},r={nonce}"  # no name has a character that would need an escape
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """The first message."""
        return f"{_BEGINNING}{self._bare}".encode()

    def last(self, server_first: bytes) -> bytes:
        """The proof that the client has the key.

        Raises:
            UnauthorizedError: The server's message is not one, or asks for what a client must not do.
        """
        nonce, salt, rounds = self._read(server_first)
        salted = hashlib.pbkdf2_hmac("sha256", self._password, salt, rounds)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        without_proof = f"c={base64.b64encode(_BEGINNING.encode()).decode()},r={nonce}"
        signed = b",".join((self._bare.encode(), server_first, without_proof.encode()))
        mask = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(one ^ other for one, other in zip(client_key, mask, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), signed, "sha256")
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_last: bytes) -> None:
        """Raise :class:`UnauthorizedError` unless the server has proved that it keeps the verifier of the key."""
        signature = _decoded(server_last[2:]) if server_last.startswith(b"v=") else b""
        if self._signature is None or not hmac.compare_digest(signature, self._signature):
            raise UnauthorizedError("the server has not proved that it knows this principal's key")

    def _read(self, server_first: bytes) -> tuple[str, bytes, int]:
        try:
            parts = server_first.decode("ascii").split(",")
        except UnicodeDecodeError:
            parts = []
        if len(parts) < 3 or [part[:2] for part in parts[:3]] != ["r=", "s=", "i="]:
            raise UnauthorizedError("the server's answer is not one of SCRAM")
        nonce, salt, rounds = (part[2:] for part in parts[:3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise UnauthorizedError("the server's answer belongs to another exchange")
        digits = rounds if rounds.isascii() and rounds.isdigit() and len(rounds) <= len(str(ROUNDS_MAX)) else "0"
        if not ROUNDS_MIN <= int(digits) <= ROUNDS_MAX:
            raise UnauthorizedError(f"the server asks for {rounds[:20]} rounds, not {ROUNDS_MIN} to {ROUNDS_MAX}")
        decoded = _decoded(salt.encode())
        if not decoded:
            raise UnauthorizedError("the server's answer has no salt")
        return nonce, decoded, int(digits)


def _decoded(text: bytes) -> bytes:
    """Nothing for what is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""
