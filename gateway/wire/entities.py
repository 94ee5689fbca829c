"""Requests and answers of all kinds but Produce and Fetch, whatever their version. Pure.

``kio`` has a class for each version of each request and answer, made of Kafka's own descriptions. Code of the gateway
knows one form of each: it reads a request's fields by name, with a default for those that an older version lacks
(:func:`field_of`), and gives the answer as a mapping of all fields. :func:`encode_answer` takes those that the version
has, and ``kio`` encodes them.

Requests are read here, by what those classes say. A server must skip tagged fields that it does not know, which
``kio`` refuses. The requests that are read here have none that it must know.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import cache
from io import BytesIO
from types import NoneType, UnionType
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.serial.errors import SerialError
from octavo.gateway.wire.fields import MalformedError, Reader

_METADATA: Final = 3

_request_schema: Final = cache(load_request_schema)
_answer_schema: Final = cache(load_response_schema)
"""``kio`` looks the class up among its modules each time."""

type Answer = Mapping[str, Any]
"""The fields of an answer. Structures within are mappings, too; a time is an int of milliseconds, an id 32 hexadecimal
digits."""


def decode_request(key: int, version: int, body: memoryview) -> Any:
    """The request behind its header.

    Raises:
        MalformedError: It is not of the form that the version has.
    """
    schema = _request_schema(key, version)
    reader = Reader(body, flexible=schema.__flexible__)
    try:
        request = _read_structure(cast(Hashable, schema))(reader)
    except OverflowError as error:
        raise MalformedError(f"request {key}, version {version}: {error!r}") from error
    if (key, version) not in _MAY_HAVE_MORE:
        reader.end()
    return request


_MAY_HAVE_MORE: Final = {(_METADATA, version) for version in range(9, 13)}
"""Requests behind which bytes are ignored, as Kafka does. To ask for all topics, librdkafka writes a length of 0 in the
older form: read in the newer one, that asks for all topics, with an unknown tagged field and one byte behind."""


def encode_request(key: int, version: int, fields: Answer) -> bytes:
    """A request behind its header, for a program that asks a gateway."""
    return _encoded(_request_schema(key, version), fields)


def decode_answer(key: int, version: int, body: bytes) -> Any:
    """The answer to such a request, behind its header.

    Raises:
        MalformedError: It is not of the form that the version has.
    """
    try:
        answer, _ = _answer_reader(key, version)(body, 0)
    except (SerialError, LookupError, ValueError, OverflowError) as error:
        raise MalformedError(f"answer to request {key}, version {version}: {error!r}") from error
    return answer


def encode_answer(key: int, version: int, answer: Answer) -> bytes:
    """The answer behind its header."""
    return _encoded(_answer_schema(key, version), answer)


def _encoded(schema: Any, values: Answer) -> bytes:
    buffer = BytesIO()
    _writer(schema)(buffer, _built(schema, values))
    return buffer.getvalue()


_MISSING: Final = object()


def field_of(structure: Any, name: str, default: Any) -> Any:
    """A field of a request, or the default where its version lacks it, or it is null."""
    value = getattr(structure, name, _MISSING)
    return default if value is _MISSING or value is None else value


# --- requests ---------------------------------------------------------------------------------------------------------

type _Read = Callable[[Reader], Any]


@cache
def _read_structure(schema: Any) -> _Read:
    """Reads a structure with these fields."""
    hints = get_type_hints(schema)
    reads = [(field.name, _read_field(hints[field.name], field.metadata.get("kafka_type"))) for field in fields(schema)]

    def read(reader: Reader) -> Any:
        values = {name: read_field(reader) for name, read_field in reads}
        reader.end_of_structure()
        return schema(**values)

    return read


def _read_field(hint: Any, kind: str | None) -> _Read:
    is_nullable = isinstance(hint, UnionType)
    if is_nullable:
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    read = _read_array(get_args(hint)[0], kind) if get_origin(hint) is tuple else _read_value(hint, kind)
    if is_nullable:
        return read

    def read_present(reader: Reader) -> Any:
        value = read(reader)
        if value is None:
            raise MalformedError("a field that must be there is null")
        return value

    return read_present


def _read_array(item: Any, kind: str | None) -> _Read:
    read_item = _read_field(item, kind)

    def read(reader: Reader) -> tuple[Any, ...] | None:
        items = reader.array_or_null(lambda: read_item(reader))
        return None if items is None else tuple(items)

    return read


def _read_value(hint: Any, kind: str | None) -> _Read:
    if kind is None:
        return _read_structure(hint)
    return _read_id(hint) if kind == "uuid" else _READ[kind]


def _read_id(make: Callable[..., Any]) -> _Read:
    def read(reader: Reader) -> Any:
        value = reader.id_bytes()
        return None if value is None else make(bytes=value)

    return read


def _read_bytes(reader: Reader) -> bytes | None:
    data = reader.data()
    return None if data is None else bytes(data)


_READ: Final[Mapping[str, _Read]] = {
    "bool": lambda reader: reader.int8() != 0,
    "int8": Reader.int8,
    "int16": Reader.int16,
    "int32": Reader.int32,
    "int64": Reader.int64,
    "string": Reader.string,
    "bytes": _read_bytes,
    "timedelta_i32": lambda reader: timedelta(milliseconds=reader.int32()),
    "timedelta_i64": lambda reader: timedelta(milliseconds=reader.int64()),
}
"""How a field of each kind is read."""


# --- answers ----------------------------------------------------------------------------------------------------------


@cache
def _answer_reader(key: int, version: int) -> Callable[[bytes, int], tuple[Any, int]]:
    return entity_reader(_answer_schema(key, version))


@cache
def _writer(schema: Any) -> Callable[[BytesIO, Any], None]:
    return entity_writer(schema)


def _built(schema: type[Any], values: Mapping[str, Any]) -> Any:
    return schema(
        **{name: make(values[name]) for name, make in _makers(cast(Hashable, schema)).items() if name in values}
    )


@cache
def _makers(schema: Any) -> dict[str, Callable[[Any], Any]]:
    """For each field of a class: makes its value of what the gateway gives."""
    hints = get_type_hints(schema)
    return {one.name: _maker(hints[one.name], one.metadata.get("kafka_type")) for one in fields(schema)}


def _maker(hint: Any, kind: str | None) -> Callable[[Any], Any]:
    if isinstance(hint, UnionType):
        (inner,) = (one for one in get_args(hint) if one is not NoneType)
        make = _maker(inner, kind)
        return lambda value: None if value is None else make(value)
    if get_origin(hint) is tuple:
        item = _maker(get_args(hint)[0], kind)
        return lambda values: tuple(item(value) for value in values)
    return _value_maker(hint, kind)


def _value_maker(hint: Any, kind: str | None) -> Callable[[Any], Any]:
    """Of what is no array and not null."""
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value: _built(hint, value)
    if hint is ErrorCode:
        return ErrorCode
    if kind == "uuid":
        return lambda value: hint(hex=value)
    if isinstance(hint, type) and issubclass(hint, timedelta):
        return lambda value: timedelta(milliseconds=value)
    return lambda value: value
