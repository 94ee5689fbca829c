"""The screen of ``octavo top`` on a terminal: measures, draws, and obeys keys."""

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from octavo.cli.top.looks import Looks
from octavo.cli.top.pages import PAGES, PageName
from octavo.cli.top.screen import HELP, Screen, keys_of
from octavo.protocol.errors import OctavoError
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_LINES_AROUND = 2
"""The titles of the columns and the line of keys."""


async def show_live(looks: Mapping[PageName, Looks], screen: Screen, interval: float) -> None:
    """Draw until the user ends it."""
    with Live(auto_refresh=False, screen=True) as live:
        view = _View(looks, screen, interval, live)
        with _keys(view.pressed):
            await view.run()


class _View:
    """The page that is shown at present."""

    def __init__(self, looks: Mapping[PageName, Looks], screen: Screen, interval: float, live: Live) -> None:
        self._looks = looks
        self._screen = screen
        self._interval = interval
        self._live = live
        self._rows: dict[PageName, list[dict[str, Any]]] = {}
        self._error = ""
        self._changed = asyncio.Event()
        """Something else is to be drawn."""
        self._hurried = asyncio.Event()
        """Another page is to be measured, or measuring goes on."""

    def pressed(self, typed: bytes) -> None:
        """Obey the keys that the terminal has sent."""
        for key in keys_of(typed):
            page, paused = self._screen.page, self._screen.paused
            self._screen = self._screen.press(key, rows=len(self._rows.get(page, ())), height=self._height())
            if self._screen.page is not page or self._screen.paused is not paused:
                self._hurried.set()
        self._changed.set()

    async def run(self) -> None:
        """Measure and draw until the user ends it. Raises what a look raises that no later one can mend."""
        measuring = asyncio.create_task(self._measure())
        measuring.add_done_callback(lambda _: self._changed.set())
        try:
            while not self._screen.ended and not measuring.done():
                self._changed.clear()
                self._draw()
                await self._changed.wait()
            if measuring.done():
                await measuring
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)

    async def _measure(self) -> None:
        """Look at the page that is shown, once an interval."""
        loop = asyncio.get_running_loop()
        before: dict[PageName, tuple[Any, float]] = {}
        while True:
            self._hurried.clear()
            page = self._screen.page
            if not self._screen.paused:
                try:
                    looked, now = await self._looks[page].look(), loop.time()
                except OctavoError as error:
                    self._error = " ".join(str(error).split())  # a later look may find the cluster again
                else:
                    self._error = ""
                    earlier, then = before.get(page, (None, now - self._interval))
                    self._rows[page] = self._looks[page].compare(earlier, looked, max(now - then, 1e-3))
                    before[page] = (looked, now)
                self._changed.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._hurried.wait()

    def _height(self) -> int:
        return max(1, self._live.console.size.height - _LINES_AROUND)

    def _draw(self) -> None:
        page, rows = PAGES[self._screen.page], self._rows.get(self._screen.page)
        states = ("paused" * self._screen.paused, self._looks[page.name].note, HELP)
        line = Text(self._error or "  ".join(filter(None, states)), style="dim", no_wrap=True)
        if rows is None:
            self._live.update(Group(Text(f"measuring {page.name} ..."), line), refresh=True)
            return
        height = self._height()
        self._screen = self._screen.fitted(len(rows), height)
        order = self._screen.order
        ordered = page.in_order(rows, order.column, reverse=order.reverse)
        table = Table(expand=True, header_style="bold", box=None)
        for at, column in enumerate(page.columns):
            title = Text(column.header, style="reverse" if at == order.column else "")
            table.add_column(title, justify="right" if column.is_number else "left", no_wrap=True)
        for row in ordered[self._screen.top : self._screen.top + height]:
            cells = [Text(cell) for cell in page.cells(row)]
            if page.name is PageName.BOOKIES and (row["state"] != "writable" or row["in_doubt"]):
                cells[1].stylize("bold red" if row["state"] == "unavailable" else "yellow")
            table.add_row(*cells)
        self._live.update(Group(table, line), refresh=True)


@contextlib.contextmanager
def _keys(pressed: Callable[[bytes], None]) -> Iterator[None]:
    """Hand on the keys that are typed on standard input, one by one and unseen, if that is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()

    def read() -> None:
        typed = os.read(terminal, 1024)
        if typed:
            pressed(typed)
        else:
            loop.remove_reader(terminal)  # the terminal is gone

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
