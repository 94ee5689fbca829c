"""The document of a balance (rules A12 and A14)."""

import pytest
from octavo.metadata.encoding import encode_object
from octavo.protocol.errors import MetadataError
from octavo.protocol.ids import BookieId
from octavo.repair.base.balance_document import (
    REASON_CHARACTERS_MAX,
    AskedBy,
    BalanceState,
    BookieFill,
    Phase,
    decode_balance,
    encode_balance,
)

STATE = BalanceState(
    1772368215250, AskedBy.SETTING, Phase.MOVING, "why", 3, 3000, 1, 2, 2000, {BookieId("b1"): BookieFill(7, 100)},
)  # fmt: skip


def test_a_state_comes_back_as_it_was() -> None:
    assert decode_balance(encode_balance(STATE)) == STATE
    assert decode_balance(encode_balance(BalanceState(1))) == BalanceState(1)


@pytest.mark.parametrize("phase", Phase)
def test_a_balance_is_wanted_until_it_is_over(phase: Phase) -> None:
    assert BalanceState(1, phase=phase).is_wanted is (phase not in {Phase.DONE, Phase.STOPPED})


def test_no_document_exceeds_the_limit_of_the_store() -> None:
    many = {BookieId(f"{number:0128}"): BookieFill(2**62, 2**62) for number in range(5000)}
    value = encode_balance(BalanceState(1, reason="r" * 10_000, bookies=many))
    assert len(value) < 512 * 1024
    assert len(decode_balance(value).reason) == REASON_CHARACTERS_MAX


@pytest.mark.parametrize(
    "fields",
    [
        {"asked_at_ms": -1}, {"phase": "sleeping"}, {"asked_by": "chance"}, {"moved": -1}, {"moved_bytes": "3"},
        {"bookies": {"b1": [1]}}, {"bookies": {"b1": [1, 0]}}, {"bookies": {"b1": [-1, 5]}},
        {"bookies": {"no id": [1, 5]}},
    ],
)  # fmt: skip
def test_damage_is_an_error(fields: dict[str, object]) -> None:
    whole = {
        "asked_at_ms": 1, "asked_by": "operator", "phase": "done", "reason": "", "moved": 0, "moved_bytes": 0,
        "failed": 0, "under_way": 0, "under_way_bytes": 0, "bookies": {},
    }  # fmt: skip
    decode_balance(encode_object(whole, format_number=1))
    with pytest.raises(MetadataError):
        decode_balance(encode_object(whole | fields, format_number=1))
    with pytest.raises(MetadataError):
        decode_balance(encode_object(whole, format_number=2))
