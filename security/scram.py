"""Keys of principals, and how two sides prove to one another that they know one. Pure.

It is the exchange of SCRAM-SHA-256 (RFC 5802 and 7677) with one difference: the salted password is replaced by 32
random bytes, so no password has to be stretched. Bookies keep two hashes of a key, which are not enough to authenticate
as its principal. Each side contributes a nonce, so nothing that was recorded can be used again; and both sides sign
what they said, the ids of cluster and bookie included, so nothing can be passed on to another bookie.
"""

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple

from octavo.protocol.errors import InvalidArgumentError
from octavo.security.names import is_principal_name

MECHANISM = "OCTAVO-SCRAM-SHA-256"
SECRET_BYTES = 32
NONCE_BYTES = 32
_HASH_BYTES = 32


class Key(NamedTuple):
    """A principal's name and its secret, as the principal keeps them."""

    name: str
    secret: bytes

    def __repr__(self) -> str:
        return f"Key(name={self.name!r})"  # a secret must not get into a log

    def to_text(self) -> str:
        """``NAME:SECRET``, the line of a key file."""
        return f"{self.name}:{base64.urlsafe_b64encode(self.secret).decode('ascii').rstrip('=')}"

    @classmethod
    def from_text(cls, text: str) -> "Key":
        """From the line of a key file. Raises :class:`InvalidArgumentError`, which never shows the secret."""
        name, separator, encoded = text.strip().partition(":")
        try:
            secret = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            secret = b""
        if not separator or not is_principal_name(name) or len(secret) != SECRET_BYTES:
            raise InvalidArgumentError("a key is one line NAME:SECRET, as `octavo access key NAME` prints it")
        return cls(name, secret)


class Verifier(NamedTuple):
    """The form of a key that a bookie keeps."""

    stored_key: bytes
    server_key: bytes


class Exchange(NamedTuple):
    """The values that both sides sign. The names of the fields are those of the messages that carry them."""

    name: str
    cluster_id: str
    bookie_id: str
    client_nonce: bytes
    server_nonce: bytes

    def signed(self) -> bytes:
        """The same bytes on both sides, and others for every other exchange."""
        parts = (
            MECHANISM.encode(),
            self.name.encode(),
            self.cluster_id.encode(),
            self.bookie_id.encode(),
            self.client_nonce,
            self.server_nonce,
        )
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def verifier_of(secret: bytes) -> Verifier:
    """The form of a key to keep."""
    return Verifier(hashlib.sha256(_client_key(secret)).digest(), _mac(secret, b"Server Key"))


def client_proof(secret: bytes, exchange: Exchange) -> bytes:
    """The proof that the client knows the key."""
    client_key = _client_key(secret)
    stored_key = hashlib.sha256(client_key).digest()
    return _xor(client_key, _mac(stored_key, exchange.signed()))


def is_proof(verifier: Verifier, exchange: Exchange, proof: bytes) -> bool:
    """Whether the client knows the key."""
    if len(proof) != _HASH_BYTES:
        return False
    client_key = _xor(proof, _mac(verifier.stored_key, exchange.signed()))
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)


def server_signature(verifier: Verifier, exchange: Exchange) -> bytes:
    """The proof that the bookie keeps the verifier of the key."""
    return _mac(verifier.server_key, exchange.signed())


def is_signature(secret: bytes, exchange: Exchange, signature: bytes) -> bool:
    """Whether the bookie keeps the verifier of the key."""
    return hmac.compare_digest(server_signature(verifier_of(secret), exchange), signature)


def decoy(seed: bytes, name: str) -> Verifier:
    """A verifier for a name that does not exist, the same each time: a client cannot tell names from the exchange."""
    return verifier_of(_mac(seed, name.encode()))


def _client_key(secret: bytes) -> bytes:
    return _mac(secret, b"Client Key")


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
