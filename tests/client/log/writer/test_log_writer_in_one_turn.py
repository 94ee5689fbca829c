"""A log's writer when the answers that end its rolls and heals, acknowledgements, failures, time-outs, cancellations, a
close and the loss of its lease fall due in one turn of the loop, in every order (rules P5, P16 and P17).

Its lead keeps what it is given in memory, and waits for the test before it says that a roll or a heal is made. The loop
is that of the simulator, whose timers of one instant run in the order in which they were set.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from octavo.client.counts import ClientCounts
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.lead import LeadHost, LogLead
from octavo.client.log.writer.lock import LogLock
from octavo.client.log.writer.writer import LogWriter
from octavo.client.options import ClientOptions
from octavo.client.write.write_path import EmptyPipeline
from octavo.metadata.store.values import LeaseEnd
from octavo.protocol.errors import (
    InternalError,
    LedgerFencedError,
    MetadataUnavailableError,
    NotLeaderError,
    OctavoError,
    QuorumLostError,
)
from simulation.engine.loop import SimulationLoop
from support.inside import leader_of
from support.metadata.ledger_metadata import open_ledger

TIMEOUT_SECONDS: Final = 1.0
OTHERS_MAX: Final = 3 if os.environ.get("OCTAVO_LONG") else 2


class Segment(ActiveSegment):
    """Keeps what it is given; acknowledges when the test says so."""

    def __init__(self, number: int, first_position: int) -> None:
        super().__init__(number)  # type: ignore[arg-type]
        self.first_position = first_position
        self.full_at = 2**60
        self.entries: list[bytes] = []
        self.acknowledged_count = 0
        self.moved = asyncio.Event()
        self.core = cast(Any, self)
        # What statistics say of the bookies: that nothing was sent to them.
        self.term, self.path, self.pipeline = open_ledger(number).current_term, None, EmptyPipeline(0, 0)

    def at_turn_end(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(step)

    @property
    def length(self) -> int:
        return sum(map(len, self.entries[: self.acknowledged_count]))

    @property
    def length_pushed(self) -> int:
        return sum(map(len, self.entries))

    @property
    def is_written(self) -> bool:
        return bool(self.entries)

    def push(self, payloads: Sequence[bytes]) -> None:
        if self.failure is None:
            self.entries += payloads

    def acknowledge(self) -> None:
        if self.failure is None and self.acknowledged_count < len(self.entries):
            acknowledged = self.entries[self.acknowledged_count :]
            self.acknowledged_count = len(self.entries)
            self.moved.set()
            self.front.acknowledged(self.first_position + self.acknowledged_count, sum(map(len, acknowledged)))

    def fail(self, error: OctavoError | None = None) -> None:
        if self.failure is None:
            self.front.failed(error or QuorumLostError("for a test"))
            self.moved.set()

    async def abandon(self) -> None:
        """Nothing is left to do."""


class Lead:
    """In the manner of a chain where ``drains``, else of a stream, whose rolls need no waiting."""

    def __init__(self, *, drains: bool) -> None:
        self.name, self.log_id, self.term, self.requires_copies = "orders", "id", 3, False
        self.drains = drains
        self.segments = [Segment(0, 0)]
        self.active = self.segments[0]
        self.questions: list[asyncio.Future[None]] = []
        self.upkeep = SimpleNamespace(on_wanted=lambda _begin: None)
        self.began = asyncio.Event()
        """Set when a roll has begun a segment, before the writer hears of it."""
        self.ends_at: int | None = None
        """Where a heal says that the log ends, in place of where it does."""

    async def _answer(self) -> None:
        question: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.questions.append(question)
        await question

    def answer(self, error: OctavoError | None = None) -> None:
        """What the lead is asked for, if anything, is done, or has failed."""
        for question in [question for question in self.questions if not question.done()]:
            if error is None:
                question.set_result(None)
            else:
                question.set_exception(error)

    @property
    def log(self) -> list[bytes]:
        """What the log holds, position by position."""
        held: list[bytes] = []
        for segment in self.segments:
            held = held[: segment.first_position] + segment.entries
        return held

    async def check_lead(self) -> None:
        """No rival is known."""

    async def heal(self) -> Segment:
        await self._answer()
        failed = self.active
        kept = max(failed.acknowledged_count, len(failed.entries) // 2)  # a recovery finds half of what is in doubt
        del failed.entries[kept:]
        stop = failed.first_position + kept if self.ends_at is None else self.ends_at
        self.segments.append(Segment(len(self.segments), stop))
        return self.segments[-1]

    def healed(self, segment: ActiveSegment) -> None:
        self.active = cast(Segment, segment)

    async def roll(self, host: LeadHost) -> None:
        await self._answer()
        if not self.drains:
            return
        await host.drain_segment()
        following = Segment(len(self.segments), 0)
        self.segments.append(following)
        self.active = following
        host.begin_segment(following)
        self.began.set()

    async def rest(self, seconds: float) -> None:
        del seconds
        while self.active.acknowledged_count < len(self.active.entries) and self.active.failure is None:
            self.active.moved.clear()
            await self.active.moved.wait()

    def lacking_copies(self) -> None:
        """Nothing."""

    def begin_watching(self, _on_end: object, _on_failure: object) -> SimpleNamespace:
        return SimpleNamespace(stop=lambda: None)

    async def abandon(self) -> None:
        """Nothing is left to do."""


class Lock:
    """The lease of the leader's lock."""

    loss = LeaseEnd("it was taken by another process")

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self.tell: Callable[[], object]

    async def wait_lost(self) -> None:
        await self.lost.wait()

    def when_lost(self, act: Callable[[], object]) -> None:
        self.tell = act

    def lose(self) -> None:
        if not self.lost.is_set():
            self.lost.set()
            self.tell()

    async def release(self) -> None:
        """It is given back."""


