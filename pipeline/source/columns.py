"""Converts entries to Arrow record batches, without a step per entry."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from octavo.client.read.reader import EntryBatch
from octavo.pipeline.base.planning import EntryRange
from octavo.pipeline.source.keyed_columns import split_keyed
from octavo.protocol.entries import SEALED_BYTES_MIN, Entry
from octavo.protocol.entry_columns import HEAD_WORDS, PAYLOAD_START, PAYLOAD_STOP, EntryColumns

_ARROW: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("ledger_id", "entry_id", "length", "last_add_confirmed", "fragment"), pa.int64()),
    "value": pa.binary(),
    "bookie": pa.string(),
    "position": pa.int64(),
    "key": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}

_PAYLOAD_LENGTH_MASK = np.uint64(0xFFFFFFFF)
"""The payload length in the first word of a header."""


@lru_cache
def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """The Arrow schema of these columns."""
    return pa.schema([pa.field(name, _ARROW[name]) for name in names])


def entries_as_arrow(
    names: Sequence[str],
    batches: Sequence[EntryBatch],
    fragment_of: Callable[[int], int],
    base: int = 0,
    *,
    has_keys: bool = False,
) -> pa.RecordBatch:
    """Consecutive batches of one ledger as one record batch. ``fragment_of``: entry id -> first id of its fragment.
    ``base``: the position of entry 0, for a ledger of a log. ``has_keys``: entries have the stored form of a log with
    keys. Raises :class:`LogDamagedError` for one that has not."""
    pieces = [batch.entries for batch in batches if isinstance(batch.entries, EntryColumns)]
    if len(pieces) == len(batches):
        makers = _of_columns(pieces)
    else:
        makers = _of_entries([entry for batch in batches for entry in batch.entries])
    makers |= {
        "bookie": lambda: pa.array([bookie for batch in batches for bookie in batch.bookies()], pa.string()),
        "fragment": lambda: pa.array(
            [fragment_of(entry.entry_id) for batch in batches for entry in batch.entries], pa.int64()
        ),
        "position": lambda: _positions(batches, base),
    }
    rows = sum(len(batch.entries) for batch in batches)
    makers["key"] = lambda: pa.nulls(rows, pa.string())
    if has_keys and not {"key", "value"}.isdisjoint(names):
        keys, values = split_keyed(makers["value"]())
        makers |= {"key": lambda: keys, "value": lambda: values}
    return pa.RecordBatch.from_arrays([makers[name]() for name in names], schema=arrow_schema(tuple(names)))


def gap_as_arrow(names: Sequence[str], lost: EntryRange) -> pa.RecordBatch:
    """A row for each unreadable entry, with nothing but its ids and its position."""
    known = {
        "position": lambda: pa.array(range(lost.base + lost.first, lost.base + lost.last + 1), pa.int64()),
        "ledger_id": lambda: pa.array([lost.ledger_id] * lost.count, pa.int64()),
        "entry_id": lambda: pa.array(range(lost.first, lost.last + 1), pa.int64()),
    }
    arrays = [known[name]() if name in known else pa.nulls(lost.count, _ARROW[name]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(tuple(names)))


type _Makers = dict[str, Callable[[], pa.Array]]


def _of_entries(entries: Sequence[Entry]) -> _Makers:
    ledger_ids, entry_ids, payloads, lacs, lengths, sealed_at_ms = zip(*entries, strict=True)
    return {
        "ledger_id": lambda: pa.array(ledger_ids, pa.int64()),
        "entry_id": lambda: pa.array(entry_ids, pa.int64()),
        "value": lambda: pa.array(payloads, pa.binary()),
        "length": lambda: pa.array(lengths, pa.int64()),
        "last_add_confirmed": lambda: pa.array(lacs, pa.int64()),
        "timestamp": lambda: _timestamps(np.array(sealed_at_ms, np.int64)),
    }


def _of_columns(pieces: Sequence[EntryColumns]) -> _Makers:
    heads = np.concatenate([np.frombuffer(piece.heads, np.uint64) for piece in pieces]).reshape(-1, HEAD_WORDS)
    return {
        "ledger_id": lambda: pa.array(heads[:, 1].astype(np.int64)),
        "entry_id": lambda: pa.array(heads[:, 2].astype(np.int64)),
        "value": lambda: _payloads(pieces, heads[:, 0] & _PAYLOAD_LENGTH_MASK),
        "length": lambda: pa.array(heads[:, 4].astype(np.int64)),
        "last_add_confirmed": lambda: _last_adds_confirmed(heads[:, 3].astype(np.int64)),
        "timestamp": lambda: _timestamps(heads[:, 5].astype(np.int64)),
    }


def _positions(batches: Sequence[EntryBatch], base: int) -> pa.Array:
    first, last = batches[0].entries[0].entry_id, batches[-1].entries[-1].entry_id
    return pa.array(np.arange(base + first, base + last + 1, dtype=np.int64))


def _timestamps(milliseconds: "np.ndarray[Any, np.dtype[np.int64]]") -> pa.Array:
    return pa.array(milliseconds * 1000, pa.timestamp("us", "UTC"))


def _last_adds_confirmed(plus_one: "np.ndarray[Any, np.dtype[np.int64]]") -> pa.Array:
    return pa.array(plus_one - 1, mask=None if plus_one.all() else plus_one == 0)


def _payloads(pieces: Sequence[EntryColumns], sizes: "np.ndarray[Any, np.dtype[np.uint64]]") -> pa.Array:
    """The payloads without headers and checksums, in one copy. A record batch is far below the 2 GiB of 32-bit
    offsets."""
    offsets = np.zeros(len(sizes) + 1, np.int32)
    offsets[1:] = np.cumsum(sizes)
    payloads = np.empty(offsets[-1], np.uint8)
    at = 0
    for piece in pieces:
        part = payloads[at : at + piece.payload_bytes]
        at += piece.payload_bytes
        sealed = np.frombuffer(piece.data, np.uint8)
        if piece.stride is not None:
            payload_start = piece.prefix_bytes + PAYLOAD_START
            payload_bytes = piece.stride - piece.prefix_bytes - SEALED_BYTES_MIN
            evenly = sealed.reshape(len(piece), piece.stride)[:, payload_start:PAYLOAD_STOP]
            part.reshape(len(piece), payload_bytes)[:] = evenly
        else:
            places = map(piece.place, range(len(piece)))
            part[:] = np.frombuffer(b"".join([piece.data[start:stop] for start, stop in places]), np.uint8)
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(payloads)])
