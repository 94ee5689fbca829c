"""Offsets and positions of the batches that a leader adds, and where a new leader begins (rules K2 and K5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.gateway.codes import WrongPositionError
from octavo.gateway.records.appends import Appends
from octavo.gateway.records.batch import BatchHeader, read_header
from octavo.gateway.records.offsets import NO_ANCHOR, Anchor, decode_anchor, encode_anchor
from octavo.gateway.records.producers import Producers
from octavo.gateway.records.takeover import Takeover
from octavo.protocol.errors import MetadataError
from support.kafka.batches import batch_of


def batch(count: int, *, base_offset: int = 0, producer_id: int = -1) -> BatchHeader:
    place = 0 if producer_id >= 0 else -1
    header = read_header(
        batch_of(
            *[b"x"] * count,
            base_offset=base_offset,
            producer_id=producer_id,
            producer_epoch=place,
            base_sequence=place,
        )
    )
    assert header is not None
    return header


def test_offsets_and_positions_of_a_term_are_consecutive() -> None:
    appends = Appends(position=5, next_offset=100, producers=Producers())
    assert [appends.hand_over(batch(count), 0) for count in (3, 1, 2)] == [5, 6, 7]
    assert [one.base_offset for one in appends.under_way] == [100, 103, 104]
    assert (appends.next_offset, appends.high_watermark, appends.acknowledged_stop) == (106, 100, 5)
    appends.check_invariants()
    assert appends.acknowledge(5).base_offset == 100
    assert (appends.next_offset, appends.high_watermark, appends.acknowledged_stop) == (106, 103, 6)
    for position in (6, 7):
        appends.acknowledge(position)
    assert (appends.high_watermark, appends.acknowledged_stop) == (106, 8)
    appends.check_invariants()


@pytest.mark.parametrize("position", [4, 6])
def test_a_position_that_was_not_expected_is_noticed(position: int) -> None:
    appends = Appends(position=5, next_offset=100, producers=Producers())
    with pytest.raises(WrongPositionError, match="expected None"):
        appends.acknowledge(5)
    appends.hand_over(batch(1), 0)
    with pytest.raises(WrongPositionError, match="expected 5"):
        appends.acknowledge(position)
    assert appends.high_watermark == 100


def test_a_term_goes_on_behind_the_last_batch_of_the_log() -> None:
    takeover = Takeover(NO_ANCHOR, Producers(), first_position=0)
    takeover.entry(0, batch(3, base_offset=0), 10)
    takeover.entry(1, None, 11)  # of another program
    takeover.entry(2, batch(2, base_offset=3), 12)
    takeover.entry(3, None, 13)
    appends = takeover.begin(4, 20)
    assert (appends.next_position, appends.next_offset, appends.high_watermark) == (4, 5, 5)


def test_a_term_goes_on_behind_positions_that_were_given_up() -> None:
    takeover = Takeover(NO_ANCHOR, Producers(), first_position=0)
    takeover.entry(0, batch(3, base_offset=0), 10)
    takeover.entry(7, batch(2, base_offset=50), 12)
    appends = takeover.begin(9, 20)
    assert (appends.next_position, appends.next_offset) == (9, 52)


def test_offsets_do_not_begin_again_in_a_log_that_lost_all_its_entries() -> None:
    appends = Takeover(Anchor(position=40, base_offset=900, start_offset=900), Producers(), first_position=40).begin(
        40, 0
    )
    assert (appends.next_position, appends.next_offset) == (40, 900)


def test_offsets_do_not_fall_below_those_of_a_snapshot_of_a_log_that_was_shortened() -> None:
    takeover = Takeover(NO_ANCHOR, Producers(), first_position=0, next_offset_min=80)
    takeover.entry(0, batch(3, base_offset=0), 10)
    assert takeover.begin(1, 20).next_offset == 80


def test_a_new_leader_remembers_the_producers_of_the_log() -> None:
    takeover = Takeover(NO_ANCHOR, Producers(), first_position=0)
    takeover.entry(0, batch(2, producer_id=7), 10)
    appends = takeover.begin(1, 20)
    repeat = appends.judge(batch(2, producer_id=7))
    assert repeat is not None
    assert repeat == (0, True)


NUMBERS = st.integers(0, 2**63 - 1)
ANCHORS = st.builds(Anchor, NUMBERS, NUMBERS, NUMBERS)


@given(ANCHORS)
def test_an_anchor_is_read_as_it_was_written(anchor: Anchor) -> None:
    assert decode_anchor(encode_anchor(anchor, "log-1"), "log-1") == anchor


@given(ANCHORS, NUMBERS, NUMBERS, NUMBERS)
def test_no_number_of_an_anchor_falls(anchor: Anchor, position: int, base_offset: int, start_offset: int) -> None:
    raised = anchor.raised(position=position, base_offset=base_offset, start_offset=start_offset)
    assert raised.position == max(anchor.position, position)
    assert raised.base_offset >= anchor.base_offset
    assert raised.start_offset == max(anchor.start_offset, start_offset)
    if position > anchor.position:
        assert raised.base_offset >= base_offset
    else:
        assert raised.base_offset == anchor.base_offset


def test_an_anchor_of_another_log_is_refused() -> None:
    with pytest.raises(MetadataError, match="of another log"):
        decode_anchor(encode_anchor(NO_ANCHOR, "log-1"), "log-2")


def test_an_anchor_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="below 0"):
        Anchor(position=-1)
