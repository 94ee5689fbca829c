"""What a leader knows of keys, in every order of adds, answers, doubts and takeovers; and the window (rule P21)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import pytest
from octavo.client.log.documents.key_window import KEY_BYTES_MAX, WINDOW_ENTRIES_MAX, KeyWindow, encoded_key
from octavo.client.log.keys.form import keyed_of, with_key
from octavo.client.log.keys.known_keys import Answer, KnownKeys, known_from
from octavo.protocol.errors import OctavoTimeoutError

import octavo

KEYS = ("a", "b", "c")
WINDOW = KeyWindow(entries=2, seconds=None)
LATE = OctavoTimeoutError("late")

DEPTH = 7


@dataclass(frozen=True)
class World:
    """A log and its leader, as the writer knows them."""

    sent: tuple[str, ...] = ()
    """The keys of the entries, by their positions."""
    acknowledged: int = 0
    answered: frozenset[int] = frozenset()
    """Positions of which the add has failed for want of an answer, and which are not acknowledged."""
    unsent: frozenset[str] = frozenset()
    """Keys of adds that the writer has taken, and that have no position yet."""

    def under_way(self) -> list[int]:
        return [at for at in range(self.acknowledged, len(self.sent)) if at not in self.answered]


type Step = tuple[str, object]


class Played:
    """A world, with the machine that has gone through the same."""

    def __init__(self, steps: tuple[Step, ...] = (), machine: type[KnownKeys] = KnownKeys) -> None:
        self.world = World()
        self.machine = machine
        self.keys = machine(WINDOW, end=0)
        self.steps: tuple[Step, ...] = ()
        for step in steps:
            self.take(step)

    def possible(self) -> Iterator[Step]:
        world = self.world
        for key in KEYS:
            if self.keys.find(key, 0) is Answer.UNKNOWN:
                yield "send", key
                yield "queue", key
        for key in sorted(world.unsent):
            yield "let in", key
            yield "refuse", key
        for position in world.under_way():
            yield "time out", position
        if world.acknowledged < len(world.sent):
            yield "acknowledge", world.acknowledged
        for cut in range(world.acknowledged, len(world.sent) + 1):
            yield "take over", cut

    def take(self, step: Step) -> Self:
        world, keys = self.world, self.keys
        self.steps = (*self.steps, step)
        match step:
            case "send", str(key):
                keys.begin(key)
                self.world = replace(world, sent=(*world.sent, key))
            case "queue", str(key):
                keys.begin(key)
                self.world = replace(world, unsent=world.unsent | {key})
            case "let in", str(key):
                self.world = replace(world, sent=(*world.sent, key), unsent=world.unsent - {key})
            case "refuse", str(key):
                keys.refused(key)
                self.world = replace(world, unsent=world.unsent - {key})
            case "time out", int(position):
                keys.doubted(world.sent[position], position, 0, LATE)
                self.world = replace(world, answered=world.answered | {position})
            case "acknowledge", int(position):
                if position in world.answered:
                    keys.entries_until(position + 1)
                else:
                    keys.acknowledged(world.sent[position], position, 0)
                self.world = replace(world, acknowledged=position + 1, answered=world.answered - {position})
            case "take over", int(cut):
                kept = world.sent[:cut]
                first = max(0, cut - WINDOW.entries)
                self.keys = self.machine(WINDOW, end=first)
                for at in range(first, cut):
                    self.keys.entry(at, kept[at], 0)
                self.world = World(kept, cut)
        return self

    def judge(self) -> None:
        """Compare what the machine says of each key with what the log holds."""
        self.keys.check_invariants()
        world = self.world
        first = world.acknowledged - WINDOW.entries
        for key in KEYS:
            found = self.keys.find(key, 0)
            there = [at for at in range(max(0, first), world.acknowledged) if world.sent[at] == key]
            pending = [at for at in range(world.acknowledged, len(world.sent)) if world.sent[at] == key]
            if key in world.unsent or any(at not in world.answered for at in pending):
                assert found is Answer.UNDER_WAY, (self.steps, key)
            elif pending:
                assert found is LATE, (self.steps, key)
            elif there:
                assert found == there[-1], (self.steps, key)
            else:
                assert found is Answer.UNKNOWN, (self.steps, key)
            assert len([at for at in there if at >= 0]) + len(pending) <= 1, (self.steps, key)


def explore(machine: type[KnownKeys]) -> int:
    """Take every step in every world; the number of worlds."""
    seen: set[World] = {World()}
    frontier: list[tuple[Step, ...]] = [()]
    for _ in range(DEPTH):
        following: list[tuple[Step, ...]] = []
        for steps in frontier:
            for step in list(Played(steps, machine).possible()):
                played = Played(steps, machine).take(step)
                played.judge()
                if played.world not in seen:
                    seen.add(played.world)
                    following.append(played.steps)
        frontier = following
    return len(seen)


def test_a_key_is_answered_with_its_acknowledged_entry_in_every_order() -> None:
    assert explore(KnownKeys) > 200, "the exploration has stopped early"


class ForgetsDoubt(KnownKeys):
    """A canary: an add that got no answer is taken for one that did not happen."""

    def doubted(self, key: str, position: int, at_ms: int, error: octavo.OctavoError) -> None:
        self.refused(key)


class BelievesDoubt(KnownKeys):
    """A canary: an add that got no answer is taken for one that is in the log."""

    def doubted(self, key: str, position: int, at_ms: int, error: octavo.OctavoError) -> None:
        self.acknowledged(key, position, at_ms)


class KeepsRefused(KnownKeys):
    """A canary: an add that was refused is waited for."""

    def refused(self, key: str) -> None:
        pass


class NeverDecides(KnownKeys):
    """A canary: the end that passes an add in doubt decides nothing."""

    def entries_until(self, end: int) -> None:
        self.end = max(self.end, end)


class ReadsNoKeys(KnownKeys):
    """A canary: a new leader does not read the keys of the log."""

    def entry(self, position: int, key: str | None, at_ms: int) -> None:
        super().entry(position, None, at_ms)


class AnswersEarly(KnownKeys):
    """A canary: the second add of a key is not made to wait for the first one."""

    def find(self, key: str, now_ms: int) -> int | octavo.OctavoError | Answer:
        found = super().find(key, now_ms)
        return self.end if found is Answer.UNDER_WAY else found


CANARIES = [ForgetsDoubt, BelievesDoubt, KeepsRefused, NeverDecides, ReadsNoKeys, AnswersEarly]


@pytest.mark.parametrize("canary", CANARIES)
def test_a_defect_that_is_put_back_is_noticed(canary: type[KnownKeys]) -> None:
    with pytest.raises(AssertionError):
        explore(canary)


def test_a_key_leaves_the_window_with_time() -> None:
    known = known_from(KeyWindow(entries=100, seconds=10), 0, [(0, "a", 1000), (1, None, 5000), (2, "b", 9000)])
    assert known.find("a", 10_999) == 0
    assert known.find("a", 11_000) is Answer.UNKNOWN
    assert known.find("b", 11_000) == 2
    assert len(known) == 1
    known.begin("a")
    known.acknowledged("a", 3, 11_000)
    assert known.find("a", 11_000) == 3
    known.check_invariants()


def test_a_clock_that_goes_back_brings_no_second_position() -> None:
    known = known_from(KeyWindow(entries=100, seconds=10), 0, [(0, "a", 1000)])
    assert known.find("b", 11_000) is Answer.UNKNOWN
    known.begin("a")
    assert known.find("a", 1000) is Answer.UNDER_WAY
    known.acknowledged("a", 1, 1000)
    assert known.find("a", 1000) == 1


def test_the_memory_of_a_window_is_bounded() -> None:
    known = KnownKeys(KeyWindow(entries=50, seconds=None), end=0)
    for position in range(5000):
        known.begin(str(position))
        known.acknowledged(str(position), position, position)
        assert len(known) <= 50
    known.check_invariants()
    assert known.find("4950", 5000) == 4950
    assert known.find("4949", 5000) is Answer.UNKNOWN


@pytest.mark.parametrize("entries", [0, -1, 1.5, True, WINDOW_ENTRIES_MAX + 1, None])
def test_a_window_without_a_sensible_number_of_entries_is_refused(entries: int) -> None:
    with pytest.raises(octavo.InvalidArgumentError, match="entries must be"):
        KeyWindow(entries=entries)


@pytest.mark.parametrize("seconds", [0, -1.0, True, float("inf"), float("nan"), "1"])
def test_a_window_without_a_sensible_time_is_refused(seconds: float) -> None:
    with pytest.raises(octavo.InvalidArgumentError, match="seconds must be"):
        KeyWindow(seconds=seconds)


@pytest.mark.parametrize("key", ["", "x" * (KEY_BYTES_MAX + 1), "é" * 128, "\ud800", b"bytes", 7])
def test_what_can_be_no_key_is_refused(key: object) -> None:
    with pytest.raises(octavo.InvalidArgumentError, match="key"):
        encoded_key(key)


@pytest.mark.parametrize("key", [None, "a", "é" * 127, "x" * KEY_BYTES_MAX])
@pytest.mark.parametrize("payload", [b"", b"payload", bytes(300)])
def test_what_is_stored_with_a_key_comes_back(key: str | None, payload: bytes) -> None:
    assert keyed_of(with_key(b"" if key is None else key.encode(), payload)) == (key, payload)


def test_the_stored_form_is_that_of_the_document() -> None:
    assert with_key(b"k1", b"payload") == bytes.fromhex("02 6b31") + b"payload"
    assert with_key(b"", b"payload") == b"\0payload"


@pytest.mark.parametrize("stored", [b"", b"\x05abc", b"\x01\xffpayload"])
def test_bytes_that_are_no_entry_with_a_key_are_damage(stored: bytes) -> None:
    with pytest.raises(octavo.LogDamagedError):
        keyed_of(stored)
