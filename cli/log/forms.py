"""The forms in which entries are written: payloads by themselves, or with their positions as JSON."""

import base64
import json
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

from octavo.cli.output import bytes_as_json, json_text, without_commands

if TYPE_CHECKING:
    from octavo.client.log.seam.entries import LogEntry

type Format = Callable[[LogEntry], bytes]
"""An entry as it is written, with what ends it."""


class PayloadForm(StrEnum):
    """The form of a payload."""

    TEXT = "text"
    JSON = "json"
    BASE64 = "base64"
    HEX = "hex"


def format_of(payload: PayloadForm | None, *, as_json: bool) -> Format:
    """How an entry is written: ``as_json`` as an object with its facts, else its payload alone.

    Without a form a payload is written as it is; in an object, as a string if it is UTF-8, else as
    ``{"base64": ...}``.
    """
    if not as_json:
        return lambda entry: payload_alone(entry.payload, payload) + b"\n"
    return lambda entry: _as_object(entry, payload)


def payload_alone(payload: bytes, form: PayloadForm | None) -> bytes:
    """A payload as it is written outside of objects."""
    return _ALONE[form or PayloadForm.TEXT](payload)


def payload_in_object(payload: bytes, form: PayloadForm | None) -> str:
    """A payload as a value of JSON, on one line."""
    return json_text(bytes_as_json(payload)) if form is None else _IN_OBJECT[form](payload)


def entry_as_json(entry: "LogEntry") -> dict[str, Any]:
    """One entry, with its payload as :func:`octavo.cli.output.bytes_as_json` gives it."""
    return {**_facts(entry), "payload": bytes_as_json(entry.payload)}


def _facts(entry: "LogEntry") -> dict[str, Any]:
    facts = {"position": entry.position, "term": entry.term, "sealed_at": entry.sealed_at.isoformat()}
    return facts if entry.key is None else {**facts, "key": entry.key}


def _as_object(entry: "LogEntry", form: PayloadForm | None) -> bytes:
    if form is None:
        return json_text(entry_as_json(entry)).encode() + b"\n"
    facts = json_text(_facts(entry)).removesuffix("}")
    return f'{facts}, "payload": {payload_in_object(entry.payload, form)}}}\n'.encode()


def _json_text(payload: bytes) -> str:
    """The payload, if it is JSON, on one line and otherwise unchanged; a payload that is none as a string of JSON, or
    as ``{"base64": ...}``, so that each line that is written is JSON."""
    try:
        text = payload.decode()
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return json_text(bytes_as_json(payload))
    # Whitespace is all that may stand outside strings, and inside of them none of these may.
    return without_commands(text.translate({9: " ", 10: " ", 13: " "}).strip())


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_ALONE: dict[PayloadForm, Callable[[bytes], bytes]] = {
    PayloadForm.TEXT: bytes,
    PayloadForm.JSON: lambda payload: _json_text(payload).encode(),
    PayloadForm.BASE64: base64.b64encode,
    PayloadForm.HEX: lambda payload: payload.hex().encode(),
}

_IN_OBJECT: dict[PayloadForm, Callable[[bytes], str]] = {
    PayloadForm.TEXT: lambda payload: json_text(payload.decode(errors="backslashreplace")),
    PayloadForm.JSON: _json_text,
    PayloadForm.BASE64: lambda payload: f'"{base64.b64encode(payload).decode()}"',
    PayloadForm.HEX: lambda payload: f'"{payload.hex()}"',
}