class Scene:
    """A writer with adds that wait, before the turn in which everything happens."""

    def __init__(self, *, drains: bool, **options: Any) -> None:
        access: Any = SimpleNamespace(
            options=ClientOptions(
                **{"log_duel_pause_seconds": 0.001} | options, window_entries=2, close_timeout_seconds=5.0
            ),
            uniform=lambda low, _high: low,
            counts=ClientCounts(),
        )
        self.lead, self.lock = Lead(drains=drains), Lock()
        lead, lock = cast(LogLead, self.lead), cast(LogLock, self.lock)
        self.writer = LogWriter(access, lead, lease=lock, on_close=lambda _writer: None)
        self.adds: dict[str, tuple[list[bytes], asyncio.Future[Any]]] = {}
        self.calls: list[asyncio.Future[Any]] = []
        self.settled: dict[str, tuple[set[str], set[bytes]]] = {}
        """Of each flush and close that has ended: the adds before it, and what was in the log."""

    def add(self, name: str, count: int = 1) -> None:
        payloads = [f"{name}{number}".encode() for number in range(count)]
        call = self.writer.add_many(payloads) if count > 1 else self.writer.add(payloads[0])
        self.adds[name] = payloads, asyncio.ensure_future(call)

    # --- what may happen in the turn ----------------------------------------------------------------------------------

    def happen(self, event: str) -> None:
        match event:
            case "acknowledge":
                self.lead.active.acknowledge()
            case "answer":
                self.lead.answer()
            case "refuse":
                self.lead.answer(MetadataUnavailableError("for a test", may_have_happened=False))
            case "fail":
                self.lead.active.fail()
            case "lose":
                self.lock.lose()
            case "cancel":
                self.adds["a"][1].cancel()
            case _:
                self._call(event)

    def _call(self, method: str) -> None:
        before = {*self.adds}

        async def call() -> None:
            await getattr(self.writer, method)()
            if method != "roll":
                self.settled[method] = before, set(self.lead.log)

        self.calls.append(asyncio.ensure_future(call()))

    # --- what must be so afterwards -----------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Let go on what can go on, and close the writer."""
        closing: asyncio.Future[None] | None = None
        for step in range(60):
            await asyncio.sleep(0.1)
            self.lead.answer()
            self.lead.active.acknowledge()
            if step == 10:
                closing = asyncio.ensure_future(self.writer.close())
        assert closing is not None
        await asyncio.wait([closing, *self.calls])
        for call in (closing, *self.calls):
            error = call.exception()
            assert error is None or isinstance(error, OctavoError), error

    def check(self) -> None:
        log = self.lead.log
        assert all(adding.done() for _, adding in self.adds.values()), "every add has come to an end"
        assert len(set(log)) == len(log), "nothing is in the log twice"
        position_of = {payload: position for position, payload in enumerate(log)}
        for payloads, adding in self.adds.values():
            in_log = [payload for payload in payloads if payload in position_of]
            assert in_log == payloads[: len(in_log)], "a beginning"
            if adding.cancelled():
                continue
            if (error := adding.exception()) is None:
                result = adding.result()
                positions = [result] if len(payloads) == 1 else [*result]
                assert positions == [position_of.get(payload) for payload in payloads]
                continue
            assert isinstance(error, OctavoError)
            doubt = error.doubt
            assert error.may_have_happened == (doubt is not None)
            if doubt is None:
                assert not in_log, "what did not happen is not in the log"
                continue
            assert len(in_log) <= doubt.sent
            assert doubt.sent + doubt.unsent == len(payloads)
            if in_log:
                assert position_of[in_log[0]] == doubt.position + 1 - doubt.sent
        for before, held in self.settled.values():
            late = {payload for add in before for payload in self.adds[add][0]} - held
            assert not late & position_of.keys(), "nothing that was waited for is added afterwards"


