"""The life of a wire: every state with every event, and every history of a few events."""

import itertools

import pytest
from octavo.client.wire.wire_state import TRANSITIONS, WireEvent, WireState, after

UP = {WireState.READY, WireState.FULL, WireState.PAUSED, WireState.PAUSED_FULL}
OVER = {WireState.LOST, WireState.FAILED}
HISTORY_EVENTS = 7


class Expected:
    """The same life as independent facts."""

    def __init__(self) -> None:
        self.made = self.greeted = self.full = self.paused = self.lost = False

    def can(self, event: WireEvent) -> bool:
        possible = {
            WireEvent.MADE: self.lost or not self.made,
            WireEvent.GREETED: self.made and not self.greeted and not self.lost,
            WireEvent.FILLED: self.takes_requests,
            WireEvent.DRAINED: self.full and not self.lost,
            WireEvent.SOCKET_FULL: self.lost or (self.made and not self.paused),
            WireEvent.SOCKET_DRAINED: self.lost or self.paused,
            WireEvent.LOSE: True,
        }
        return possible[event]

    def do(self, event: WireEvent) -> None:
        match event:
            case _ if self.lost:
                pass
            case WireEvent.MADE:
                self.made = True
            case WireEvent.GREETED:
                self.greeted = True
            case WireEvent.FILLED:
                self.full = True
            case WireEvent.DRAINED:
                self.full = False
            case WireEvent.SOCKET_FULL:
                self.paused = True
            case WireEvent.SOCKET_DRAINED:
                self.paused = False
            case WireEvent.LOSE:
                self.lost = True

    @property
    def takes_requests(self) -> bool:
        return self.greeted and not (self.full or self.paused or self.lost)


def test_the_table_has_an_entry_for_every_state_and_event() -> None:
    assert set(TRANSITIONS) == set(itertools.product(WireState, WireEvent))


def test_every_history_of_a_few_events_is_what_the_facts_say() -> None:
    seen: set[WireState] = set()

    def go_on(state: WireState, history: tuple[WireEvent, ...]) -> None:
        facts = Expected()
        for event in history:
            facts.do(event)
        seen.add(state)
        assert (state is WireState.READY) == facts.takes_requests
        assert (state in OVER) == state.is_over == facts.lost
        assert (state in UP) == (facts.greeted and not facts.lost)
        assert state.was_up == facts.greeted
        if len(history) == HISTORY_EVENTS:
            return
        for event in WireEvent:
            assert (TRANSITIONS[state, event] is not None) == facts.can(event), (history, event)
            if facts.can(event):
                go_on(after(state, event), (*history, event))

    go_on(WireState.CONNECTING, ())
    assert seen == set(WireState)


def test_what_cannot_happen_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="a wire that is connecting cannot be greeted"):
        after(WireState.CONNECTING, WireEvent.GREETED)


def test_a_wire_that_is_over_stays_so_whatever_its_transport_reports() -> None:
    for state, event in itertools.product(OVER, (WireEvent.MADE, WireEvent.SOCKET_FULL, WireEvent.SOCKET_DRAINED)):
        assert after(state, event) is state
