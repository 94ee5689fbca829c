"""What a partition remembers of idempotent producers (rules K4 and K5)."""

import pytest
from octavo.gateway.codes import Code, RefusedError
from octavo.gateway.records.batch import BatchHeader, read_header
from octavo.gateway.records.producers import IDLE_MS_MAX, SEQUENCES, WINDOW, Producers, Repeat
from support.kafka.batches import batch_of


def sent(sequence: int, count: int = 1, *, producer_id: int = 7, epoch: int = 0, base_offset: int = 0) -> BatchHeader:
    values = [b"x"] * count
    header = read_header(
        batch_of(
            *values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, base_offset=base_offset
        )
    )
    assert header is not None
    return header


def store(producers: Producers, batch: BatchHeader, base_offset: int, now_ms: int = 0) -> None:
    assert producers.judge(batch) is None
    producers.note_under_way(batch, base_offset, now_ms)
    producers.note_acknowledged(batch)
    producers.check_invariants()


def refusal(producers: Producers, batch: BatchHeader) -> Code:
    with pytest.raises(RefusedError) as refused:
        producers.judge(batch)
    return refused.value.code


def test_batches_follow_each_other() -> None:
    producers = Producers()
    store(producers, sent(0, 3), 10)
    store(producers, sent(3), 13)
    assert refusal(producers, sent(5)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(producers, sent(3, 2)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER, "the first record is a repeat"
    assert producers.judge(sent(4)) is None


def test_a_repeat_names_the_offset_of_the_batch_that_it_repeats() -> None:
    producers = Producers()
    producers.note_under_way(sent(0, 3), 10, 0)
    assert producers.judge(sent(0, 3)) == Repeat(10, is_acknowledged=False)
    producers.note_under_way(sent(3), 13, 0)
    producers.note_acknowledged(sent(0, 3))
    assert producers.judge(sent(0, 3)) == Repeat(10, is_acknowledged=True)
    assert producers.judge(sent(3)) == Repeat(13, is_acknowledged=False)


def test_as_many_acknowledged_batches_are_remembered_as_clients_have_unanswered() -> None:
    producers = Producers()
    for sequence in range(WINDOW + 1):
        store(producers, sent(sequence), sequence)
    for sequence in range(1, WINDOW + 1):
        assert producers.judge(sent(sequence)) == Repeat(sequence, is_acknowledged=True)
    assert refusal(producers, sent(0)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batches_under_way_do_not_push_acknowledged_ones_out() -> None:
    producers = Producers()
    for sequence in range(WINDOW):
        store(producers, sent(sequence), sequence)
    for sequence in range(WINDOW, 2 * WINDOW):
        producers.note_under_way(sent(sequence), sequence, 0)
    assert producers.judge(sent(0)) == Repeat(0, is_acknowledged=True)


def test_sequences_begin_again_at_0_behind_the_highest() -> None:
    producers = Producers()
    producers.note_stored(sent(SEQUENCES - 2, 3), 0)
    assert refusal(producers, sent(0)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.judge(sent(1)) is None


def test_a_lower_epoch_is_refused_and_a_higher_one_begins_at_0() -> None:
    producers = Producers()
    store(producers, sent(0), 0)
    assert refusal(producers, sent(1, epoch=1)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    store(producers, sent(0, epoch=1), 1)
    for sequence in (0, 1):
        assert refusal(producers, sent(sequence, epoch=0)) is Code.INVALID_PRODUCER_EPOCH
    assert producers.judge(sent(0, epoch=1)) == Repeat(1, is_acknowledged=True)


def test_an_unknown_producer_begins_at_0_unless_it_may_have_been_forgotten() -> None:
    producers = Producers(forgotten_below=7)
    assert refusal(producers, sent(1, producer_id=7)) is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert producers.judge(sent(0, producer_id=7)) is None
    assert producers.judge(sent(1, producer_id=6)) is None


def test_producers_without_an_id_are_not_remembered() -> None:
    producers = Producers()
    plain = read_header(batch_of(b"x"))
    assert plain is not None
    for offset in range(2):
        store(producers, plain, offset)
    producers.note_stored(plain, 0)
    assert len(producers) == 0


def test_the_producer_that_is_idle_longest_is_forgotten_and_none_with_a_batch_under_way() -> None:
    producers = Producers(producers_max=2)
    producers.note_under_way(sent(0, producer_id=1), 0, 0)
    store(producers, sent(0, producer_id=2), 1, 1)
    store(producers, sent(0, producer_id=3), 2, 2)
    assert [one for one, _ in producers] == [1, 3]
    assert producers.forgotten_below == 3
    assert producers.judge(sent(4, producer_id=2)) is None
    store(producers, sent(4, producer_id=2), 3, 3)
    assert [one for one, _ in producers] == [1, 2]
    producers.note_under_way(sent(5, producer_id=2), 5, 5)
    producers.note_under_way(sent(0, producer_id=9), 6, 6)
    assert [one for one, _ in producers] == [1, 2, 9], "all have a batch under way"
    assert producers.forgotten_below == 4


def test_a_day_without_a_batch_makes_a_producer_forgotten() -> None:
    producers = Producers()
    store(producers, sent(0, producer_id=1), 0, 1000)
    producers.note_under_way(sent(0, producer_id=2), 1, 1000)
    producers.forget_idle(1000 + IDLE_MS_MAX)
    assert [one for one, _ in producers] == [1, 2]
    producers.forget_idle(1001 + IDLE_MS_MAX)
    assert [one for one, _ in producers] == [2]
    assert producers.forgotten_below == 2
