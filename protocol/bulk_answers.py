"""READ answers of many entries of one size, decoded without an object for each entry: for bulk readers.

Entries of one size stand at even distances in a frame, each behind the same few bytes of msgpack. So they are taken out
of it as one piece, msgpack's bytes included, and everything that is the same for all is checked by slices with that
stride. Pure. What :func:`decode_bulk_answer` does not take is for :func:`octavo.protocol.messages.decode_reply`, which
takes the same frames and says what is wrong with others.
"""

from collections.abc import Iterator, Sequence
from typing import overload

import msgpack
from octavo.protocol.errors import CODE_OK
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX
from octavo.protocol.messages import CONNECTION_REQUEST_ID, Op, ReadAnswer

BULK_BYTES_MIN = 64 * 1024
"""Smaller frames are decoded faster by the ordinary decoder."""

_HEAD_BYTES_MAX = 64
"""Most bytes before the entries: five numbers and the beginnings of two lists."""

_TAIL_BYTES_MAX = 16
"""Most bytes after the entries if no id is unknown: an empty list and one number."""

_PREFIX_BYTES = {0xC4: 2, 0xC5: 3, 0xC6: 5}
"""First byte of a msgpack byte string -> bytes in front of its contents."""


class EvenEntries(Sequence[bytes]):
    """Sealed entries of one size as they stood in a frame; made into bytes when they are asked for."""

    __slots__ = ("_count", "data", "entry_bytes", "prefix")

    def __init__(self, data: bytes, prefix: bytes, entry_bytes: int) -> None:
        self.data = data
        """Each entry with :attr:`prefix` in front."""
        self.prefix = prefix
        self.entry_bytes = entry_bytes
        self._count = len(data) // (len(prefix) + entry_bytes)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(self._count))]
        stop = (range(self._count)[index] + 1) * (len(self.prefix) + self.entry_bytes)
        return self.data[stop - self.entry_bytes : stop]

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(self._count))


def decode_bulk_answer(body: memoryview) -> tuple[int, ReadAnswer] | None:
    """Request id and answer of a frame that is a READ answer of many entries of one size, none of them unknown.

    None for any other frame, malformed ones included. The entries of the answer are :class:`EvenEntries`.
    """
    if len(body) < BULK_BYTES_MIN:
        return None
    try:
        return _decode(body)
    except (ValueError, msgpack.UnpackException):
        return None


def _decode(body: memoryview) -> tuple[int, ReadAnswer] | None:
    head = msgpack.Unpacker()
    head.feed(body[:_HEAD_BYTES_MAX])
    if head.read_array_header() != 3 + len(ReadAnswer.checks):
        return None
    request_id, op, code, last_covered = (head.unpack() for _ in range(4))
    if {type(request_id), type(op), type(code)} != {int} or (op, code) != (Op.READ, CODE_OK):
        return None
    count, start = head.read_array_header(), head.tell()
    entries = _even_entries(body, start, count)
    if entries is None or request_id <= CONNECTION_REQUEST_ID:
        return None
    # The other fields, by the checks of `from_fields`.
    unknown, lac = msgpack.unpackb(b"\x92" + body[start + len(entries.data) :])
    check_last, _, check_unknown, check_lac = ReadAnswer.checks
    if check_unknown(unknown):
        return None
    return request_id, ReadAnswer(check_last(last_covered), entries, (), check_lac(lac))


def _even_entries(body: memoryview, start: int, count: int) -> EvenEntries | None:
    """The list of ``count`` entries that begins at ``start`` and ends just before the end; None if it is another."""
    prefix_bytes = _PREFIX_BYTES.get(body[start])
    if prefix_bytes is None or not 0 < count <= ENTRIES_PER_FRAME_MAX:
        return None
    prefix = bytes(body[start : start + prefix_bytes])
    entry_bytes = int.from_bytes(prefix[1:])
    stride = prefix_bytes + entry_bytes
    stop = start + count * stride
    if not len(body) - _TAIL_BYTES_MAX <= stop < len(body):
        return None
    data = bytes(body[start:stop])
    if any(data[at::stride].count(byte) != count for at, byte in enumerate(prefix)):
        return None
    return EvenEntries(data, prefix, entry_bytes)
