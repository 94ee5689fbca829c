"""Times as users give them: how long ago, or when. Pure."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from octavo.protocol.errors import InvalidArgumentError

_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AGO: Final = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def parse_moment(text: str, now: datetime) -> datetime:
    """The moment that ``text`` names: ``10m`` or ``1h30m`` before ``now`` (aware), or an ISO 8601 date or time.

    A time without a zone is one of this host's zone. Raises :class:`InvalidArgumentError`.
    """
    text = text.strip()
    try:
        if _AGO.fullmatch(text):
            seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _PART.findall(text))
            return now - timedelta(seconds=seconds)
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(
            f"{text!r} is no time: give how long ago, such as 10m or 1h30m, or a time such as 2026-01-31T12:00"
        ) from None


def age_in_words(seconds: float) -> str:
    """An age in its largest unit: ``12s``, ``5m``, ``3h``, ``9d``."""
    for unit in ("d", "h", "m"):
        if seconds >= _UNIT_SECONDS[unit]:
            return f"{int(seconds // _UNIT_SECONDS[unit])}{unit}"
    return f"{max(0, int(seconds))}s"
