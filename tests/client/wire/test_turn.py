"""The end of a turn: steps first, then connections; a defect holds up no other, and an interruption loses nothing."""

import asyncio
from collections.abc import Callable

import pytest
from octavo.client.wire.turn import Turn


class Sender:
    """A connection that notes when it sends."""

    def __init__(self, name: str, happened: list[str], *, fault: BaseException | None = None) -> None:
        self._name = name
        self._happened = happened
        self._fault = fault

    def send_posted(self) -> None:
        self._happened.append(self._name)
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault


async def turns(count: int = 2) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture
def happened() -> list[str]:
    return []


@pytest.fixture
async def reported() -> list[BaseException]:
    """What the loop's handler of exceptions is told."""
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    return told


def noting(happened: list[str], name: str) -> Callable[[], None]:
    return lambda: happened.append(name)


async def test_steps_come_before_what_the_connections_send(happened: list[str]) -> None:
    turn = Turn()
    turn.sends(Sender("sent", happened))
    turn.at_end(noting(happened, "first"))
    turn.at_end(noting(happened, "second"))
    assert happened == []
    await turns()
    assert happened == ["first", "second", "sent"]


async def test_everything_happens_once(happened: list[str]) -> None:
    turn = Turn()
    turn.at_end(noting(happened, "step"))
    turn.sends(Sender("sent", happened))
    await turns(5)
    assert happened == ["step", "sent"]
    turn.at_end(noting(happened, "again"))
    await turns(5)
    assert happened == ["step", "sent", "again"]


async def test_what_a_step_posts_is_sent_in_its_turn_and_its_own_steps_wait_for_the_next(happened: list[str]) -> None:
    turn = Turn()

    def step() -> None:
        happened.append("step")
        turn.sends(Sender("sent", happened))
        turn.at_end(noting(happened, "later step"))

    turn.at_end(step)
    await turns(1)
    assert happened == ["step", "sent"]
    await turns(1)
    assert happened == ["step", "sent", "later step"]


async def test_what_is_asked_for_while_connections_send_happens_in_the_next_turn(happened: list[str]) -> None:
    turn = Turn()

    class Reposting:
        def send_posted(self) -> None:
            happened.append("first")
            turn.sends(Sender("second", happened))
            turn.at_end(noting(happened, "step"))

    turn.sends(Reposting())
    await turns(3)
    assert happened == ["first", "step", "second"]


async def test_a_defect_of_one_is_reported_and_holds_up_no_other(
    happened: list[str], reported: list[BaseException]
) -> None:
    turn = Turn()
    fault_of_step, fault_of_sender = ValueError("step"), ValueError("sender")

    def broken() -> None:
        raise fault_of_step

    turn.at_end(broken)
    turn.at_end(noting(happened, "step"))
    turn.sends(Sender("broken", happened, fault=fault_of_sender))
    turn.sends(Sender("sent", happened))
    await turns()
    assert happened == ["step", "broken", "sent"]
    assert reported == [fault_of_step, fault_of_sender]


class Interrupted(BaseException):
    """As KeyboardInterrupt, but the loop goes on: it tells its handler."""


async def test_an_interrupted_step_leaves_the_others_and_the_connections_to_the_next_turn(
    happened: list[str], reported: list[BaseException]
) -> None:
    turn = Turn()
    interruption = Interrupted()

    def interrupting() -> None:
        raise interruption

    turn.at_end(noting(happened, "first"))
    turn.at_end(interrupting)
    turn.at_end(noting(happened, "second"))
    turn.sends(Sender("sent", happened))
    await turns(1)
    assert happened == ["first"]
    await turns(3)
    assert happened == ["first", "second", "sent"]
    assert reported == [interruption], "it reaches the loop"


async def test_an_interrupted_connection_leaves_the_others_to_the_next_turn(
    happened: list[str], reported: list[BaseException]
) -> None:
    turn = Turn()
    interruption = Interrupted()
    turn.sends(Sender("interrupted", happened, fault=interruption))
    turn.sends(Sender("sent", happened))
    await turns(1)
    assert happened == ["interrupted"]
    await turns(3)
    assert happened == ["interrupted", "sent"]
    assert reported == [interruption], "it reaches the loop"
