"""Entries as Arrow columns: the same rows whichever way they arrived."""

from collections.abc import Sequence

import pytest
from octavo.client.read.reader import EntryBatch
from octavo.pipeline.base.schema import COLUMNS, SOURCE_COLUMNS
from octavo.pipeline.source.columns import entries_as_arrow
from octavo.protocol.entries import Digest, Entry, Opener, Sealer, derive_secrets
from octavo.protocol.entry_columns import open_columns
from octavo.protocol.ids import BookieId, EntryId, LedgerId

LEDGER = LedgerId(7)
SECRETS = derive_secrets(b"", LEDGER)
OPENER = Opener(LEDGER, Digest.CRC32C, SECRETS)
NAMES = (*COLUMNS, *SOURCE_COLUMNS)
PIECES = {
    "one size": [[b"aa", b"bb"], [b"cc"]],
    "many sizes": [[b"a", b"", b"ccc"], [b"dd", b"e" * 1000]],
    "both": [[b"aa", b"bb"], [b"", b"x"], [b"yy"]],
    "empty": [[b"", b""], [b""]],
}


def batches(pieces: Sequence[Sequence[bytes]], *, as_columns: Sequence[bool]) -> list[EntryBatch]:
    sealer = Sealer(LEDGER, Digest.CRC32C, SECRETS)
    made, first, length = [], 0, 0
    for payloads, columns in zip(pieces, as_columns, strict=True):
        lac = EntryId(first - 1) if first else None
        sealed = sealer.seal(EntryId(first), payloads, last_add_confirmed=lac, length=length, sealed_at_ms=0)
        entries: Sequence[Entry] | None = open_columns(OPENER, sealed) if columns else OPENER.open_batch(sealed)
        assert entries is not None
        made.append(EntryBatch(entries, [(BookieId(f"b{first}"), entries)]))
        first, length = first + len(payloads), length + sum(map(len, payloads))
    return made


@pytest.mark.parametrize("pieces", list(PIECES.values()), ids=list(PIECES))
@pytest.mark.parametrize("how", ["columns", "entries", "mixed"])
def test_rows_are_the_entries(pieces: list[list[bytes]], how: str) -> None:
    as_columns = [how == "columns" or (how == "mixed" and number % 2 == 0) for number in range(len(pieces))]
    made = batches(pieces, as_columns=as_columns)
    batch = entries_as_arrow(NAMES, made, lambda entry_id: entry_id // 2 * 2)
    batch.validate(full=True)
    expected = [
        {
            "ledger_id": LEDGER,
            "entry_id": entry.entry_id,
            "value": entry.payload,
            "length": entry.length,
            "last_add_confirmed": entry.last_add_confirmed,
            "bookie": part.sources[0][0],
            "fragment": entry.entry_id // 2 * 2,
        }
        for part in batches(pieces, as_columns=[False] * len(pieces))
        for entry in part.entries
    ]
    assert batch.to_pylist() == expected
    assert expected[0]["last_add_confirmed"] is None
    narrow = entries_as_arrow(("value", "entry_id"), made, lambda entry_id: entry_id)
    assert narrow.to_pylist() == [{"value": row["value"], "entry_id": row["entry_id"]} for row in expected]