# --- scenes -----------------------------------------------------------------------------------------------------------


async def rolling(scene: Scene) -> None:
    """A roll has been begun; one add is sent, two wait for room."""
    scene.happen("roll")
    await asyncio.sleep(0)
    for name in "xab":
        scene.add(name)


async def draining(scene: Scene) -> None:
    """The next segment is there, and the writer waits for what it has sent; two adds wait for that."""
    scene.happen("roll")
    await asyncio.sleep(0)
    scene.lead.answer()
    await asyncio.sleep(0.01)
    scene.add("a", 3)
    scene.add("b")


async def healing(scene: Scene) -> None:
    """The segment has failed, with one add in doubt."""
    scene.lead.active.fail()
    scene.add("a")
    scene.add("b", 3)
    await asyncio.sleep(0.01)


SCENES: Final = [rolling, draining, healing]
EVENTS: Final = ("acknowledge", "answer", "refuse", "fail", "lose", "cancel", "flush", "close", "roll")
TIMER: Final = "timer"


def orders() -> Iterator[tuple[str, ...]]:
    """The time-out among other events, in every order."""
    for others in range(1, OTHERS_MAX + 1):
        for chosen in itertools.combinations(EVENTS, others):
            yield from itertools.permutations((TIMER, *chosen))


def run(prepare: Callable[[Scene], Any], order: Sequence[str], *, drains: bool, **options: Any) -> Scene:
    """The events, in this order, in one turn, with the time-outs of the scene's adds where the order says."""
    loop = SimulationLoop()

    async def main() -> Scene:
        scene = Scene(drains=drains, **{"log_add_timeout_seconds": TIMEOUT_SECONDS} | options)
        scene.add("first")
        await asyncio.sleep(TIMEOUT_SECONDS / 2)
        due, at = loop.time() + TIMEOUT_SECONDS, order.index(TIMER)
        for event in order[:at]:
            loop.call_at(due, scene.happen, event)
        # Waits of the scene put off the time-outs of later adds by as much.
        await prepare(scene)
        await asyncio.sleep(0)
        for event in order[at + 1 :]:
            loop.call_at(max(due, loop.time()), scene.happen, event)
        await asyncio.sleep(1.5 * TIMEOUT_SECONDS)
        await scene.finish()
        return scene

    try:
        scene: Scene = loop.run_until_complete(main())
        assert not loop.complaints, loop.complaints
        return scene
    finally:
        loop.close()


@pytest.mark.parametrize("prepare", SCENES)
@pytest.mark.parametrize("drains", [True, False], ids=["chain", "stream"])
@pytest.mark.parametrize("options", [{}, {"log_add_timeout_seconds": None}], ids=["timeout", "patient"])
def test_whatever_falls_into_one_turn_adds_are_told_what_became_of_them(
    prepare: Callable[[Scene], Any], drains: bool, options: dict[str, Any]
) -> None:
    for order in orders():
        try:
            run(prepare, order, drains=drains, **options).check()
        except AssertionError as error:
            error.add_note(f"the order: {', '.join(order)}")
            raise


def test_a_close_fails_no_add_that_is_made_while_it_waits() -> None:
    """Its share of the time for adds ends before the heal does, and the heal before the time for closing."""
    loop = SimulationLoop()

    async def main() -> None:
        scene = Scene(drains=True, log_add_timeout_seconds=None)
        scene.lead.active.fail()
        scene.add("a")
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(scene.writer.close())
        await asyncio.sleep(4.5)
        scene.lead.answer()
        await asyncio.sleep(0.01)
        scene.lead.active.acknowledge()
        await closing
        assert scene.adds["a"][1].result() == 0
        assert scene.lead.log == [b"a0"]

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_a_roll_that_is_asked_for_in_the_turn_in_which_another_ends_is_made() -> None:
    """What was added in between is in the segment that the first one began."""
    loop = SimulationLoop()

    async def main() -> None:
        scene = Scene(drains=True, log_add_timeout_seconds=None)
        scene.add("a")
        await asyncio.sleep(0.01)
        scene.lead.active.acknowledge()
        scene.happen("roll")
        await asyncio.sleep(0.01)
        scene.lead.answer()
        await scene.lead.began.wait()
        seen = scene.writer.statistics()
        assert (seen.rolls, seen.is_rolling) == (1, True), "it is made, and its end is not noted yet"
        payload = scene.writer.add_nowait(b"b0")
        leader_of(scene.writer).adds.send_turn()
        scene.lead.active.acknowledge()
        under_way: list[bool] = []
        loop.call_later(0.005, lambda: under_way.append(scene.writer.statistics().is_rolling))
        loop.call_later(0.01, scene.lead.answer)
        await scene.writer.roll()  # begins in this very step
        assert under_way == [True], "a heal or a close could not stop it"
        assert payload.result() == 1
        assert [segment.entries for segment in scene.lead.segments] == [[b"a0"], [b"b0"], []]
        await scene.writer.close()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


