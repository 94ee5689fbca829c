"""Frames: a 4-byte big-endian length, then that many bytes holding one msgpack array.

Pure: bytes in, msgpack arrays out, whatever way the bytes were cut. The only failure is :class:`ProtocolError`; after one
the stream cannot be resynchronised, and a decoder stays failed.
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgpack
from octavo.protocol.errors import ProtocolError
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_BYTES_MAX

LENGTH = struct.Struct(">I")

_ARRAY_ITEMS_MAX = ENTRIES_PER_FRAME_MAX
_MAP_ITEMS_MAX = 256
"""Bounds what a hostile header makes the parser reserve; the only map is INFO's."""


def pack_body(values: tuple[Any, ...]) -> bytes:
    """The body of a frame. Raises :class:`ProtocolError` when it is over the frame limit: the sender's own mistake."""
    body: bytes = msgpack.packb(values)
    if len(body) > FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame of {len(body)} bytes is over the limit of {FRAME_BYTES_MAX}")
    return body


def pack_frame(values: tuple[Any, ...]) -> bytes:
    """A whole frame, length included."""
    body = pack_body(values)
    return LENGTH.pack(len(body)) + body


def unpack_body(body: bytes | memoryview) -> list[Any]:
    """The array in a frame's body. Raises :class:`ProtocolError` for anything else."""
    try:
        values = msgpack.unpackb(
            body,
            strict_map_key=True,
            max_array_len=_ARRAY_ITEMS_MAX,
            max_map_len=_MAP_ITEMS_MAX,
            max_ext_len=0,
        )
    except Exception as error:  # the parser's errors share no base class; none may take a peer down
        raise ProtocolError(f"malformed frame: {type(error).__name__}") from error
    if type(values) is not list:
        raise ProtocolError("a frame holds one array")
    return values


class FrameDecoder:
    """Cuts a stream of bytes into frame bodies. Each byte is copied at most once."""

    __slots__ = ("_buffered", "_chunks", "_failure", "_needed")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._needed = LENGTH.size
        self._failure: ProtocolError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of an unfinished frame held here; at most one frame's."""
        return self._buffered

    def feed(self, data: bytes) -> Iterator[memoryview | bytes]:
        """The bodies that ``data`` completes, in order; consume them before feeding again.

        Raises :class:`ProtocolError` at the first frame whose length is over the limit or zero, after the bodies before
        it, and on every call from then on.
        """
        if self._failure is not None:
            raise self._failure
        if self._chunks:
            self._chunks.append(data)
            self._buffered += len(data)
            if self._buffered < self._needed:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._buffered = 0
        view = memoryview(data)
        at, end = 0, len(data)
        self._needed = LENGTH.size
        while end - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data, at)
            if not 0 < size <= FRAME_BYTES_MAX:
                self._failure = ProtocolError(
                    f"a frame of {size} bytes is outside the limits of 1 to {FRAME_BYTES_MAX}"
                )
                raise self._failure
            if end - at < LENGTH.size + size:
                self._needed = LENGTH.size + size
                break
            yield view[at + LENGTH.size : at + LENGTH.size + size]
            at += LENGTH.size + size
        if at < end:
            self._chunks.append(data[at:])
            self._buffered = end - at
