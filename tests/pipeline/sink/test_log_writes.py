"""What is stored of a write into a log: its steps, its rows' keys, its document."""

import pytest
from octavo.pipeline.base.log_writes import LEDGERS_MAX, LogWrite, State, decode_log_write, staged
from octavo.pipeline.base.manifest import PublishedLedger
from octavo.protocol.errors import InvalidArgumentError, MetadataError

LEDGERS = (PublishedLedger(4, 10, 100), PublishedLedger(7, 5, 50))
BATCH = staged("orders", "q", 3, LEDGERS, may_repeat=True, floor=2)
JOB = staged("orders", "daily", None, LEDGERS, may_repeat=True)


def test_a_write_is_staged_started_and_complete() -> None:
    assert (BATCH.state, BATCH.rows, BATCH.floor) == (State.STAGED, 15, 2)
    started = BATCH.started(100)
    assert (started.state, started.starts_at, started.ledgers) == (State.STARTED, 100, LEDGERS)
    complete = started.completed()
    assert (complete.state, complete.ledgers, complete.floor) == (State.COMPLETE, (), 7)
    assert BATCH.started(0).state is State.STARTED, "a log may end at 0"


@pytest.mark.parametrize("write", [BATCH, JOB, BATCH.started(0), JOB.started(5).completed()])
def test_a_document_holds_the_write(write: LogWrite) -> None:
    assert decode_log_write(write.encode(), "x") == write
    with pytest.raises(MetadataError, match="document x"):
        decode_log_write(write.encode().replace(b"daily", b"deily").replace(b'"q"', b'"p"'), "x")


def test_a_write_covers_its_batch_and_the_batches_before() -> None:
    assert [BATCH.covers(batch) for batch in (2, 3, 4)] == [True, True, False]
    assert JOB.covers(None)
    for write, batch in ((BATCH, None), (JOB, 3)):
        with pytest.raises(InvalidArgumentError, match="name of a job and the id of a query"):
            write.covers(batch)


def test_keys_name_the_rows_of_one_write() -> None:
    others = [staged("orders", "q", 33, (), may_repeat=True), JOB, staged("orders", "dail", None, (), may_repeat=True)]
    for write in (BATCH, JOB):
        assert [write.row_of(write.key_of(row)) for row in (0, 7, 12345)] == [0, 7, 12345]
        for other in others:
            assert other is write or other.row_of(write.key_of(7)) is None
        for foreign in (None, "", "7", "spark/q/3/", "spark/q/3/x", "spark/q/3/-1", "spark/daily/", "spark/daily/1/2"):
            assert write.row_of(foreign) is None


def test_a_write_has_a_limited_number_of_ledgers() -> None:
    most = [PublishedLedger(2**62 + n, 2**40, 2**50) for n in range(LEDGERS_MAX)]
    assert len(staged("o" * 255, "j" * 100, None, most, may_repeat=False).started(2**62).encode()) <= 512 * 1024 * 2
    with pytest.raises(InvalidArgumentError, match="coalesce"):
        staged("orders", "q", 0, [*most, most[0]], may_repeat=True)
