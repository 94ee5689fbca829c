"""Which bookie processes are started again, and when."""

from octavo.bookie import daemon
from octavo.cli.local.restarts import (
    EXIT_DATA_WRONG,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    SETTLED_SECONDS,
    GiveUp,
    LeaveStopped,
    RestartPolicy,
    StartAgain,
)


def test_a_bookie_that_served_long_is_started_again_after_the_shortest_pause_each_time() -> None:
    policy = RestartPolicy()
    for exit_status in (0, 1, -9, 2):
        assert policy.ended(exit_status, SETTLED_SECONDS) == StartAgain(PAUSE_SECONDS_MIN)


def test_pauses_double_up_to_the_longest_while_a_bookie_cannot_stay_up_and_begin_anew_once_it_did() -> None:
    policy = RestartPolicy()
    policy.ended(-9, 1.0)
    pauses = []
    for ready_seconds in [None, 0.1, None, None, None, None, None, None, None]:
        decision = policy.ended(1, ready_seconds)
        assert isinstance(decision, StartAgain)
        pauses.append(decision.pause_seconds)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0]
    assert pauses[-1] == PAUSE_SECONDS_MAX
    assert policy.ended(1, SETTLED_SECONDS + 1) == StartAgain(PAUSE_SECONDS_MIN)


def test_a_bookie_whose_data_are_wrong_is_left_stopped_whenever_it_says_so() -> None:
    assert RestartPolicy().ended(EXIT_DATA_WRONG, None) == LeaveStopped()
    assert RestartPolicy().ended(EXIT_DATA_WRONG, 100.0) == LeaveStopped()


def test_a_bookie_that_never_came_up_fails_the_command() -> None:
    assert RestartPolicy().ended(1, None) == GiveUp()


def test_bookie_and_supervisor_mean_the_same_exit_status() -> None:
    assert daemon.EXIT_DATA_WRONG == EXIT_DATA_WRONG
