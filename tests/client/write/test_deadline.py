"""When adds have waited too long, and with which error their writer fails: every case, as a table."""

import pytest
from octavo.client.write.deadline import (
    ChangeProgress,
    Deadline,
    LookAgain,
    NothingWaits,
    Step,
    TooLate,
    is_out_of_reach,
)
from octavo.client.write.ensemble_changes import Phase
from octavo.protocol.errors import (
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OctavoError,
    QuorumLostError,
    UnauthorizedError,
)
from octavo.protocol.ids import LedgerId
from octavo.protocol.quorums import Quorums

IDLE = ChangeProgress(Phase.IDLE, None, None)
ASKED = ChangeProgress(Phase.SEEKING, 9.0, None)
CHOSEN = ChangeProgress(Phase.SEEKING, None, None)
COPYING = ChangeProgress(Phase.COPYING, None, None)
COMMITTING = ChangeProgress(Phase.COMMITTING, None, None)


@pytest.mark.parametrize(
    ("pending_since", "progress", "expected"),
    [
        (None, IDLE, NothingWaits()),
        (None, COMMITTING, NothingWaits()),
        (5.0, IDLE, LookAgain(15.0)),  # what waited first is acknowledged, this was pushed later
        (5.0, ASKED, LookAgain(15.0)),
        (0.0, IDLE, TooLate()),
        (0.0, CHOSEN, TooLate()),  # the spare cannot be reached: that is no fault of the store
        (0.0, COPYING, TooLate()),
        (0.0, ASKED, LookAgain(11.0)),
        (0.0, COMMITTING, LookAgain(11.0)),
    ],
)
def test_after_ten_seconds_adds_are_too_late_unless_the_metadata_store_is_being_asked(
    pending_since: float | None, progress: ChangeProgress, expected: Step
) -> None:
    deadline = Deadline(10.0)
    assert deadline.begins(0.0) == LookAgain(10.0)
    assert deadline.look(pending_since, 10.0, progress) == expected


def test_the_deadline_is_postponed_once_for_each_oldest_add() -> None:
    deadline = Deadline(10.0)
    assert deadline.look(0.0, 10.0, ASKED) == LookAgain(11.0)
    assert deadline.look(0.5, 11.0, ASKED) == LookAgain(12.0), "the oldest add has been acknowledged meanwhile"
    assert deadline.look(0.5, 12.0, ASKED) == TooLate()
    assert deadline.look(0.5, 12.0, COMMITTING) == TooLate()


NO_BOOKIES = NotEnoughBookiesError("no bookie is available")
NO_ANSWER = MetadataUnavailableError("no answer from the store")
ANSWERS = "ledger 7: adds did not reach their ack quorum within 10 s; bookie b0: not connected"
NOT_CONFIRMED = f"{ANSWERS}; the metadata store did not confirm the change of the ensemble"


@pytest.mark.parametrize("denied", [False, True])
@pytest.mark.parametrize(
    ("phase", "asked_at", "no_spare", "expected"),
    [
        # The store left a question without an answer from before the grace to its end.
        (Phase.SEEKING, 9.5, None, MetadataUnavailableError(NOT_CONFIRMED)),
        (Phase.SEEKING, 10.0, NO_BOOKIES, MetadataUnavailableError(NOT_CONFIRMED)),
        (Phase.COMMITTING, None, None, MetadataUnavailableError(NOT_CONFIRMED)),
        (Phase.COMMITTING, None, NO_BOOKIES, MetadataUnavailableError(NOT_CONFIRMED)),
        # It was asked once more during the grace: the answer before it counts.
        (Phase.SEEKING, 10.5, NO_ANSWER, MetadataUnavailableError(f"{ANSWERS}; no answer from the store")),
        (Phase.SEEKING, 10.5, NO_BOOKIES, None),
        (Phase.SEEKING, 10.5, None, None),
        # It is asked nothing.
        (Phase.IDLE, None, NO_ANSWER, MetadataUnavailableError(f"{ANSWERS}; no answer from the store")),
        (Phase.IDLE, None, NO_BOOKIES, None),
        (Phase.IDLE, None, None, None),
        (Phase.SEEKING, None, NO_BOOKIES, None),
        (Phase.COPYING, None, None, None),
    ],
)
def test_the_error_blames_the_metadata_store_before_the_key_and_the_key_before_the_bookies(
    phase: Phase, asked_at: float | None, no_spare: OctavoError | None, expected: OctavoError | None, denied: bool
) -> None:
    """``expected`` is None where it depends on whether the bookies deny this client."""
    deadline = Deadline(10.0)
    deadline.look(0.0, 10.0, ASKED)  # the grace begins
    if expected is None and denied:
        expected = UnauthorizedError(ANSWERS)
    elif expected is None:
        expected = QuorumLostError(ANSWERS if no_spare is None else f"{ANSWERS}; no bookie is available")
    error = deadline.error(
        LedgerId(7), ChangeProgress(phase, asked_at, no_spare), denied=denied, answers="bookie b0: not connected"
    )
    assert (type(error), error.message) == (type(expected), expected.message)


@pytest.mark.parametrize(
    ("quorums", "usable", "expected"),
    [
        (Quorums(3, 3, 2), 0b111, False),
        (Quorums(3, 3, 2), 0b101, False),
        (Quorums(3, 3, 2), 0b100, True),
        (Quorums(3, 3, 2), 0, True),
        (Quorums(4, 2, 2), 0b1101, True),  # striped: entries of two write sets need the bookie that is left out
        (Quorums(4, 2, 1), 0b0101, False),  # each write set has one of the two
        (Quorums(4, 2, 1), 0b0011, True),  # slots 2 and 3 are a write set
    ],
)
def test_entries_are_out_of_reach_if_one_stripe_is(quorums: Quorums, usable: int, expected: bool) -> None:
    assert is_out_of_reach(quorums, usable) is expected
