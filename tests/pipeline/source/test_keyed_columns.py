"""Entries of a log with keys as columns: the same keys and payloads as one at a time."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.client.log.keys.form import keyed_of, with_key
from octavo.pipeline.source.keyed_columns import split_keyed
from octavo.protocol.errors import LogDamagedError

keys = st.sampled_from([b"", b"a", "é".encode(), b"k" * 255])
rows_of_log = st.lists(st.builds(with_key, keys, st.binary(max_size=4)), min_size=1, max_size=20)


@given(rows_of_log, st.integers(0, 19))
def test_columns_hold_what_each_entry_holds(rows: list[bytes], skipped: int) -> None:
    stored = pa.array(rows, pa.binary()).slice(min(skipped, len(rows) - 1))
    found_keys, payloads = split_keyed(stored)
    found_keys.validate(full=True)
    payloads.validate(full=True)
    found = list(zip(found_keys.to_pylist(), payloads.to_pylist(), strict=True))
    assert found == [tuple(keyed_of(row)) for row in stored.to_pylist()]


@pytest.mark.parametrize(
    ("row", "how"), [(b"", "is empty"), (b"\x05abcd", "is cut"), (b"\x02\xff\xfe-", "has a key that is no text")]
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_bytes_of_another_form_are_damage(row: bytes, how: str, place: int) -> None:
    rows = [with_key(b"a", b"1"), with_key(b"", b"2")]
    with pytest.raises(LogDamagedError):
        keyed_of(row)
    with pytest.raises(LogDamagedError, match=how):
        split_keyed(pa.array([*rows[:place], row, *rows[place:]], pa.binary()))
