"""How a value stands in the metadata store: one line of canonical JSON, readable with any tool, with a checksum.

Example: ``{"crc32c":"f7a1c9d0","format":1,"generation":3,...}``. Keys are sorted, no spaces, ASCII only, bytes as
base64, instants in UTC. ``crc32c`` covers the same line without that key: neither SQLite nor ZooKeeper protects what
lies on disk against flipped bits, and a wrong ``last_entry_id`` would lose data silently. Keys that a reader does not
know are covered by the checksum and otherwise ignored; a change that an older reader must not ignore raises ``format``.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import google_crc32c
from octavo.protocol.errors import MetadataError, OctavoError

_crc32c: Callable[[bytes], int] = google_crc32c.value

_CHECKSUM_KEY: Final = "crc32c"

encode_text: Callable[[str], str] = json.encoder.encode_basestring_ascii
"""A text as it stands in a stored object, quoted."""

_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def encode_object(fields: Mapping[str, Any], *, format_number: int) -> bytes:
    """The stored form of ``fields`` (JSON values). The same fields give the same bytes."""
    body = {**fields, "format": format_number}
    # The line without the checksum, in two parts between which it belongs: dumping once is half of the work.
    before = _ENCODER.encode({name: value for name, value in body.items() if name < _CHECKSUM_KEY})[1:-1]
    behind = _ENCODER.encode({name: value for name, value in body.items() if name > _CHECKSUM_KEY})[1:-1]
    return with_checksum(before, behind)


def with_checksum(before: str, behind: str) -> bytes:
    """The stored form of an object whose fields, canonical but for the checksum, are these: the names of those in
    ``before`` come before the checksum's in the alphabet, those in ``behind`` after it."""
    comma = "," if before and behind else ""
    checksum = _crc32c(f"{{{before}{comma}{behind}}}".encode("ascii"))
    behind_it = f",{behind}" if behind else ""
    return f'{{{before}{"," if before else ""}"{_CHECKSUM_KEY}":"{checksum:08x}"{behind_it}}}'.encode("ascii")


def decode_object(value: bytes, *, what: str, format_max: int) -> dict[str, Any]:
    """The fields in ``value``, checked. ``what`` names the thing in errors ("ledger 7").

    Raises :class:`MetadataError` when the value is damaged or of a format above ``format_max``.
    """
    try:
        fields = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise MetadataError(f"{what}: the stored metadata are damaged (not JSON)") from error
    if not isinstance(fields, dict):
        raise MetadataError(f"{what}: the stored metadata are damaged (not a JSON object)")
    checksum = fields.pop(_CHECKSUM_KEY, None)
    if checksum != _checksum(fields):
        raise MetadataError(f"{what}: the stored metadata are damaged (checksum mismatch)")
    format_number = fields.pop("format", None)
    if type(format_number) is not int or format_number < 1:
        raise MetadataError(f"{what}: the stored metadata are damaged (no format number)")
    if format_number > format_max:
        raise MetadataError(
            f"{what}: metadata format {format_number} is newer than {format_max}, the newest that this version "
            "understands; upgrade Octavo"
        )
    return fields


class FieldReader:
    """Typed access to decoded fields; anything missing or of a wrong type is a :class:`MetadataError` naming the
    thing."""

    __slots__ = ("_fields", "_what")

    def __init__(self, fields: Mapping[str, Any], what: str) -> None:
        self._fields = fields
        self._what = what

    def get[T](self, name: str, kind: type[T]) -> T:
        """The field ``name``, which must be exactly of type ``kind``."""
        value = self._fields.get(name)
        if type(value) is not kind:
            raise self.damaged(f"{name} is not of type {kind.__name__}")
        return value

    def optional[T](self, name: str, kind: type[T]) -> T | None:
        """As :meth:`get`; None when the field is null."""
        if self._fields.get(name, ...) is None:
            return None
        return self.get(name, kind)

    def added_later[T, D](self, name: str, kind: type[T], default: D) -> T | D:
        """As :meth:`get`, of a field that older versions do not write: ``default`` where it is missing."""
        return self.get(name, kind) if name in self._fields else default

    def bytes_of(self, name: str) -> bytes:
        """A base64 field."""
        return self.decode_bytes(self.get(name, str), name)

    def instant(self, name: str) -> datetime:
        """An aware datetime, in UTC."""
        try:
            instant = datetime.fromisoformat(self.get(name, str))
        except ValueError as error:
            raise self.damaged(f"{name} is not an instant") from error
        if instant.tzinfo is None:
            raise self.damaged(f"{name} has no time zone")
        return instant.astimezone(UTC)

    def decode_bytes(self, text: object, name: str) -> bytes:
        """Bytes from base64 ``text``, which stands in or under the field ``name``."""
        try:
            return base64.b64decode(str(text), validate=True)
        except (ValueError, binascii.Error) as error:
            raise self.damaged(f"{name} is not base64") from error

    def damaged(self, reason: str | OctavoError) -> MetadataError:
        """The error to raise for a value that cannot be what was written."""
        return MetadataError(f"{self._what}: the stored metadata are damaged ({reason})")


def encode_bytes(value: bytes) -> str:
    """Base64 text of ``value``."""
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def encode_instant(instant: datetime) -> str:
    """ISO 8601 in UTC, to the microsecond."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds")


def _checksum(fields: Mapping[str, Any]) -> str:
    return f"{_crc32c(_dump_tolerant(fields)):08x}"


def _dump_tolerant(fields: Mapping[str, Any]) -> bytes:
    # What was read may hold what we never write (NaN); it then simply has no matching checksum.
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")
