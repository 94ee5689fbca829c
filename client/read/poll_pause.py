"""How long a follower pauses before it asks again. Pure."""

from collections.abc import Callable
from typing import Final

PAUSE_SECONDS_MIN: Final = 0.05
"""First pause after something that failed or brought nothing; doubles up to the maximum."""

PAUSE_SECONDS_MAX: Final = 2.0
"""Longest such pause, and so the longest delay after a bookie has come back."""


def pause_seconds(failures: int, draw: Callable[[], float]) -> float:
    """The pause after this many failures in a row, a random part of it left out."""
    longest = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** min(failures - 1, 16))
    return longest * (0.5 + draw() / 2)
