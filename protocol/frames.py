"""Frames: a 4-byte big-endian length, then that many bytes holding one msgpack array.

Pure: bytes in, msgpack arrays out, however the bytes were split. The only failure is :class:`ProtocolError`; after
one the stream cannot be resynchronised, and a decoder stays failed.
"""

import struct
from collections.abc import Iterator
from typing import Any

import msgpack
from octavo.protocol.errors import ProtocolError
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_BYTES_MAX

LENGTH = struct.Struct(">I")

_LISTS = (list, tuple)

_MAP_ITEMS_MAX = 256
"""Most facts in a map; the only map is INFO's."""

_ITEMS_MAX = 6 * ENTRIES_PER_FRAME_MAX
"""Most items in all lists and maps of one frame, the lists themselves counted: a READ answer with the most entries and
the most runs of unknown ids has just under five for each. Without it a frame of nothing but empty lists would take 64
times its own size in memory."""


def pack_body(values: tuple[Any, ...]) -> bytes:
    """The body of a frame. Raises :class:`ProtocolError` when it is over a limit of the wire: the sender's own
    mistake."""
    body: bytes = msgpack.Packer().pack(values)
    if len(body) > ENTRIES_PER_FRAME_MAX:  # in fewer bytes there is no room for more items
        _check_limits(values, len(body))
    return body


def _check_limits(values: tuple[Any, ...], body_bytes: int) -> None:
    for value in values:
        if isinstance(value, _LISTS) and len(value) > ENTRIES_PER_FRAME_MAX:
            raise ProtocolError(f"a list of {len(value)} items is over the limit of {ENTRIES_PER_FRAME_MAX}; split it")
    if body_bytes > FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame of {body_bytes} bytes is over the limit of {FRAME_BYTES_MAX}")


def frame_of(body: bytes) -> bytes:
    """A whole frame: the length, then the body."""
    return LENGTH.pack(len(body)) + body


def unpack_body(body: bytes | bytearray | memoryview) -> list[Any]:
    """The array in a frame's body. Raises :class:`ProtocolError` for anything else."""
    hooks: dict[str, Any] = {}
    if len(body) > _ITEMS_MAX:  # in fewer bytes there is no room for more items
        hooks = {"list_hook": (count := _ItemCount()), "object_hook": count}
    try:
        values = msgpack.unpackb(
            body,
            strict_map_key=True,
            max_array_len=ENTRIES_PER_FRAME_MAX,
            max_map_len=_MAP_ITEMS_MAX,
            max_ext_len=0,
            **hooks,
        )
    except Exception as error:  # the parser's errors share no base class; none may take a peer down
        raise ProtocolError(f"malformed frame: {type(error).__name__}") from error
    if type(values) is not list:
        raise ProtocolError("a frame holds one array")
    return values


class _ItemCount:
    """Counts the items of one frame as its lists and maps are completed."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _ITEMS_MAX

    def __call__[Container: (list[Any], dict[Any, Any])](self, container: Container) -> Container:
        self._left -= len(container) + 1
        if self._left < 0:
            raise ValueError("too many items")
        return container


class FrameDecoder:
    """Splits a stream of bytes into frame bodies, however it was split when it arrived.

    Bytes of an unfinished frame are kept in one buffer that grows as they arrive: it holds as much as the peer
    has sent, not as much as it has announced, and small pieces cost no more than large ones.
    """

    __slots__ = ("_buffer", "_failure", "_needed", "buffered_bytes")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = LENGTH.size
        self._failure: str | None = None
        self.buffered_bytes = 0
        """Bytes of an unfinished frame held here: always fewer than the largest frame with its length."""

    def clear(self) -> None:
        """Give back the memory of an unfinished frame: its peer is gone."""
        self._take()

    def _take(self) -> bytearray:
        """The bytes of the unfinished frame, which are no longer held here."""
        taken, self._buffer, self.buffered_bytes = self._buffer, bytearray(), 0
        return taken

    def _hold(self, data: bytes | memoryview) -> int:
        """Hold bytes of an unfinished frame. Returns how many are held now."""
        self._buffer += data
        self.buffered_bytes = held = len(self._buffer)
        return held

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The bodies that ``data`` completes, in order; consume them all before feeding again.

        Raises :class:`ProtocolError` at the first frame whose length is zero or over the limit, after the bodies
        before it, and on every call from then on.
        """
        if self._failure is not None:
            raise ProtocolError(self._failure)
        arrived: bytes | bytearray = data
        if self._buffer:
            if self._hold(data) < self._needed:
                return
            arrived = self._take()  # the bodies given out are views into it
        view = memoryview(arrived)
        start, stop = 0, len(arrived)
        self._needed = LENGTH.size
        while stop - start >= LENGTH.size:
            (size,) = LENGTH.unpack_from(arrived, start)
            if not 0 < size <= FRAME_BYTES_MAX:
                self._failure = f"a frame of {size} bytes is outside the limits of 1 to {FRAME_BYTES_MAX}"
                raise ProtocolError(self._failure)
            body_start = start + LENGTH.size
            if stop < body_start + size:
                self._needed = LENGTH.size + size
                break
            yield view[body_start : body_start + size]
            start = body_start + size
        if start < stop:
            self._hold(view[start:])
