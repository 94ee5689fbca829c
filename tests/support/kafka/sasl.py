"""The client's side of SASL for tests, made without the code of the server (RFC 5802)."""

import base64
import hashlib
import hmac
from typing import Any

from octavo.gateway.codes import Code
from octavo.metadata.cluster.principals import Principal, Principals
from octavo.security.roles import Role
from octavo.security.salted_keys import SALT_BYTES, password_of, salted_verifier
from octavo.security.scram import Key, verifier_of
from octavo.security.topic_rights import Grant, TopicRight
from support.kafka.client import KafkaClient

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


def key_of(name: str) -> Key:
    """The key of a principal of tests."""
    return Key(name, hashlib.sha256(name.encode()).digest())


def principal(name: str, *rights: str, roles: frozenset[Role] = frozenset(), **fields: Any) -> Principal:
    """A principal with its key, and rights like ``read orders.*``."""
    key = key_of(name)
    grants = frozenset(Grant(TopicRight(right), pattern) for right, pattern in (text.split(" ", 1) for text in rights))
    salted = salted_verifier(password_of(key), name.encode().ljust(SALT_BYTES, b"s")[:SALT_BYTES], rounds=4096)
    return Principal(
        name=name, roles=roles, verifier=verifier_of(key.secret), **{"salted": salted, "grants": grants, **fields}
    )


def principals(*several: Principal) -> Principals:
    """These, as a cluster has them."""
    made = Principals()
    for one in several:
        made = made.with_principal(one)
    return made


class ScramClient:
    """The client of RFC 5802, message by message."""

    def __init__(self, name: str, password: str, nonce: str = "rOprNGfwEbeRWgbNEkqO", beginning: str = "n,,") -> None:
        self._password = password
        self._nonce = nonce
        self._beginning = beginning
        self._bare = f"n={name},r={nonce}"
        self.signature = b""

    def first(self) -> bytes:
        return f"{self._beginning}{self._bare}".encode()

    def last(self, server_first: bytes) -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self._nonce)
        assert len(fields["r"]) > len(self._nonce)
        salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
        beginning = base64.b64encode(self._beginning.encode()).decode()
        signed = f"c={beginning},r={fields['r']}"
        whole = f"{self._bare},{server_first.decode()},{signed}".encode()
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        mask = hmac.digest(hashlib.sha256(client_key).digest(), whole, "sha256")
        proof = bytes(one ^ other for one, other in zip(client_key, mask, strict=True))
        self.signature = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), whole, "sha256")
        return f"{signed},p={base64.b64encode(proof).decode()}".encode()


async def handshake(client: KafkaClient, mechanism: str) -> tuple[Code, tuple[str, ...]]:
    """The answer to SaslHandshake."""
    answer = await client.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    return Code(answer.error_code.value), tuple(answer.mechanisms)


async def send_token(client: KafkaClient, token: bytes) -> tuple[Code, str | None, bytes]:
    """The answer to SaslAuthenticate."""
    answer = await client.ask(SASL_AUTHENTICATE, 1, {"auth_bytes": token})
    return Code(answer.error_code.value), answer.error_message, answer.auth_bytes


async def authenticate(client: KafkaClient, name: str, password: str | None = None) -> tuple[Code, str | None]:
    """Authenticate by SCRAM-SHA-256."""
    password = password_of(key_of(name)) if password is None else password
    assert (await handshake(client, "SCRAM-SHA-256"))[0] is Code.NONE
    scram = ScramClient(name, password)
    code, text, server_first = await send_token(client, scram.first())
    if code is Code.NONE:
        code, text, signature = await send_token(client, scram.last(server_first))
        if code is Code.NONE:
            assert signature == b"v=" + base64.b64encode(scram.signature)
    return code, text


async def authenticate_plain(client: KafkaClient, name: str, password: str) -> tuple[Code, str | None]:
    """Authenticate by PLAIN."""
    code, _ = await handshake(client, "PLAIN")
    if code is not Code.NONE:
        return code, None
    code, text, _ = await send_token(client, f"\0{name}\0{password}".encode())
    return code, text


async def connected_as(port: int, name: str) -> KafkaClient:
    """A connection of a principal."""
    client = await KafkaClient.connect(port)
    assert await authenticate(client, name) == (Code.NONE, None)
    return client
