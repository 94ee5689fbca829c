"""The front of a log's writer when several things fall due in one turn of the loop, in every order (rule P16).

The loop is that of the simulator: its timers of one instant run in the order in which they were set, so a time-out can
be put before, between and behind the answers that make room, end a hold, or end the writer.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, cast

import pytest
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.writer.adds import LogAdds
from octavo.client.options import ClientOptions
from octavo.client.write.front.front import short_way
from octavo.protocol.errors import Doubt, NotLeaderError, OctavoError, OctavoTimeoutError
from octavo.protocol.ids import LedgerId
from simulation.engine.loop import SimulationLoop

TIMEOUT_SECONDS: Final = 1.0

OTHERS_MAX: Final = 4 if os.environ.get("OCTAVO_LONG") else 2
"""Events beside the time-out that fall into the turn."""


class Front(LogAdds):
    """Notes what it has sent, by position. A position never gets another payload (rule P5)."""

    def __init__(self, **options: Any) -> None:
        segment = ActiveSegment(LedgerId(0))
        segment.core = cast(Any, self)
        super().__init__(
            segment, log_id="id", term=3, options=ClientOptions(**options), check_usable=self._raise_if_ended,
            refuse_for_ever=lambda _error: None,
        )  # fmt: skip
        self._front = self.front
        self.log: dict[int, bytes] = {}
        self.ended: OctavoError | None = None
        self.settled: dict[str, set[bytes]] = {}
        """Of each flush that has ended, what had been sent by then."""

    length_pushed = 0

    def at_turn_end(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(step)

    def _raise_if_ended(self) -> None:
        if self.ended is not None:
            raise self.ended

    def push(self, payloads: list[bytes]) -> None:
        """What the segment is given."""
        (first,) = [batch.first for batch in self.front.batches if batch.payloads is payloads]
        for position, payload in enumerate(payloads, first):
            assert self.log.setdefault(position, payload) == payload, "a position keeps its payload"

    @short_way
    async def add(self, payload: bytes, *, expected_position: int | None = None) -> Any:
        return await self.front.begin(payload, expected_position)

    async def add_many(self, payloads: list[bytes]) -> range:
        return await self.front.add_many(payloads)

    @property
    def acknowledged(self) -> set[bytes]:
        return {payload for position, payload in self.log.items() if position < self.front.acknowledged_stop}

    def is_untouched(self, payload: bytes) -> bool:
        """Whether an add with this payload waits in the queue, and nothing of it has found room."""
        return any(payload in waiting.payloads and waiting.at == 0 for waiting in self.front.queue)

    # --- what may happen in the turn ----------------------------------------------------------------------------------

    def acknowledge(self, stop: int | None = None) -> None:
        stop = len(self.log) if stop is None else stop
        self.front.acknowledge(stop, self.front.bytes_below(stop))

    def roll(self) -> None:
        """What was sent is acknowledged, and the next segment begins."""
        if self.ended is None:
            self.acknowledge()
            self.release()

    def heal(self) -> None:
        """The recovered end holds half of what was sent; the rest is sent again."""
        if self.ended is None:
            self.front.hold()
            self.forget_segment()
            self.acknowledge(max(self.front.acknowledged_stop, len(self.log) // 2))
            self.release()

    def hold(self) -> None:
        if self.ended is None:
            self.front.hold()

    def lose(self) -> None:
        self.ended = self.ended or NotLeaderError("lost", may_have_happened=False)
        self.refuse_unsent(self.ended)

    def end(self) -> None:
        self.ended = self.ended or NotLeaderError("ended", may_have_happened=False)
        self.refuse_all(self.ended)


class Scene:
    """Adds that wait, before the turn in which everything happens."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.adds: dict[str, tuple[list[bytes], asyncio.Future[Any]]] = {}
        self.flushes: dict[str, tuple[set[str], asyncio.Future[None]]] = {}
        self.withdrawn: set[str] = set()
        """Adds that were cancelled while nothing of them had found room."""

    def add(self, name: str, count: int = 1, **options: Any) -> None:
        payloads = [f"{name}{number}".encode() for number in range(count)]
        adding = self.front.add_many(payloads) if count > 1 else self.front.add(payloads[0], **options)
        self.adds[name] = payloads, asyncio.ensure_future(adding)

    def cancel(self, name: str) -> None:
        payloads, adding = self.adds[name]
        if not adding.done() and self.front.is_untouched(payloads[0]):
            self.withdrawn.add(name)
        adding.cancel()

    def flush(self) -> None:
        name = f"flush {len(self.flushes)}"

        async def flush() -> None:
            await self.front.wait_settled()
            self.front.settled[name] = set(self.front.log.values())

        self.flushes[name] = {*self.adds}, asyncio.ensure_future(flush())

    async def finish(self) -> None:
        """Let go on what can go on, to the end."""
        front = self.front
        for _ in range(8):
            if front.ended is None:
                front.release()
            for _ in range(4):
                await asyncio.sleep(0.01)
                front.acknowledge()
        if front.ended is not None:
            front.end()
        await asyncio.sleep(0.01)

    def check(self) -> None:
        front = self.front
        assert sorted(front.log) == [*range(len(front.log))], "positions are dense"
        assert all(adding.done() for _, adding in self.adds.values()), "every add has come to an end"
        assert all(flushing.done() for _, flushing in self.flushes.values()), "every flush has come to an end"
        sent = {payload: position for position, payload in front.log.items()}
        assert len(sent) == len(front.log), "nothing is in the log twice"
        for name, (payloads, adding) in self.adds.items():
            in_log = [payload for payload in payloads if payload in sent]
            assert in_log == payloads[: len(in_log)], "a beginning"
            if adding.cancelled():
                assert not in_log or name not in self.withdrawn, "a withdrawn add is not sent"
            elif (error := adding.exception()) is None:
                result = adding.result()
                positions = [result] if len(payloads) == 1 else [*result]
                assert positions == [sent[payload] for payload in payloads]
            else:
                assert isinstance(error, OctavoError)
                self._check_told(payloads, in_log, sent, error)
        for name, (before, _) in self.flushes.items():
            late = {payload for add in before for payload in self.adds[add][0]} - front.settled[name]
            assert not late & sent.keys(), "nothing that a flush waited for is sent after it"

    def _check_told(
        self, payloads: list[bytes], in_log: list[bytes], sent: dict[bytes, int], error: OctavoError
    ) -> None:
        doubt = error.doubt
        assert error.may_have_happened == (doubt is not None)
        if doubt is None:
            assert not in_log, "what did not happen is not sent"
            return
        assert doubt.sent + doubt.unsent == len(payloads)
        assert len(in_log) == doubt.sent or (self.front.ended is not None and len(in_log) < doubt.sent)
        if in_log:
            assert sent[in_log[0]] == doubt.position + 1 - doubt.sent


