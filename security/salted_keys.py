"""Keys of principals as clients of Kafka's protocol prove them: SCRAM-SHA-256 (RFC 5802 and 7677). Pure.

The password of such a client is the secret of a key as its file has it, behind the name and the colon. SCRAM salts and
stretches it. A key is random, so 8,192 rounds, which Kafka's servers ask for at least, add nothing, and cost a client
ten milliseconds when it connects. What the cluster keeps is not enough to authenticate.
"""

import hashlib
import hmac
from typing import Final, NamedTuple

from octavo.security.scram import Key

MECHANISM: Final = "SCRAM-SHA-256"
SALT_BYTES: Final = 16
ROUNDS: Final = 8192


class SaltedVerifier(NamedTuple):
    """The form of a key that the cluster keeps for SCRAM-SHA-256."""

    salt: bytes
    rounds: int
    stored_key: bytes
    server_key: bytes


def password_of(key: Key) -> str:
    """The password with which clients of Kafka's protocol use a key."""
    return key.to_text().partition(":")[2]


def salted_verifier(password: str, salt: bytes, rounds: int = ROUNDS) -> SaltedVerifier:
    """The form of a password to keep. Takes some milliseconds."""
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return SaltedVerifier(salt, rounds, hashlib.sha256(client_key).digest(), server_key)


def salted_decoy(seed: bytes, name: str) -> SaltedVerifier:
    """A verifier for a name that does not exist, the same each time: a client cannot tell names from the exchange."""
    made = hmac.digest(seed, b"salt " + name.encode(), "sha256")
    stored_key, server_key = (hmac.digest(seed, kind + name.encode(), "sha256") for kind in (b"stored ", b"server "))
    return SaltedVerifier(made[:SALT_BYTES], ROUNDS, stored_key, server_key)


def is_proof(verifier: SaltedVerifier, signed: bytes, proof: bytes) -> bool:
    """Whether the client knows the password. ``signed``: the messages that both sides have seen."""
    signature = hmac.digest(verifier.stored_key, signed, "sha256")
    if len(proof) != len(signature):
        return False
    client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
    return hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key)


def server_signature(verifier: SaltedVerifier, signed: bytes) -> bytes:
    """The proof that the server keeps the verifier."""
    return hmac.digest(verifier.server_key, signed, "sha256")
