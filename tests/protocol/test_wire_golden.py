"""The bytes of the wire, pinned: what one version sends every later one must understand.

``pytest tests/protocol --rewrite`` writes tests/golden/protocol again after an intended change.
"""

from pathlib import Path

import pytest
from octavo.protocol.entries import Digest, Opener
from octavo.protocol.frames import FrameDecoder, frame_of, unpack_body
from octavo.protocol.messages import (
    Message,
    Request,
    decode_hello,
    decode_reply,
    decode_request,
    encode_error,
    encode_hello,
)
from octavo.protocol.packs import decode_done, decode_pack, encode_done, pack_head, tail_of
from octavo.protocol.pushes import decode_pushes, encode_pushes
from support import wire
from support.golden import FOLDER, bytes_in, check_golden, hex_lines, readable

REQUEST_ID = 17


def frame(body: bytes) -> bytes:
    return frame_of(body)


def described(title: str, message: Message) -> str:
    """The value of a message, a line for each field; bytes in hexadecimal."""

    def show(value: object) -> str:
        if isinstance(value, bytes):
            return value.hex() or "no bytes"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(show, value)) + "]"
        return repr(value)

    lines = [f"{name} = {show(getattr(message, name))}" for name in message.names]
    return "\n".join([f"{title} {type(message).__name__}", *lines])


def only_body(data: bytes) -> bytes:
    decoder = FrameDecoder()
    (body,) = map(bytes, decoder.feed(data))
    assert decoder.buffered_bytes == 0
    return body


@pytest.mark.parametrize("name", wire.EXAMPLES)
def test_frame_of_every_message(name: str, pytestconfig: pytest.Config) -> None:
    message = wire.EXAMPLES[name]
    kind = "request" if isinstance(message, Request) else "reply to request"
    text = readable(described(f"{kind} {REQUEST_ID}:", message)) + "\n" + hex_lines(frame(message.encode(REQUEST_ID)))
    check_golden(pytestconfig, f"protocol/{name}.hex", text + "\n")
    values = unpack_body(only_body(bytes_in((FOLDER / f"protocol/{name}.hex").read_text())))
    decoded = decode_request(values) if isinstance(message, Request) else decode_reply(values)
    assert decoded == (REQUEST_ID, message)


def test_frame_of_a_hello(pytestconfig: pytest.Config) -> None:
    text = readable(described("first frame:", wire.HELLO)) + "\n" + hex_lines(frame(encode_hello(wire.HELLO)))
    check_golden(pytestconfig, "protocol/hello.hex", text + "\n")
    assert decode_hello(unpack_body(only_body(bytes_in((FOLDER / "protocol/hello.hex").read_text())))) == wire.HELLO


@pytest.mark.parametrize("name", wire.REFUSALS)
def test_frame_of_a_refusal(name: str, pytestconfig: pytest.Config) -> None:
    refusal = wire.REFUSALS[name]
    error = refusal.error
    title = (
        f"refusal of request {refusal.request_id} ({refusal.op.name}): {type(error).__name__}: {error.message}\n"
        f"may_have_happened = {error.may_have_happened}"
    )
    body = encode_error(refusal.request_id, refusal.op, error)
    check_golden(pytestconfig, f"protocol/{name}.hex", readable(title) + "\n" + hex_lines(frame(body)) + "\n")
    request_id, decoded = decode_reply(unpack_body(only_body(bytes_in((FOLDER / f"protocol/{name}.hex").read_text()))))
    assert request_id == refusal.request_id
    assert type(decoded) is type(error)
    assert (str(decoded), getattr(decoded, "may_have_happened", None)) == (str(error), error.may_have_happened)


@pytest.mark.parametrize("digest", list(Digest))
def test_bytes_of_a_sealed_entry(digest: Digest, pytestconfig: pytest.Config) -> None:
    name = f"protocol/sealed_entry_{digest.name.lower()}.hex"
    (sealed,) = wire.sealed(digest, 4, b"hello")
    title = (
        f"ledger {wire.LEDGER}, password {wire.PASSWORD!r}, digest {digest.value}: entry 4, LAC 3, length 45, b'hello'"
    )
    check_golden(pytestconfig, name, readable(title) + "\n" + hex_lines(sealed) + "\n")
    opened = Opener(wire.LEDGER, digest, wire.SECRETS).open(bytes_in((FOLDER / name).read_text()))
    assert opened == (wire.LEDGER, 4, b"hello", 3, 45, wire.SEALED_AT_MS)


@pytest.mark.parametrize("digest", list(Digest))
def test_bytes_of_a_sealed_explicit_lac(digest: Digest, pytestconfig: pytest.Config) -> None:
    name = f"protocol/sealed_lac_{digest.name.lower()}.hex"
    title = f"ledger {wire.LEDGER}, password {wire.PASSWORD!r}, digest {digest.value}: explicit LAC 5, length 60"
    sealed = wire.sealed_lac(digest, 5, 60)
    check_golden(pytestconfig, name, readable(title) + "\n" + hex_lines(sealed) + "\n")
    opener = Opener(wire.LEDGER, digest, wire.SECRETS)
    assert opener.open_last_add_confirmed(bytes_in((FOLDER / name).read_text())) == (5, 60)


def test_frame_of_a_pack(pytestconfig: pytest.Config) -> None:
    requests = [one for name in ("add", "write_lac", "force") if isinstance(one := wire.EXAMPLES[name], Request)]
    tails = [tail_of(request) for request in requests]
    title = "\n".join(
        described(f"pack, request {number}:", request) for number, request in enumerate(requests, REQUEST_ID)
    )
    check_golden(
        pytestconfig,
        "protocol/pack.hex",
        readable(title) + "\n" + hex_lines(b"".join((pack_head(REQUEST_ID, tails), *tails))) + "\n",
    )
    body = only_body(bytes_in((FOLDER / "protocol/pack.hex").read_text()))
    pack = decode_pack(unpack_body(body))
    assert (pack.first_id, pack.requests) == (REQUEST_ID, requests)


def test_frame_of_an_answer_to_packs(pytestconfig: pytest.Config) -> None:
    title = "answer to packs: requests 17, 18 and 300 have succeeded"
    check_golden(
        pytestconfig,
        "protocol/pack_answer.hex",
        readable(title) + "\n" + hex_lines(frame(encode_done([300, 18, 17]))) + "\n",
    )
    body = only_body(bytes_in((FOLDER / "protocol/pack_answer.hex").read_text()))
    assert list(decode_done(unpack_body(body))) == [(17, 18), (300, 300)]


def test_no_golden_file_is_left_over() -> None:
    names = {*wire.EXAMPLES, *wire.REFUSALS, "hello", "pack", "pack_answer", "pushes"}
    names |= {f"sealed_{what}_{digest.name.lower()}" for what in ("entry", "lac") for digest in Digest}
    assert {Path(path).stem for path in (FOLDER / "protocol").iterdir()} == names


def test_frame_of_pushes(pytestconfig: pytest.Config) -> None:
    title = "\n".join(f"push: {push!r}" for push in wire.PUSHES)
    text = readable(title) + "\n" + hex_lines(frame(encode_pushes(wire.PUSHES))) + "\n"
    check_golden(pytestconfig, "protocol/pushes.hex", text)
    body = only_body(bytes_in((FOLDER / "protocol/pushes.hex").read_text()))
    assert decode_pushes(unpack_body(body)) == wire.PUSHES