# --- scenes: what waits, by the time of the turn ----------------------------------------------------------------------


async def fill(scene: Scene) -> None:
    """One add is sent, and takes the room of one."""
    scene.add("first")
    await asyncio.sleep(TIMEOUT_SECONDS / 2)


async def in_the_queue(scene: Scene) -> None:
    scene.add("a")
    scene.add("b")
    scene.add("c", expected_position=3)


async def held(scene: Scene) -> None:
    scene.front.hold()
    scene.add("a")
    scene.add("b")


async def collected_and_held(scene: Scene) -> None:
    scene.front.acknowledge()
    scene.add("a")
    scene.add("b", expected_position=2)
    await asyncio.sleep(0)
    scene.front.hold()


async def many_in_the_queue(scene: Scene) -> None:
    scene.front.acknowledge()
    scene.add("a", 3)
    scene.add("b")


async def many_and_held(scene: Scene) -> None:
    scene.front.acknowledge()
    scene.add("b")
    scene.add("a", 3)
    await asyncio.sleep(0)
    scene.front.hold()


SCENES: Final = [in_the_queue, held, collected_and_held, many_in_the_queue, many_and_held]

EVENTS: Final = ("acknowledge", "roll", "heal", "hold", "lose", "end", "cancel", "flush", "add")
TIMER: Final = "timer"


