"""The stored form of metadata: one line of canonical JSON, readable with any tool, with a checksum.

Example: ``{"crc32c":"f7a1c9d0","format":1,"generation":3,...}``. Keys are sorted, there are no spaces, the text is
ASCII, bytes are base64, instants are in UTC. ``crc32c`` covers the same line without that key: neither SQLite nor
ZooKeeper protects stored data against flipped bits, and a wrong ``last_entry_id`` would lose data silently.

A reader keeps the keys that it does not know and writes them back when it changes the value, so that a newer version's
fields survive a change by an older one. A change that an older version must not ignore raises ``format``.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

import google_crc32c
from octavo.protocol.errors import MetadataError, OctavoError

_crc32c: Callable[[bytes], int] = google_crc32c.value

_CHECKSUM_KEY: Final = "crc32c"

NO_FIELDS: Final[Mapping[str, Any]] = MappingProxyType({})
"""No unknown fields: the common case."""

encode_text: Callable[[str], str] = json.encoder.encode_basestring_ascii
"""A text in the form it has in a stored object, quoted."""

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode_object(fields: Mapping[str, Any], *, format_number: int) -> bytes:
    """The stored form of ``fields`` (JSON values). The same fields give the same bytes."""
    return encode_texts({name: value_text(value) for name, value in fields.items()}, format_number=format_number)


def encode_texts(texts: Mapping[str, str], *, format_number: int) -> bytes:
    """As :func:`encode_object`, for fields that are in canonical form already."""
    body = {**texts, "format": str(format_number)}
    # The line without the checksum, in the two parts before and after it: encoding only once halves the work.
    before = object_text({name: text for name, text in body.items() if name < _CHECKSUM_KEY})[1:-1]
    behind = object_text({name: text for name, text in body.items() if name > _CHECKSUM_KEY})[1:-1]
    return with_checksum(before, behind)


def object_text(texts: Mapping[str, str]) -> str:
    """The canonical form of an object with these fields, which are in that form already."""
    return f"{{{','.join([f'{encode_text(name)}:{texts[name]}' for name in sorted(texts)])}}}"


def value_text(value: Any) -> str:
    """The canonical form of a JSON value."""
    if type(value) is int:
        return str(value)  # the encoder takes ten times as long
    return _ENCODER.encode(value)


def with_checksum(before: str, behind: str) -> bytes:
    """The stored form of an object with these fields in canonical form: the names of the fields in ``before`` sort
    before the checksum's name, those in ``behind`` after it."""
    comma = "," if before and behind else ""
    checksum = _crc32c(f"{{{before}{comma}{behind}}}".encode("ascii"))
    behind_it = f",{behind}" if behind else ""
    return f'{{{before}{"," if before else ""}"{_CHECKSUM_KEY}":"{checksum:08x}"{behind_it}}}'.encode("ascii")


def decode_object(value: bytes, *, what: str, format_max: int, format_min: int = 1) -> dict[str, Any]:
    """The fields in ``value`` after verifying the checksum. ``what`` names the thing in errors ("ledger 7").

    Raises :class:`MetadataError` when the value is damaged, or of a format below ``format_min`` or above
    ``format_max``.
    """
    format_number, fields = open_object(value, what=what, format_max=format_max)
    if format_number < format_min:
        raise MetadataError(
            f"{what}: metadata format {format_number} is that of something else; this needs {format_min}"
        )
    return fields


def open_object(value: bytes, *, what: str, format_max: int) -> tuple[int, dict[str, Any]]:
    """As :func:`decode_object`, for a value that may be of any format up to ``format_max``: the format and the
    fields."""
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{what}: the stored metadata are damaged (not JSON)") from error
    if not isinstance(fields, dict):
        raise MetadataError(f"{what}: the stored metadata are damaged (not a JSON object)")
    checksum = fields.pop(_CHECKSUM_KEY, None)
    if not _covers(value, checksum) and checksum != _checksum(fields):
        raise MetadataError(f"{what}: the stored metadata are damaged (checksum mismatch)")
    format_number = fields.pop("format", None)
    if type(format_number) is not int or format_number < 1:
        raise MetadataError(f"{what}: the stored metadata are damaged (no format number)")
    if format_number > format_max:
        raise MetadataError(
            f"{what}: metadata format {format_number} is newer than {format_max}, the newest that this version "
            "understands; upgrade Octavo"
        )
    return format_number, fields


