"""Checks of single fields of messages: a value as msgpack gives it -> the value as it is used, or a ``ValueError``.

A check's error says what the field is not; the decoder of a message adds message and field. ``True`` and ``False``
are no integers here, and texts are no bytes, whatever Python thinks of it.
"""

import enum
from collections.abc import Callable
from typing import Any

from octavo.protocol.ids import ID_MAX
from octavo.protocol.limits import E_MAX

Check = Callable[[Any], Any]

EXTENSIONS_MAX = 16
"""Most extensions of a hello: a few mechanisms of authentication, and room."""


def integer(low: int, high: int) -> Check:
    """An integer from ``low`` to ``high``, both inclusive."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"not an integer from {low} to {high}")
        return value

    return check


def optional(inner: Check) -> Check:
    """None, or what ``inner`` takes."""
    return lambda value: None if value is None else inner(value)


def text(characters_max: int) -> Check:
    """A text of at most ``characters_max`` characters."""

    def check(value: Any) -> str:
        if type(value) is not str or len(value) > characters_max:
            raise ValueError(f"not a text of at most {characters_max} characters")
        return value

    return check


def binary(bytes_max: int) -> Check:
    """At most ``bytes_max`` bytes."""

    def check(value: Any) -> bytes:
        if type(value) is not bytes or len(value) > bytes_max:
            raise ValueError(f"not at most {bytes_max} bytes")
        return value

    return check


def boolean(value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise ValueError("not true or false")
    return value


def flags(flag_class: type[enum.IntFlag]) -> Check:
    """Any set of the flags of ``flag_class``, and no other bit."""
    known = sum(flag_class)
    # Made once: making an enum's combination is the dearest step of decoding a small frame.
    combinations = {value: flag_class(value) for value in range(known + 1) if not value & ~known}

    def check(value: Any) -> enum.IntFlag:
        flags = combinations.get(value) if type(value) is int else None
        if flags is None:
            raise ValueError(f"flags other than {known:#b}")
        return flags

    return check


def sealed_entries(value: Any) -> list[bytes]:
    """A list of byte strings. What is in them is checked by :func:`octavo.protocol.entries.verify_batch`."""
    if type(value) is not list or not set(map(type, value)) <= {bytes}:
        raise ValueError("not a list of sealed entries")
    return value


def texts(texts_max: int, characters_max: int) -> Check:
    """At most ``texts_max`` texts of at most ``characters_max`` characters each."""
    check_text = text(characters_max)

    def check(value: Any) -> tuple[str, ...]:
        if type(value) is not list or len(value) > texts_max:
            raise ValueError(f"not a list of at most {texts_max} texts")
        return tuple(map(check_text, value))

    return check


def residues(value: Any) -> tuple[int, ...]:
    """One residue or more, ascending, each below the largest ensemble."""
    if (
        type(value) is not list
        or not value
        or set(map(type, value)) != {int}
        or min(value) < 0
        or max(value) >= E_MAX
        or sorted(set(value)) != value
    ):
        raise ValueError(f"not an ascending list of residues below {E_MAX}")
    return tuple(value)


def runs(value: Any) -> tuple[tuple[int, int], ...]:
    """Runs of ids, ``[[first, last], ...]``, ascending and apart."""
    if type(value) is not list:
        raise ValueError("not a list of runs")
    below = -1
    checked = []
    for run in value:
        if type(run) is not list or len(run) != 2 or set(map(type, run)) != {int}:
            raise ValueError("a run is [first, last]")
        first, last = run
        if not below < first <= last <= ID_MAX:
            raise ValueError("runs must ascend")
        checked.append((first, last))
        below = last
    return tuple(checked)


def extensions(value: Any) -> dict[str, bytes]:
    """A map of at most 16 names, of at most 64 characters each, to at most 4096 bytes each."""
    if type(value) is not dict or len(value) > EXTENSIONS_MAX:
        raise ValueError(f"not a map of at most {EXTENSIONS_MAX} extensions")
    return {_extension_name(name): _extension_value(content) for name, content in value.items()}


_extension_name = text(64)
_extension_value = binary(4096)


def facts(value: Any) -> dict[str, str | int | float | bool]:
    """A map of names to texts, numbers and truth values."""
    if type(value) is not dict or not all(
        type(name) is str and type(fact) in {str, int, float, bool} for name, fact in value.items()
    ):
        raise ValueError("not a map of names to facts")
    return value
