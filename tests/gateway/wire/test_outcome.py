"""What is counted of a request: the first error of its answer, wherever in the answer it stands."""

from typing import Any

import pytest
from octavo.gateway.codes import Code
from octavo.gateway.wire.outcome import Outcome, codes_in

NONE, UNKNOWN, RANGE = Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("answer", "codes"),
    [
        ({"throttle_time": 0}, []),
        ({"error_code": NONE}, [NONE]),
        ({"topics": [{"name": "a", "error_code": UNKNOWN}, {"error_code": NONE}], "error_code": RANGE},
         [UNKNOWN, NONE, RANGE]),
        ({"topics": [{"partitions": [{"error_code": RANGE, "offset": 3}]}]}, [RANGE]),
    ],
)  # fmt: skip
def test_codes_are_found_in_their_order(answer: Any, codes: list[Code]) -> None:
    assert list(codes_in(answer)) == codes


@pytest.mark.parametrize(
    ("noted", "name"),
    [([], "ok"), ([[NONE, NONE]], "ok"), ([[NONE, RANGE, UNKNOWN]], "OFFSET_OUT_OF_RANGE"),
     ([[UNKNOWN], [RANGE]], "UNKNOWN_TOPIC_OR_PARTITION"), ([[NONE], [RANGE]], "OFFSET_OUT_OF_RANGE")],
)  # fmt: skip
def test_the_first_error_is_the_result(noted: list[list[Code]], name: str) -> None:
    outcome = Outcome()
    for codes in noted:
        outcome.note(codes)
    assert outcome.name == name


def test_acknowledged_batches_add_up() -> None:
    outcome = Outcome()
    outcome.note_acknowledged(3, 100)
    outcome.note_acknowledged(1, 50)
    assert (outcome.batches, outcome.records, outcome.batch_bytes) == (2, 4, 150)
