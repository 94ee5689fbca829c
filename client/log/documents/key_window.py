"""The window within which a log knows the keys of its entries. Pure."""

import math
from typing import Final

from octavo.protocol.errors import InvalidArgumentError
from octavo.protocol.light_dataclass import dataclass

WINDOW_ENTRIES_MAX: Final = 100_000
"""A leader holds the keys of the window in memory, some 200 bytes each, and reads the window when it begins."""

KEY_BYTES_MAX: Final = 255
"""The length of a key is stored in one byte."""


@dataclass(frozen=True, slots=True)
class KeyWindow:
    """The window within which a key of a log belongs to one entry (rule P21).

    A key is known while fewer than ``entries`` entries follow its own, and ``seconds`` have not passed since its entry
    was added; None: time does not end it. A leader reads the window when it begins, so a large one makes takeovers
    slower.

    Examples:
        >>> octavo.KeyWindow(entries=5000)
        KeyWindow(entries=5000, seconds=86400.0)
    """

    entries: int = 10_000
    seconds: float | None = 86_400.0

    def __post_init__(self) -> None:
        if type(self.entries) is not int or not 1 <= self.entries <= WINDOW_ENTRIES_MAX:
            raise InvalidArgumentError(
                f"window of keys: entries must be a whole number from 1 to {WINDOW_ENTRIES_MAX}, not {self.entries!r}"
            )
        seconds = self.seconds
        if seconds is not None and not (type(seconds) in {int, float} and 0 < seconds < math.inf):
            raise InvalidArgumentError(
                f"window of keys: seconds must be a number above 0, or None for no limit; not {seconds!r}"
            )


def check_key_window(window: object) -> None:
    """Raise :class:`InvalidArgumentError` unless it is a :class:`KeyWindow`."""
    if not isinstance(window, KeyWindow):
        raise InvalidArgumentError(f"keys is an octavo.KeyWindow, not {window!r}")


def encoded_key(key: object) -> bytes:
    """A key as it is stored. Raises :class:`InvalidArgumentError` for what can be no key."""
    if not isinstance(key, str):
        raise InvalidArgumentError(f"the key of an entry is a str, not {type(key).__name__}")
    try:
        encoded = key.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(f"{key!r} is no key: it is no valid text") from error
    if not 1 <= len(encoded) <= KEY_BYTES_MAX:
        raise InvalidArgumentError(f"a key has 1 to {KEY_BYTES_MAX} bytes in UTF-8, not {len(encoded)}")
    return encoded
