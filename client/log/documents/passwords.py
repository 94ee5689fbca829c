"""How the metadata of a log check a password, without keeping it. Pure.

The segments of a log have the log's password; each ledger derives its own keys from it. The log itself keeps a salted
hash of a key of its own, so that a wrong password is found before anything is fenced (rule F0).
"""

import hashlib
import hmac


def log_verifier(password: bytes, log_id: str, salt: bytes) -> bytes:
    """The verifier that the list of the log keeps: a salted hash, from which neither password nor key can be had."""
    key = hmac.digest(hashlib.sha256(password).digest(), b"octavo log key 1 " + log_id.encode("ascii"), "sha256")
    return hashlib.sha256(salt + key).digest()


def log_password_matches(verifier: bytes, password: bytes, log_id: str, salt: bytes) -> bool:
    """Whether the log was created with this password. Takes the same time either way."""
    return hmac.compare_digest(verifier, log_verifier(password, log_id, salt))
