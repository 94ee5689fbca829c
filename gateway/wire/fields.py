"""The fields of requests and answers that are read and written by hand: Produce and Fetch. Pure.

Kafka's protocol has two forms of strings and arrays. In the older one a length is an int16 or an int32, and -1 means
null. In the *flexible* one it is a varint of the length + 1, 0 means null, and each structure ends with tagged fields,
which are skipped here.

Everything is read from a view of the request, and nothing is copied but names. A length is compared with the bytes that
are left before anything is made of it.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from struct import Struct
from typing import Final, Protocol

_INT8, _INT16, _INT32, _INT64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")

_ID_BYTES: Final = 16

_VARINT_BYTES_MAX: Final = 5
"""Lengths are below 2^32."""


class MalformedError(Exception):
    """The request is not of the form that its version has: the connection is closed, as its bytes have no meaning."""


class Reader:
    """Reads fields one after another."""

    __slots__ = ("_at", "_flexible", "_view")

    def __init__(self, view: memoryview, *, flexible: bool) -> None:
        self._view = view
        self._flexible = flexible
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes that were not read."""
        return len(self._view) - self._at

    def _take(self, size: int) -> memoryview:
        if not 0 <= size <= self.left:
            raise MalformedError(f"a field of {size} bytes, and {self.left} are left")
        start = self._at
        self._at += size
        return self._view[start : self._at]

    def _number(self, form: Struct) -> int:
        number: int = form.unpack(self._take(form.size))[0]
        return number

    def int8(self) -> int:
        """A signed byte."""
        return self._number(_INT8)

    def int16(self) -> int:
        """Two bytes, signed."""
        return self._number(_INT16)

    def int32(self) -> int:
        """Four bytes, signed."""
        return self._number(_INT32)

    def int64(self) -> int:
        """Eight bytes, signed."""
        return self._number(_INT64)

    def varint(self) -> int:
        """An unsigned number, seven bits a byte, the lowest first."""
        value = 0
        for place in range(_VARINT_BYTES_MAX):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise MalformedError("a length has too many bytes")

    def _length(self, form: Struct) -> int:
        return self.varint() - 1 if self._flexible else self._number(form)

    def string(self) -> str | None:
        """A name, or None for null."""
        length = self._length(_INT16)
        if length < 0:
            return None
        try:
            return str(self._take(length), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedError("a name is not UTF-8") from error

    def data(self) -> memoryview | None:
        """Bytes, as a view; None for null."""
        length = self._length(_INT32)
        return None if length < 0 else self._take(length)

    def id_bytes(self) -> bytes | None:
        """The 16 bytes of an id; None for zeros, which mean null."""
        value = bytes(self._take(_ID_BYTES))
        return value if any(value) else None

    def array[T](self, item: Callable[[], T]) -> list[T]:
        """The items of an array; none for null."""
        return self.array_or_null(item) or []

    def array_or_null[T](self, item: Callable[[], T]) -> list[T] | None:
        """The items of an array; None for null."""
        length = self._length(_INT32)
        if length < 0:
            return None
        if length > self.left:
            raise MalformedError(f"an array of {length} items, and {self.left} bytes are left")
        return [item() for _ in range(length)]

    def topics[T](self, partition: Callable[[str], T]) -> list[T]:
        """An array of topics, each a name and an array of partitions: what ``partition`` reads of each of them, given
        the name."""

        def topic() -> list[T]:
            name = self.string() or ""
            partitions = self.array(lambda: partition(name))
            self.end_of_structure()
            return partitions

        return list(chain.from_iterable(self.array(topic)))

    def end_of_structure(self) -> None:
        """Skip the tagged fields of a flexible structure."""
        if self._flexible:
            for _ in range(self.varint()):
                self.varint()
                self._take(self.varint())

    def end(self) -> None:
        """Raise :class:`MalformedError` if anything is left."""
        if self.left:
            raise MalformedError(f"{self.left} bytes follow the last field")


class OfTopic(Protocol):
    """The answer for a partition of a topic."""

    @property
    def topic(self) -> str: ...


class Writer:
    """Writes fields one after another. Long bytes stay the objects that they are."""

    __slots__ = ("_flexible", "_pieces", "_recent")

    def __init__(self, *, flexible: bool) -> None:
        self._flexible = flexible
        self._pieces: list[bytes | bytearray] = []
        self._recent = bytearray()

    def int8(self, value: int) -> None:
        """A signed byte."""
        self._recent += _INT8.pack(value)

    def int16(self, value: int) -> None:
        """Two bytes, signed."""
        self._recent += _INT16.pack(value)

    def int32(self, value: int) -> None:
        """Four bytes, signed."""
        self._recent += _INT32.pack(value)

    def int64(self, value: int) -> None:
        """Eight bytes, signed."""
        self._recent += _INT64.pack(value)

    def varint(self, value: int) -> None:
        """An unsigned number."""
        while value >= 0x80:
            self._recent.append(value & 0x7F | 0x80)
            value >>= 7
        self._recent.append(value)

    def _length(self, length: int, form: Struct) -> None:
        if self._flexible:
            self.varint(length + 1)
        else:
            self._recent += form.pack(length)

    def string(self, text: str | None) -> None:
        """A name, or null."""
        encoded = None if text is None else text.encode()
        self._length(-1 if encoded is None else len(encoded), _INT16)
        self._recent += encoded or b""

    def array(self, length: int) -> None:
        """The beginning of an array; its items follow."""
        self._length(length, _INT32)

    def topics[T: OfTopic](self, answers: Iterable[T], write: Callable[[T], None]) -> None:
        """An array of topics, each a name and an array of partitions, which ``write`` writes."""
        by_topic: dict[str, list[T]] = {}
        for answer in answers:
            by_topic.setdefault(answer.topic, []).append(answer)
        self.array(len(by_topic))
        for name, partitions in by_topic.items():
            self.string(name)
            self.array(len(partitions))
            for partition in partitions:
                write(partition)
            self.end_of_structure()

    def data(self, pieces: list[bytes]) -> None:
        """Bytes, the pieces one after another."""
        self._length(sum(map(len, pieces)), _INT32)
        self._pieces.append(self._recent)
        self._pieces += pieces
        self._recent = bytearray()

    def end_of_structure(self) -> None:
        """No tagged fields."""
        if self._flexible:
            self._recent.append(0)

    def pieces(self) -> list[bytes | bytearray]:
        """Everything that was written."""
        return [*self._pieces, self._recent]