# --- a leader that is none any more, or must not go on ----------------------------------------------------------------


def play[T](act: Callable[[Scene], Coroutine[Any, Any, T]], *, drains: bool = True, **options: Any) -> T:
    """A scene in which things happen one after another."""
    loop = SimulationLoop()

    async def main() -> T:
        return await act(Scene(drains=drains, **{"log_add_timeout_seconds": None} | options))

    try:
        result: T = loop.run_until_complete(main())
        return result
    finally:
        loop.close()


async def acknowledged(scene: Scene, *names: str) -> None:
    """This number of adds is made, one by one."""
    for name in names:
        scene.add(name)
        await asyncio.sleep(0.01)
        scene.lead.active.acknowledge()


@pytest.mark.parametrize("ends_at", [1, 5], ids=["below-what-was-acknowledged", "above-what-was-sent"])
def test_a_leader_that_finds_the_end_of_its_log_where_it_cannot_be_does_not_go_on(ends_at: int) -> None:
    """Its acknowledged adds are gone, or others have added: it must not give their positions to anything."""

    async def act(scene: Scene) -> None:
        await acknowledged(scene, "a", "b")
        scene.add("c", 2)
        await asyncio.sleep(0.01)
        scene.lead.ends_at = ends_at
        scene.lead.active.fail()
        scene.add("d")
        await asyncio.sleep(0.01)
        scene.lead.answer()
        await asyncio.sleep(0.01)
        assert scene.writer.lost.is_set()
        for name in "cd":
            assert isinstance(scene.adds[name][1].exception(), InternalError)
        assert scene.lead.segments[-1].entries == []
        assert (scene.writer.lost_reason or "").startswith(f"its segment ended at {ends_at}")

    play(act)


def test_a_leader_that_has_lost_the_lock_sends_nothing_more() -> None:
    """Rule P4. What it has sent may still be acknowledged."""

    async def act(scene: Scene) -> None:
        scene.add("a", 2)
        scene.add("b")  # waits for room
        await asyncio.sleep(0.01)
        scene.happen("lose")
        await asyncio.sleep(0.01)
        scene.add("c")
        await asyncio.sleep(0.01)
        scene.lead.active.acknowledge()
        await asyncio.sleep(0.01)
        assert scene.adds["a"][1].result() == range(2)
        for name in "bc":
            error = scene.adds[name][1].exception()
            assert isinstance(error, NotLeaderError)
            assert not error.may_have_happened
        assert scene.lead.log == [b"a0", b"a1"]

    play(act)


def test_a_leader_that_loses_the_lock_does_not_heal() -> None:
    """It would take the log over from the client that has the lock by now."""

    async def act(scene: Scene) -> None:
        scene.happen("lose")
        await asyncio.sleep(0.01)
        scene.lead.active.fail()
        await asyncio.sleep(0.1)
        assert not scene.lead.questions

    play(act)


def test_a_leader_that_loses_the_lock_while_it_heals_ends_at_once() -> None:
    async def act(scene: Scene) -> None:
        scene.lead.active.fail()
        scene.add("a")
        await asyncio.sleep(0.01)
        scene.happen("lose")
        await asyncio.sleep(0.01)
        assert scene.adds["a"][1].done(), "it does not wait for the heal"
        scene.lead.answer()
        await asyncio.sleep(0.01)
        assert isinstance(scene.adds["a"][1].exception(), NotLeaderError)
        assert scene.lead.log == []

    play(act)


def test_a_leader_that_loses_the_lock_rolls_no_further() -> None:
    async def act(scene: Scene) -> None:
        await acknowledged(scene, "a")
        scene.happen("roll")
        await asyncio.sleep(0.01)
        scene.happen("lose")
        await asyncio.sleep(0.01)
        scene.lead.answer()
        await asyncio.sleep(0.01)
        assert len(scene.lead.segments) == 1

    play(act)


def test_a_leader_that_was_fenced_pauses_before_it_heals() -> None:
    """Rule L4: two clients that both believe to lead would fence each other in turn."""

    async def act(scene: Scene) -> None:
        scene.lead.active.fail(LedgerFencedError("for a test"))
        await asyncio.sleep(0.9)
        assert not scene.lead.questions
        await asyncio.sleep(0.2)
        assert scene.lead.questions

    play(act, log_duel_pause_seconds=1.0)
