"""How much time a process proves from another one's count (rule M5)."""

import pytest
from octavo.metadata.clocks.handed_over import HandedOver


@pytest.mark.parametrize(
    ("found_ms", "at_most_ms"),
    [
        pytest.param(500, 600, id="nothing was counted since"),
        pytest.param(900, 200, id="the other one has counted a part"),
        pytest.param(1100, 0, id="the other one has counted all"),
        pytest.param(2000, 0, id="the other one has proven more"),
        pytest.param(0, 700, id="the count began anew"),
    ],
)
def test_a_process_lives_through_the_time_since_it_looked(found_ms: int, at_most_ms: int) -> None:
    """It read the document at 300 and counted 500 at 400; at 1000 it finds another one's count."""
    handed_over = HandedOver()
    handed_over.found(handed_over.reads(300))
    handed_over.counted(500, 400)
    handed_over.found(handed_over.reads(990))
    assert handed_over.at_most_ms(found_ms, 1000) == at_most_ms


def test_a_process_that_never_looked_knows_no_bound() -> None:
    handed_over = HandedOver()
    handed_over.found(handed_over.reads(300))
    assert handed_over.at_most_ms(7, 1000) is None


def test_once_it_has_counted_its_own_hosts_run_time_is_enough() -> None:
    handed_over = HandedOver()
    handed_over.found(handed_over.reads(300))
    handed_over.found(handed_over.reads(400))
    assert handed_over.at_most_ms(7, 1000) == 700
    handed_over.counted(707, 1000)
    assert handed_over.at_most_ms(707, 5000) is None