class FieldReader:
    """Typed access to decoded fields. A missing field or one of a wrong type raises a :class:`MetadataError` that names
    the thing."""

    __slots__ = ("_asked", "_fields", "_what")

    def __init__(self, fields: Mapping[str, Any], what: str) -> None:
        self._fields = fields
        self._what = what
        self._asked: set[str] = set()

    def get[T](self, name: str, kind: type[T]) -> T:
        """The field ``name``, which must be exactly of type ``kind``."""
        self._asked.add(name)
        value = self._fields.get(name)
        if type(value) is not kind:
            raise self.damaged(f"{name} is not of type {kind.__name__}")
        return value

    def optional[T](self, name: str, kind: type[T]) -> T | None:
        """As :meth:`get`; None when the field is null."""
        self._asked.add(name)
        if self._fields.get(name, ...) is None:
            return None
        return self.get(name, kind)

    def added_later[T, D](self, name: str, kind: type[T], default: D) -> T | D:
        """As :meth:`get`, for a field that older versions do not write: ``default`` when it is missing."""
        self._asked.add(name)
        return self.get(name, kind) if name in self._fields else default

    def __contains__(self, name: str) -> bool:
        """Whether the field is there."""
        return name in self._fields

    def unknown_fields(self) -> dict[str, Any]:
        """The fields that no other method has been asked for: those of a newer version. Code that changes the value
        writes them back as they are. Call this method last."""
        if self._fields.keys() <= self._asked:
            return {}
        return {name: value for name, value in self._fields.items() if name not in self._asked}

    def bytes_of(self, name: str) -> bytes:
        """A base64 field."""
        return self.decode_bytes(self.get(name, str), name)

    def instant(self, name: str) -> datetime:
        """An aware datetime, in UTC."""
        try:
            instant = datetime.fromisoformat(self.get(name, str))
            if instant.tzinfo is None:
                raise self.damaged(f"{name} has no time zone")
            return instant.astimezone(UTC)  # there is no such instant in the first and the last hours of all time
        except (ValueError, OverflowError) as error:
            raise self.damaged(f"{name} is not an instant") from error

    def decode_bytes(self, text: object, name: str) -> bytes:
        """Bytes from base64 ``text``, a value in or below the field ``name``."""
        try:
            return base64.b64decode(str(text), validate=True)
        except (ValueError, binascii.Error) as error:
            raise self.damaged(f"{name} is not base64") from error

    def damaged(self, reason: str | OctavoError) -> MetadataError:
        """The error to raise for a value that cannot be what Octavo wrote."""
        return MetadataError(f"{self._what}: the stored metadata are damaged ({reason})")


def encode_bytes(value: bytes) -> str:
    """Base64 text of ``value``."""
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def encode_instant(instant: datetime) -> str:
    """ISO 8601 in UTC, to the microsecond."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds")


def _covers(value: bytes, checksum: object) -> bool:
    """Whether the checksum is that of the line without it, as it stands there. False tells nothing: an object of the
    same fields may have been written in another form. To encode the fields again takes longer than all the rest."""
    written = f'"{_CHECKSUM_KEY}":"{checksum}"'.encode()
    before, found, behind = value.partition(written)
    if not found or not isinstance(checksum, str):
        return False
    # With the comma that belongs to it: the one behind it, or, where it is the last, the one before it.
    rest = before + behind[1:] if behind.startswith(b",") else before.removesuffix(b",") + behind
    return checksum == f"{_crc32c(rest):08x}"


def _checksum(fields: Mapping[str, Any]) -> str:
    return f"{_crc32c(_dump_tolerant(fields)):08x}"


def _dump_tolerant(fields: Mapping[str, Any]) -> bytes:
    # The value may hold things that Octavo never writes (NaN); its checksum then does not match.
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")
