"""The state of the screen of ``octavo top``, and how keys change it. Pure."""

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final, NamedTuple, Self

from octavo.cli.top.pages import PAGES, PageName
from octavo.protocol.light_dataclass import dataclass

HELP: Final = "b bookies  l logs  < > sort by  r reverse  arrows scroll  space pause  q quit"

_SEQUENCES: Final = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[C": ">", "\x1bOC": ">",
    "\x1b[D": "<", "\x1bOD": "<", "\x1b[5~": "page-up", "\x1b[6~": "page-down", "\x1b[H": "home", "\x1b[1~": "home",
}  # fmt: skip
"""What a terminal sends for keys that are no character."""

_KEY: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|[^\x1b]|\x1b")


def keys_of(typed: bytes) -> list[str]:
    """The keys that were pressed, by what the terminal has sent."""
    return [_SEQUENCES.get(one, one) for one in _KEY.findall(typed.decode(errors="replace"))]


class Order(NamedTuple):
    """By which column a page is sorted."""

    column: int = 0
    reverse: bool = False


@dataclass(frozen=True, slots=True)
class Screen:
    """See the module."""

    page: PageName = PageName.BOOKIES
    orders: Mapping[PageName, Order] = field(default_factory=lambda: dict.fromkeys(PageName, Order()))
    top: int = 0
    """The row that is shown first."""
    paused: bool = False
    ended: bool = False

    @property
    def order(self) -> Order:
        """That of the present page."""
        return self.orders[self.page]

    def press(self, key: str, *, rows: int, height: int) -> Self:
        """The state after a key; ``rows`` are there, and ``height`` of them fit on the screen."""
        after = self
        match key:
            case "q" | "\x03":
                after = replace(self, ended=True)
            case "b" | "l":
                after = self._on(PageName.BOOKIES if key == "b" else PageName.LOGS)
            case "\t":
                after = self._on(PageName.LOGS if self.page is PageName.BOOKIES else PageName.BOOKIES)
            case "<" | ">":
                columns = len(PAGES[self.page].columns)
                after = self._sorted(Order((self.order.column + (1 if key == ">" else -1)) % columns))
            case "r":
                after = self._sorted(self.order._replace(reverse=not self.order.reverse))
            case " ":
                after = replace(self, paused=not self.paused)
            case "home":
                after = replace(self, top=0)
            case "up" | "down" | "page-up" | "page-down":
                step = height if key.startswith("page") else 1
                top = self.top + (step if key.endswith("down") else -step)
                after = replace(self, top=top).fitted(rows, height)
        return after

    def fitted(self, rows: int, height: int) -> Self:
        """The same, with no room left below the last row while rows are above the first."""
        return replace(self, top=max(0, min(self.top, rows - height)))

    def _on(self, page: PageName) -> Self:
        return replace(self, page=page, top=0)

    def _sorted(self, order: Order) -> Self:
        return replace(self, orders={**self.orders, self.page: order}, top=0)
