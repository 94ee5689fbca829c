"""Hours of the day, UTC, in which something may happen. Pure."""

import re

from octavo.protocol.light_dataclass import dataclass

_WINDOW = re.compile(r"(\d\d?):(\d\d)-(\d\d?):(\d\d)")
_DAY_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class Hours:
    """Windows of minutes of the day, first inclusive, stop exclusive; one that ends before it begins goes over
    midnight. None at all: any time."""

    windows: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Hours":
        """From ``22:00-06:00,12:30-13:00``; an empty text means any time. Raises ValueError."""
        windows = []
        for piece in filter(None, text.replace(" ", "").split(",")):
            found = _WINDOW.fullmatch(piece)
            minutes = list(map(int, found.groups())) if found else []
            if not found or minutes[0] > 24 or minutes[2] > 24 or minutes[1] > 59 or minutes[3] > 59:
                raise ValueError("must be hours of the day in UTC, like 22:00-06:00, separated by commas")
            windows.append(((minutes[0] * 60 + minutes[1]) % _DAY_MINUTES, minutes[2] * 60 + minutes[3]))
        return cls(tuple(windows))

    def include(self, seconds_since_epoch: float) -> bool:
        """Whether that moment lies in a window."""
        minute = int(seconds_since_epoch // 60) % _DAY_MINUTES
        return not self.windows or any(
            start <= minute < stop if start < stop else minute >= start or minute < stop for start, stop in self.windows
        )
