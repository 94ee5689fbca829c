"""Compressed records, unpacked within a bound. Pure.

gzip needs Python alone. snappy, lz4 and zstd need cramjam, which is imported when a batch asks for it. Snappy comes in
two forms: one block, as librdkafka writes it, or blocks with their lengths behind a magic number, as Java does.
"""

import zlib
from struct import Struct
from typing import Any, Final

from octavo.gateway.codes import Code, RefusedError

_NONE: Final = 0
_GZIP: Final = 1
_SNAPPY: Final = 2
_NAMES: Final = {_GZIP: "gzip", _SNAPPY: "snappy", 3: "lz4", 4: "zstd"}

_GZIP_FORM: Final = 31
"""For zlib: gzip's header, and the largest window."""

_NO_ROOM: Final = "failed to write whole buffer"
"""The words of cramjam for more data than there is room for."""

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
    cramjam = _cramjam(name)
    room = bytearray(bytes_max)  # the system gives memory to the part that is written
    try:
        size = getattr(cramjam, name).decompress_into(data, room)
    except cramjam.DecompressionError as error:
        if _NO_ROOM in str(error):
            raise _too_large(bytes_max) from error
        raise _damaged(name) from error
    with memoryview(room) as view:
        return bytes(view[:size])


def _unsnapped(data: bytes, bytes_max: int) -> bytes:
    name = _NAMES[_SNAPPY]
    cramjam = _cramjam(name)
    blocks = _snappy_blocks(data)
    if sum(_snappy_size(block) for block in blocks) > bytes_max:
        raise _too_large(bytes_max)
    try:
        return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)
    except cramjam.DecompressionError as error:
        raise _damaged(name) from error


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


def _cramjam(name: str) -> Any:
    try:
        import cramjam  # noqa: PLC0415 - for compressed batches alone
    except ModuleNotFoundError as error:
        text = f"records compressed with {name} need cramjam: `pip install cramjam`, or Octavo with its extra `kafka`"
        raise MissingCodecError(text) from error
    return cramjam


def _damaged(name: str) -> RefusedError:
    return RefusedError(Code.INVALID_RECORD, f"the records cannot be unpacked with {name}")


def _too_large(bytes_max: int) -> RefusedError:
    return RefusedError(Code.INVALID_RECORD, f"the records have more than {bytes_max} bytes when they are unpacked")