def orders(others: int) -> Iterator[tuple[str, ...]]:
    """The time-out among this number of other events, in every order."""
    for chosen in itertools.combinations(EVENTS, others):
        yield from itertools.permutations((TIMER, *chosen))


def run(prepare: Callable[[Scene], Any], order: Sequence[str], **options: Any) -> Scene:
    """The events, in this order, in one turn: the time-outs of the scene's adds are where the order says."""
    loop = SimulationLoop()

    def happen(scene: Scene, event: str) -> None:
        if event == "cancel":
            scene.cancel("a")
        elif event == "flush":
            scene.flush()
        elif event == "add":
            scene.add("late")
        else:
            getattr(scene.front, event)()

    async def main() -> Scene:
        scene = Scene(Front(window_entries=2, **{"log_add_timeout_seconds": TIMEOUT_SECONDS} | options))
        await fill(scene)
        due = loop.time() + TIMEOUT_SECONDS
        at = order.index(TIMER)
        for event in order[:at]:
            loop.call_at(due, happen, scene, event)
        await prepare(scene)
        await asyncio.sleep(0)  # the adds set their timers
        for event in order[at + 1 :]:
            loop.call_at(due, happen, scene, event)
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
@pytest.mark.parametrize("options", [{}, {"frame_interval_seconds": 0.2}, {"log_add_timeout_seconds": None}])
def test_whatever_falls_into_one_turn_an_add_is_told_what_became_of_it(
    prepare: Callable[[Scene], Any], options: dict[str, Any]
) -> None:
    for order in itertools.chain.from_iterable(map(orders, range(1, OTHERS_MAX + 1))):
        try:
            run(prepare, order, **options).check()
        except AssertionError as error:
            error.add_note(f"the order: {', '.join(order)}")
            raise


@pytest.mark.parametrize("answer", ["roll", "heal"])
@pytest.mark.parametrize("comes_first", [False, True])
def test_an_add_that_did_not_happen_is_not_sent_when_the_hold_ends_in_the_turn_of_its_time_out(
    answer: str, comes_first: bool
) -> None:
    """Its caller adds it again: sent after all, it would be in the log twice."""
    scene = run(held, (answer, TIMER) if comes_first else (TIMER, answer))
    scene.check()
    error = scene.adds["a"][1].exception()
    assert isinstance(error, OctavoTimeoutError)
    assert not error.may_have_happened
    assert [*scene.front.log.values()] == [b"first0"]


def test_an_add_many_that_times_out_in_the_turn_in_which_it_gets_room_gets_none() -> None:
    """What it is told to have sent is all that is sent: ``log.added`` tells the caller where to go on."""
    scene = run(many_in_the_queue, (TIMER, "acknowledge"))
    scene.check()
    error = scene.adds["a"][1].exception()
    assert isinstance(error, OctavoTimeoutError)
    assert error.doubt == Doubt("id", 3, 2, sent=2, unsent=1)
    assert [*scene.front.log.values()] == [b"first0", b"a0", b"a1"]


def test_a_time_out_that_makes_room_lets_in_what_waits_for_it() -> None:
    """Nothing is under way whose acknowledgement would."""
    loop = SimulationLoop()

    async def main() -> None:
        front = Front(window_entries=2, log_add_timeout_seconds=0.3, frame_interval_seconds=1.0)
        scene = Scene(front)
        scene.add("first", 2)
        await asyncio.sleep(0.01)
        front.acknowledge()
        scene.add("a")
        scene.add("b")
        await asyncio.sleep(0.1)
        scene.add("c")
        await asyncio.sleep(0.25)
        assert front.front.payloads == [b"c0"], "the adds before it have timed out, and take no room"
        await scene.finish()
        scene.check()

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
