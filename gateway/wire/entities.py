"""Requests and answers that ``kio`` encodes and decodes, whatever their version. Pure.

``kio`` has a class for each version of each request. Code of the gateway knows one form of each: it reads a request's
fields by name, with a default for those that an older version lacks (:func:`field_of`), and gives the answer as a
mapping of all fields. :func:`encode_answer` takes those that the version has.

``kio`` refuses a request with a tagged field that it does not know, which a server must skip. So no flexible version of
these requests is offered.
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
from octavo.gateway.wire.fields import MalformedError

type Answer = Mapping[str, Any]
"""The fields of an answer. Structures within are mappings, too; a time is an int of milliseconds."""


def decode_request(key: int, version: int, body: memoryview) -> Any:
    """The request behind its header.

    Raises:
        MalformedError: It is not of the form that the version has.
    """
    read = _request_reader(key, version)
    try:
        request, size = read(bytes(body), 0)
    except (SerialError, LookupError, ValueError, OverflowError, MemoryError) as error:
        raise MalformedError(f"request {key}, version {version}: {error!r}") from error
    if size != len(body):
        raise MalformedError(f"request {key}, version {version}: {len(body) - size} bytes follow the last field")
    return request


def encode_request(key: int, version: int, fields: Answer) -> bytes:
    """A request behind its header, for a program that asks a gateway."""
    schema, write = _request_writer(key, version)
    buffer = BytesIO()
    write(buffer, _built(schema, fields))
    return buffer.getvalue()


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
    schema, write = _answer_writer(key, version)
    buffer = BytesIO()
    write(buffer, _built(schema, answer))
    return buffer.getvalue()


_MISSING: Final = object()


def field_of(structure: Any, name: str, default: Any) -> Any:
    """A field of a request, or the default where its version lacks it, or it is null."""
    value = getattr(structure, name, _MISSING)
    return default if value is _MISSING or value is None else value


@cache
def _request_reader(key: int, version: int) -> Callable[[bytes, int], tuple[Any, int]]:
    return entity_reader(load_request_schema(key, version))


@cache
def _request_writer(key: int, version: int) -> tuple[type[Any], Callable[[BytesIO, Any], None]]:
    schema = load_request_schema(key, version)
    return schema, entity_writer(schema)


@cache
def _answer_reader(key: int, version: int) -> Callable[[bytes, int], tuple[Any, int]]:
    return entity_reader(load_response_schema(key, version))


@cache
def _answer_writer(key: int, version: int) -> tuple[type[Any], Callable[[BytesIO, Any], None]]:
    schema = load_response_schema(key, version)
    return schema, entity_writer(schema)


def _built(schema: type[Any], values: Mapping[str, Any]) -> Any:
    return schema(
        **{name: make(values[name]) for name, make in _makers(cast(Hashable, schema)).items() if name in values}
    )


@cache
def _makers(schema: Any) -> dict[str, Callable[[Any], Any]]:
    """For each field of a class: makes its value of what the gateway gives."""
    hints = get_type_hints(schema)
    return {field.name: _maker(hints[field.name]) for field in fields(schema)}


def _maker(hint: Any) -> Callable[[Any], Any]:
    if isinstance(hint, UnionType):
        (inner,) = (one for one in get_args(hint) if one is not NoneType)
        make = _maker(inner)
        return lambda value: None if value is None else make(value)
    if get_origin(hint) is tuple:
        item = _maker(get_args(hint)[0])
        return lambda values: tuple(item(value) for value in values)
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value: _built(hint, value)
    if hint is ErrorCode:
        return ErrorCode
    if isinstance(hint, type) and issubclass(hint, timedelta):
        return lambda value: timedelta(milliseconds=value)
    return lambda value: value
