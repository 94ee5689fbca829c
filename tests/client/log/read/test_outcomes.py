"""What became of an add in doubt (rule P6), where another client takes the log over while that is being found out."""

from typing import cast

import pytest
from octavo.client.log.read.outcomes import count_added
from octavo.client.log.seam.view import LogView
from octavo.protocol.errors import Doubt


class MovingView:
    """What a handle sees of a log that is taken over at one of the steps of an answer. The add of term 1, at position
    5, came to one bookie only; the next leader's term begins at ``stop``, and has entries up to position 9.

    The handle knows of a takeover once it has read the metadata. Bookies that are asked for the end answer as of then,
    whatever the handle knows.
    """

    name, log_id, gaps = "orders", "abc", ()

    def __init__(self, step: str, stop: int) -> None:
        self.term = 1
        self._term_now = 1
        self._step, self._stop = step, stop
        self.steps: list[str] = []

    def _at(self, step: str) -> None:
        self.steps.append(step)
        if step == self._step:
            self._term_now = 2

    async def read_metadata(self) -> None:
        self._at("metadata")
        self.term = self._term_now

    async def end_of_term(self, term: int) -> int | None:
        self._at("end of term")
        return self._stop if self.term > term else None

    async def end_now(self, wanted: int) -> int:
        del wanted
        self._at("metadata for the end")
        self.term = self._term_now
        self._at("end")
        return 10

    async def read(self, first: int, last: int) -> None:
        del first, last
        self._at("read")

    def gap_at(self, position: int) -> None:
        """Nothing was given up."""


STEPS = ("metadata", "end of term", "metadata for the end", "end", "read")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("stop", "added"), [(5, 0), (6, 1)], ids=["lost", "recovered"])
async def test_a_takeover_while_it_is_asked_decides_about_the_add(step: str, stop: int, added: int) -> None:
    view = MovingView(step, stop)
    answer = await count_added(cast("LogView", view), Doubt("abc", 1, 5), view.read)
    # The rival's entry at the same position is never taken for the add.
    assert answer == added, view.steps
    assert step in view.steps


async def test_without_a_takeover_an_entry_below_the_end_is_the_add() -> None:
    view = MovingView("never", 0)
    assert await count_added(cast("LogView", view), Doubt("abc", 1, 5), view.read) == 1
    assert view.steps[-1] == "metadata"
