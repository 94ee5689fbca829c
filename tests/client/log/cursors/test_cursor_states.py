"""What a client knows of one cursor: every sequence of inputs keeps what was asked for, and takes nothing back (rule
P11)."""

from itertools import product

import pytest
from octavo.client.log.cursors.states import CellState, CursorCell
from octavo.client.log.documents.cursors import CursorState
from octavo.protocol.errors import CursorDeletedError

INPUTS = ("advance", "lower", "touch", "take", "stored", "stored higher", "unanswered", "not stored", "end")

STEPS = 5


class World:
    """A cell, the store, and what consumers have asked for."""

    def __init__(self) -> None:
        self.store: CursorState | None = CursorState(0, 0)
        self.cell = CursorCell("billing", CursorState(0, 0))
        self.taken: CursorState | None = None
        self.asked = CursorState(0, 0)
        self.time = 0

    def happen(self, what: str) -> bool:
        """False: it cannot happen now."""
        self.time += 1
        writing = self.taken is not None
        if what in ("advance", "lower", "touch"):
            return self._ask(what)
        if what == "take":
            if writing:
                return False
            self.taken = self.cell.take()
        elif what == "end":
            self.store = None
            self.cell.end(CursorDeletedError("gone"))
        elif not writing:
            return False
        else:
            self._write(what)
        return True

    def _ask(self, what: str) -> bool:
        position = {"advance": self.cell.position + 1, "lower": 0, "touch": self.cell.position}[what]
        if self.store is None:
            with pytest.raises(CursorDeletedError):
                self.cell.advance(position, self.time)
            self.cell.touch(self.time)
            return True
        if what == "touch":
            self.cell.touch(self.time)
        else:
            self.cell.advance(position, self.time)
        self.asked = self.asked.raised_to(CursorState(position, self.time))
        return True

    def _write(self, what: str) -> None:
        assert self.taken is not None
        if self.store is not None:
            if what == "stored higher":  # another client has moved it
                self.store = CursorState(self.store.position + 2, self.store.touched_at_ms)
            if what != "not stored":
                self.store = self.store.raised_to(self.taken)
        if what in ("unanswered", "not stored") or self.store is None:
            self.cell.not_stored()
        else:
            self.cell.stored(self.store)
        self.taken = None

    def check(self) -> None:
        assert (self.cell.state is CellState.ENDED) == (self.store is None)
        if self.store is None:
            assert not self.cell.is_moved
            assert self.cell.take() is None
            return
        assert self.cell.position >= self.asked.position
        writing = self.taken is not None
        assert (self.cell.state in (CellState.STORING, CellState.MOVED_MEANWHILE)) == writing
        if self.cell.state is CellState.KNOWN:
            assert self.store.raised_to(self.asked) == self.store, "nothing that was asked for is forgotten"


def test_every_sequence_of_inputs_keeps_what_was_asked_for() -> None:
    tried = 0
    for sequence in product(INPUTS, repeat=STEPS):
        world = World()
        position = 0
        for what in sequence:
            if not world.happen(what):
                break
            world.check()
            assert world.cell.position >= position, sequence
            position = world.cell.position
        else:
            tried += 1
            if world.store is not None:
                if world.taken is not None:
                    world.happen("stored")
                world.happen("take")
                if world.taken is not None:
                    world.happen("stored")
                assert world.cell.state is CellState.KNOWN
                world.check()
    assert tried > 2_000


def test_a_cell_says_why_it_has_ended() -> None:
    cell = CursorCell("billing", CursorState(3, 0))
    cell.check()
    cell.end(CursorDeletedError("first"))
    cell.end(CursorDeletedError("second"))
    with pytest.raises(CursorDeletedError, match="first"):
        cell.check()
