"""The life of a writer: every state with every event, and every history of a few events."""

import itertools

import pytest
from octavo.client.write.writer_life import TRANSITIONS, WriterEvent, WriterLife, WriterState
from octavo.protocol.errors import LedgerFencedError, NoSuchLedgerError, OctavoError, QuorumLostError

HISTORY_EVENTS = 7
FENCED, DELETED, TOO_LATE = LedgerFencedError("fenced"), NoSuchLedgerError("deleted"), QuorumLostError("too late")


def happen(life: WriterLife, event: WriterEvent, error: OctavoError = FENCED) -> bool | None:
    match event:
        case WriterEvent.FAIL:
            return life.fail(error)
        case WriterEvent.CLOSE:
            return life.close()
        case WriterEvent.DRAINED:
            life.drained()
        case WriterEvent.REFUSED:
            life.refused()
        case WriterEvent.ENDED:
            life.ended()
    return None


def test_the_table_has_an_entry_for_every_state_and_event() -> None:
    assert set(TRANSITIONS) == set(itertools.product(WriterState, WriterEvent))


def test_every_history_of_a_few_events_is_what_the_facts_say() -> None:
    """The facts: what has happened so far, in which order."""
    seen: set[WriterState] = set()

    def go_on(history: tuple[WriterEvent, ...]) -> None:  # noqa: PLR0912 - one branch per event
        life = WriterLife()
        closing = drained = refused = ended = False
        failure: OctavoError | None = None
        for number, event in enumerate(history):
            error = OctavoError(str(number))
            told = happen(life, event, error)
            match event:
                case WriterEvent.FAIL:
                    counts = failure is None and not drained and not ended
                    assert told is counts, history
                    failure = error if counts else failure
                case WriterEvent.CLOSE:
                    assert told is not closing, history
                    closing = True
                case WriterEvent.DRAINED:
                    drained = True
                case WriterEvent.REFUSED:
                    refused, closing = True, False  # closing it again begins anew
                case WriterEvent.ENDED:
                    ended = closing = True
        seen.add(life.state)
        assert life.failure is failure, "the first failure counts (rule W7)"
        takes_adds = failure is None and not closing and not refused
        assert (life.state is WriterState.OPEN) == takes_adds, "only then it takes adds"
        assert (life.state is WriterState.CLOSED) == ended
        if len(history) == HISTORY_EVENTS:
            return
        for event in WriterEvent:
            possible = TRANSITIONS[life.state, event] is not None
            match event:
                case WriterEvent.DRAINED:
                    assert possible == (closing and not ended and (failure is not None or not drained)), history
                case WriterEvent.REFUSED:
                    assert possible == (closing and failure is None and not drained and not ended), history
                case WriterEvent.ENDED:
                    assert possible == ((closing or (refused and failure is None)) and not ended), history
                case _:
                    assert possible, history
            if possible:
                go_on((*history, event))

    go_on(())
    assert seen == set(WriterState)


def test_what_cannot_happen_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="drained: not while the writer is open"):
        WriterLife().drained()


@pytest.mark.parametrize(
    ("failure", "adds_failed", "end_written", "reported"),
    [
        (None, False, True, None),
        (None, False, False, TOO_LATE),
        (None, True, True, TOO_LATE),
        (FENCED, False, True, None),
        (FENCED, False, False, FENCED),
        (FENCED, True, True, FENCED),
    ],
)
def test_closing_reports_adds_that_failed_and_an_end_that_is_not_written(
    failure: OctavoError | None, adds_failed: bool, end_written: bool, reported: OctavoError | None
) -> None:
    life = WriterLife()
    if failure is not None:
        life.fail(failure)
        assert not life.fail(DELETED), "a later failure does not replace the first"
    life.close()
    life.drained()
    if adds_failed:
        life.adds_failed()
    life.settled(TOO_LATE, end_written=end_written)
    life.ended()
    assert life.close_error is reported
