"""The parameters of an endpoint and the fields of its body: what is accepted, and how OpenAPI says so. Pure.

One table serves both, so that the description cannot promise what the check refuses.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl

from octavo.protocol.light_dataclass import dataclass

INTEGER_MAX = 2**63 - 1
"""Largest integer accepted anywhere: larger ones are different numbers for different clients."""

_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?")


class FieldError(ValueError):
    """A value that is not accepted. Its text names the field and what it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One parameter, or one field of a body."""

    name: str
    kind: Literal["integer", "number", "boolean", "string"]
    text: str
    """For people: one sentence."""
    required: bool = False
    low: float | None = None
    high: float | None = None
    """Inclusive bounds of a number."""
    choices: tuple[str, ...] = ()
    length_max: int | None = None
    pattern: str | None = None
    """Of the whole text."""

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the value."""
        schema: dict[str, Any] = {"type": self.kind}
        if self.low is not None:
            schema["minimum"] = self.low
        if self.high is not None:
            schema["maximum"] = self.high
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.length_max is not None:
            schema["minLength"] = 1
            schema["maxLength"] = self.length_max
        if self.pattern is not None:
            schema["pattern"] = f"^{self.pattern}$"
        return schema

    def check(self, value: object) -> Any:
        """The value, if it is accepted. Raises :class:`FieldError`."""
        if self.kind == "integer" and type(value) is float and value.is_integer():
            value = int(value)  # JSON has one kind of number: 10.0 is a whole one
        accepted = {
            "integer": type(value) is int,
            "number": type(value) is int or (type(value) is float and math.isfinite(value)),
            "boolean": type(value) is bool,
            "string": type(value) is str,
        }[self.kind]
        if accepted and isinstance(value, int | float) and not isinstance(value, bool):
            accepted = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        if accepted and isinstance(value, str):
            accepted = (
                (not self.choices or value in self.choices)
                and (self.length_max is None or 1 <= len(value) <= self.length_max)
                and (self.pattern is None or re.fullmatch(self.pattern, value, re.ASCII) is not None)
            )
        if not accepted:
            raise FieldError(f"{self.name} must be {self._expected()}")
        return value

    def read(self, text: str) -> Any:
        """The value that a query or a path spells. Raises :class:`FieldError`."""
        value: object = text
        if self.kind == "integer" and _INTEGER.fullmatch(text):
            value = int(text)
        elif self.kind == "number" and _NUMBER.fullmatch(text):
            value = float(text)
        elif self.kind == "boolean":
            value = {"true": True, "false": False}.get(text, text)
        return self.check(value)

    def _expected(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.length_max is not None:
            return f"a text of 1 to {self.length_max} characters"
        kind = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text"}
        bounds = [f"{word} {bound}" for word, bound in (("from", self.low), ("to", self.high)) if bound is not None]
        return " ".join([kind[self.kind], *bounds])


def read_query(query: str, fields: Sequence[Field]) -> dict[str, Any]:
    """The parameters of a query string. Raises :class:`FieldError`, also for one that is unknown or given twice."""
    known = {field.name: field for field in fields}
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict", max_num_fields=64)
    except ValueError as error:
        raise FieldError(f"the query cannot be read: {error}") from error
    for name, text in pairs:
        if name not in known:
            raise FieldError(f"there is no parameter {name[:64]!r}; {_names(known)}")
        if name in found:
            raise FieldError(f"{name} is given twice")
        found[name] = known[name].read(text)
    _check_required(fields, found)
    return found


def read_body(body: bytes, fields: Sequence[Field]) -> dict[str, Any]:
    """The fields of a JSON object; an empty body is an empty object. Raises :class:`FieldError`."""
    try:
        value = json.loads(body.decode() or "{}", object_pairs_hook=_object, parse_constant=_refuse_constant)
    except FieldError:
        raise
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise FieldError(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(value, dict):
        raise FieldError("the body must be a JSON object")
    known = {field.name: field for field in fields}
    for name in value:
        if name not in known:
            raise FieldError(f"there is no field {name[:64]!r}; {_names(known)}")
    found = {name: known[name].check(given) for name, given in value.items()}
    _check_required(fields, found)
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FieldError("a field is given twice")
    return found


def _refuse_constant(name: str) -> None:
    raise FieldError(f"the body is not JSON: {name}")


def _check_required(fields: Sequence[Field], found: Mapping[str, Any]) -> None:
    for field in fields:
        if field.required and field.name not in found:
            raise FieldError(f"{field.name} is missing; it must be {field._expected()}")


def _names(known: Mapping[str, Field]) -> str:
    return f"there are {', '.join(known)}" if known else "there are none"
