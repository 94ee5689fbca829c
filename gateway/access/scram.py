"""The messages of SCRAM-SHA-256 as a server reads and writes them (RFC 5802, section 7; RFC 7677). Pure.

======================  ================================================================================
message                 form
======================  ================================================================================
client, first           `n,,n=NAME,r=NONCE`, perhaps with extensions behind it
server, first           `r=NONCE OF BOTH,s=SALT,i=ROUNDS`
client, last            `c=biws,r=NONCE OF BOTH,p=PROOF`, perhaps with extensions before the proof
server, last            `v=SIGNATURE`
======================  ================================================================================

Both sides sign the first client's message without its beginning, the server's, and the last client's without its proof,
with commas between them. Binding to a TLS channel (`p=` at the beginning) is not offered, and refused. Extensions are
signed with the rest and have no meaning here, but for `m=`, which asks to refuse what is not understood.
"""

import base64
import binascii
from typing import Final, NamedTuple

MESSAGE_BYTES_MAX: Final = 2048
"""Names have 64 characters, nonces some dozens."""

NONCE_CHARACTERS_MAX: Final = 512


class MalformedScramError(Exception):
    """A message is not of the form that its step has."""


class ClientFirst(NamedTuple):
    """The first message of a client."""

    beginning: str
    """What says how the channel is bound, with the name as which to act."""
    name: str
    nonce: str
    bare: str
    """The message without its beginning, which both sides sign."""


class ClientLast(NamedTuple):
    """The last message of a client."""

    beginning: bytes
    """That of the first message, repeated."""
    nonce: str
    proof: bytes
    signed: str
    """The message without its proof."""


def read_first(message: bytes) -> ClientFirst:
    """The first message.

    Raises:
        MalformedScramError: It is none.
    """
    text = _text(message)
    binding, _, rest = text.partition(",")
    act_as, comma, bare = rest.partition(",")
    if binding not in {"n", "y"} or not comma or (act_as and not act_as.startswith("a=")):
        raise MalformedScramError("the first message begins with n,, for no binding to the TLS channel")
    parts = bare.split(",")
    if len(parts) < 2:
        raise MalformedScramError("the first message has a name and a nonce")
    name, nonce = _name(_value(parts[0], "n")), _nonce(_value(parts[1], "r"))
    if act_as and _name(act_as[2:]) != name:
        raise MalformedScramError("a client can act as the principal only whose key it has")
    return ClientFirst(f"{binding},{act_as},", name, nonce, bare)


def write_first(nonce: str, salt: bytes, rounds: int) -> bytes:
    """The server's first message. ``nonce``: that of both sides."""
    return f"r={nonce},s={base64.b64encode(salt).decode('ascii')},i={rounds}".encode()


def read_last(message: bytes) -> ClientLast:
    """The last message.

    Raises:
        MalformedScramError: It is none.
    """
    text = _text(message)
    signed, comma, proof = text.rpartition(",")
    parts = signed.split(",")
    if not comma or len(parts) < 2:
        raise MalformedScramError("the last message has a beginning, a nonce and a proof")
    beginning, nonce = _decoded(_value(parts[0], "c")), _nonce(_value(parts[1], "r"))
    return ClientLast(beginning, nonce, _decoded(_value(proof, "p")), signed)


def write_last(signature: bytes) -> bytes:
    """The server's last message."""
    return b"v=" + base64.b64encode(signature)


def signed_bytes(first: ClientFirst, server_first: bytes, last: ClientLast) -> bytes:
    """The bytes that both sides sign."""
    return b",".join((first.bare.encode(), server_first, last.signed.encode()))


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise MalformedScramError(f"a message of {len(message)} bytes; the limit is {MESSAGE_BYTES_MAX}")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise MalformedScramError("a message is not UTF-8") from error


def _value(part: str, letter: str) -> str:
    if not part.startswith(f"{letter}="):
        raise MalformedScramError(f"{letter}= is missing where it must be")
    return part[2:]


def _name(value: str) -> str:
    """The name behind its form: commas and equal signs are `=2C` and `=3D`."""
    pieces = value.split("=")
    name = pieces[0]
    for piece in pieces[1:]:
        replaced = {"2C": ",", "3D": "="}.get(piece[:2])
        if replaced is None:
            raise MalformedScramError("a name has = only in =2C and =3D")
        name += replaced + piece[2:]
    if not name:
        raise MalformedScramError("the name is empty")
    return name


def _nonce(value: str) -> str:
    if not 0 < len(value) <= NONCE_CHARACTERS_MAX or not all("!" <= one <= "~" for one in value):
        raise MalformedScramError(f"a nonce has 1 to {NONCE_CHARACTERS_MAX} printable ASCII characters")
    return value


def _decoded(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as error:
        raise MalformedScramError("what must be base64 is not") from error
