"""Compressed records, unpacked within a bound. Pure.

gzip needs Python alone. snappy, lz4 and zstd need pyarrow, which is imported when a batch asks for it. Snappy comes in
two forms: one block, as librdkafka writes it, or blocks with their lengths behind a magic number, as Java does.
"""

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError

_NONE: Final = 0
_GZIP: Final = 1
_SNAPPY: Final = 2
_NAMES: Final = {_GZIP: "gzip", _SNAPPY: "snappy", 3: "lz4", 4: "zstd"}

_GZIP_FORM: Final = 31
"""For zlib: gzip's header, and the largest window."""

_PIECE_BYTES: Final = 1024 * 1024

_BLOCKS_MAGIC: Final = b"\x82SNAPPY\x00"
_BLOCKS_FROM: Final = 16
"""Behind the magic number and two versions."""
_BLOCK_LENGTH: Final = Struct(">i")


class MissingCodecError(Exception):
    """A module that unpacks records is not installed. The text names the extra that brings it."""


def unpacked(compression: int, data: bytes, bytes_max: int) -> bytes:
    """The records of a batch with this compression, of at most ``bytes_max`` bytes.

    Raises:
        RefusedError: The data are damaged, or are too large when they are not compressed.
        MissingCodecError: A module is missing.
    """
    if compression == _NONE:
        return data
    if compression == _GZIP:
        return _gunzipped(data, bytes_max)
    if compression == _SNAPPY:
        return _unsnapped(data, bytes_max)
    return _streamed(_NAMES[compression], data, bytes_max)


def _gunzipped(data: bytes, bytes_max: int) -> bytes:
    pieces = []
    left = bytes_max
    while data:
        member = zlib.decompressobj(_GZIP_FORM)
        try:
            piece = member.decompress(data, left + 1)
        except zlib.error as error:
            raise _damaged("gzip") from error
        if len(piece) > left:
            raise _too_large(bytes_max)
        if not member.eof:
            raise _damaged("gzip")
        pieces.append(piece)
        left -= len(piece)
        data = member.unused_data
    return b"".join(pieces)


def _streamed(name: str, data: bytes, bytes_max: int) -> bytes:
    arrow = _arrow(name)

    def read() -> bytes:
        pieces = []
        left = bytes_max
        with arrow.CompressedInputStream(arrow.BufferReader(data), name) as stream:
            while piece := stream.read(_PIECE_BYTES):
                if len(piece) > left:
                    raise _too_large(bytes_max)
                pieces.append(piece)
                left -= len(piece)
        return b"".join(pieces)

    return _guarded(name, arrow, read)


def _unsnapped(data: bytes, bytes_max: int) -> bytes:
    name = _NAMES[_SNAPPY]
    arrow = _arrow(name)
    blocks = _snappy_blocks(data)
    sizes = [_snappy_size(block) for block in blocks]
    if sum(sizes) > bytes_max:
        raise _too_large(bytes_max)

    def unpack() -> bytes:
        pairs = zip(blocks, sizes, strict=True)
        return b"".join(arrow.decompress(block, size, codec=name, asbytes=True) for block, size in pairs if size)

    return _guarded(name, arrow, unpack)


def _snappy_blocks(data: bytes) -> list[bytes]:
    if not data.startswith(_BLOCKS_MAGIC):
        return [data]
    blocks = []
    at = _BLOCKS_FROM
    while at < len(data):
        start = at + _BLOCK_LENGTH.size
        length = _BLOCK_LENGTH.unpack_from(data, at)[0] if start <= len(data) else -1
        at = start + length
        if length < 0 or at > len(data):
            raise _damaged(_NAMES[_SNAPPY])
        blocks.append(data[start:at])
    return blocks


def _snappy_size(block: bytes) -> int:
    """Of a block when it is not compressed: the number before it, seven bits in each byte, the lowest first."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return size
    raise _damaged(_NAMES[_SNAPPY])


def _arrow(name: str) -> Any:
    try:
        import pyarrow  # noqa: PLC0415 - a third of a second, for compressed batches alone
    except ModuleNotFoundError as error:
        text = f"records compressed with {name} need pyarrow: `pip install pyarrow`, or Octavo with its extra `spark`"
        raise MissingCodecError(text) from error
    return pyarrow


def _guarded(name: str, arrow: Any, unpack: Callable[[], bytes]) -> bytes:
    try:
        return unpack()
    except (arrow.ArrowException, OSError, ValueError) as error:
        raise _damaged(name) from error


def _damaged(name: str) -> RefusedError:
    return RefusedError(Code.INVALID_RECORD, f"the records cannot be unpacked with {name}")


def _too_large(bytes_max: int) -> RefusedError:
    return RefusedError(Code.INVALID_RECORD, f"the records have more than {bytes_max} bytes when they are unpacked")
