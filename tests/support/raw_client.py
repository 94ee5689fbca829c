"""A client of one connection that says exactly what a test wants said, byte for byte if need be."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.errors import OctavoError
from octavo.protocol.frames import LENGTH, frame_of, unpack_body
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.messages import (
    MAGIC,
    PROTOCOL_VERSION,
    Add,
    AddFlag,
    Hello,
    Read,
    ReadFlag,
    Reply,
    Request,
    decode_hello,
    decode_reply,
    encode_hello,
)
from octavo.protocol.packs import decode_done, is_pack, pack_head, tail_of

PASSWORD = b"secret"


def key_of(ledger_id: int, password: bytes = PASSWORD) -> bytes:
    return derive_secrets(password, LedgerId(ledger_id)).ledger_key


def seal(
    ledger_id: int, first: int, payloads: Sequence[bytes], *, lac: int | None = None, password: bytes = PASSWORD
) -> list[bytes]:
    """Sealed entries, as a writer makes them."""
    sealer = Sealer(LedgerId(ledger_id), Digest.CRC32C, derive_secrets(password, LedgerId(ledger_id)))
    return sealer.seal(
        EntryId(first), payloads, last_add_confirmed=None if lac is None else EntryId(lac), length=first, sealed_at_ms=0
    )


def seal_lac(ledger_id: int, lac: int) -> bytes:
    sealer = Sealer(LedgerId(ledger_id), Digest.CRC32C, derive_secrets(PASSWORD, LedgerId(ledger_id)))
    return sealer.seal_explicit_lac(EntryId(lac), length=lac, sealed_at_ms=0)


def add(ledger_id: int, entries: list[bytes], *, recovery: bool = False, key: bytes | None = None) -> Add:
    flags = AddFlag.RECOVERY if recovery else AddFlag.NONE
    return Add(ledger_id, key if key is not None else key_of(ledger_id), flags, 0, entries)


def read(ledger_id: int, first: int, last: int, *, fence: bool = False, bytes_max: int = 1 << 20) -> Read:
    flags = ReadFlag.FENCE if fence else ReadFlag.NONE
    return Read(ledger_id, key_of(ledger_id) if fence else b"", flags, 0, first, last, 1, (0,), 1000, bytes_max)


class RawClient:
    """One connection to a bookie; use it as a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._request_id = 0
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> "RawClient":
        self.reader, self.writer = await asyncio.open_connection(self._host, self._port, limit=1 << 24)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.writer.close()

    async def greet(self, *, bookie_id: str = "", cluster_id: str = "", versions: tuple[int, int] | None = None) -> Any:
        """Say hello; the bookie's answer."""
        low, high = versions or (PROTOCOL_VERSION, PROTOCOL_VERSION)
        self.send_body(encode_hello(Hello(MAGIC, low, high, "test", cluster_id, bookie_id, "boot", ())))
        return decode_hello(await self.receive())

    def pause_reading(self) -> None:
        """Take nothing from the socket, not even into the reader's buffer."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume_reading(self) -> None:
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    def send_body(self, body: bytes) -> None:
        self.writer.write(frame_of(body))

    def send(self, request: Request) -> int:
        self._request_id += 1
        self.send_body(request.encode(self._request_id))
        return self._request_id

    def send_pack(self, *requests: Request) -> list[int]:
        """Send the requests in one frame; their ids."""
        first_id = self._request_id + 1
        self._request_id += len(requests)
        self.send_raw_pack(first_id, *requests)
        return list(range(first_id, first_id + len(requests)))

    def send_raw_pack(self, first_id: int, *requests: Request) -> None:
        """As :meth:`send_pack`, with an id of the test's choice."""
        tails = [tail_of(request) for request in requests]
        self.writer.write(b"".join((pack_head(first_id, tails), *tails)))

    async def outcomes(self, request_ids: Iterable[int]) -> list[OctavoError | None]:
        """What became of requests that were sent in packs, by id: None for success, and the refusal otherwise. Fails if
        one is answered twice, or another request is answered."""
        request_ids = list(request_ids)
        found: dict[int, OctavoError | None] = {}
        while len(found) < len(request_ids):
            values = await self.receive()
            if is_pack(values):
                answered: list[tuple[int, OctavoError | None]] = [
                    (request_id, None) for first, last in decode_done(values) for request_id in range(first, last + 1)
                ]
            else:
                request_id, refusal = decode_reply(values)
                assert isinstance(refusal, OctavoError), "a success in a pack is answered by the packs' answer"
                answered = [(request_id, refusal)]
            for request_id, outcome in answered:
                assert request_id in request_ids, f"{request_id} is answered: {outcome!r}"
                assert request_id not in found, f"{request_id} is answered twice"
                found[request_id] = outcome
        return [found[request_id] for request_id in request_ids]

    async def ask_pack(self, *requests: Request) -> list[OctavoError | None]:
        """One pack, and what becomes of its requests; see :meth:`outcomes`."""
        return await self.outcomes(self.send_pack(*requests))

    async def receive(self) -> list[Any]:
        """The next frame's array. IncompleteReadError when the bookie has closed the connection."""
        (size,) = LENGTH.unpack(await self.reader.readexactly(LENGTH.size))
        return unpack_body(await self.reader.readexactly(size))

    async def receive_reply(self) -> tuple[int, Reply | OctavoError]:
        return decode_reply(await self.receive())

    async def ask(self, request: Request) -> Reply | OctavoError:
        """One request and its answer, when no other is outstanding."""
        request_id = self.send(request)
        answered, outcome = await self.receive_reply()
        assert answered == request_id
        return outcome
