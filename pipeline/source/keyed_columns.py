"""Takes the entries of a log with keys apart, a column at a time: keys and payloads, without a step per entry.

The stored form of an entry is that of ``client/log/keys/form.py``: the length of the key, the key, the payload.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from octavo.protocol.errors import LogDamagedError


def split_keyed(stored: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The keys, NULL where an entry has none, and the payloads of entries in their stored form.

    Raises :class:`LogDamagedError` for an entry that has another form.
    """
    _, offsets_buffer, data_buffer = stored.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[stored.offset : stored.offset + len(stored) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer or b"", np.uint8)[offsets[0] : offsets[-1]]
    starts, stops = offsets[:-1] - offsets[0], offsets[1:] - offsets[0]
    if (starts == stops).any():
        raise _damaged("is empty")
    key_bytes = data[starts].astype(np.int64)
    payload_starts = starts + 1 + key_bytes
    if (payload_starts > stops).any():
        raise _damaged("is cut")
    of_payload = _between(payload_starts, stops, len(data))
    of_key = ~of_payload
    of_key[starts] = False
    keys = _column(pa.string(), data[of_key], key_bytes, key_bytes == 0)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _damaged("has a key that is no text") from error
    return keys, _column(pa.binary(), data[of_payload], stops - payload_starts)


type _Numbers = np.ndarray[Any, np.dtype[np.int64]]
type _Bytes = np.ndarray[Any, np.dtype[np.uint8]]
type _Flags = np.ndarray[Any, np.dtype[np.bool_]]


def _between(starts: _Numbers, stops: _Numbers, size: int) -> _Flags:
    """Which of ``size`` places lie from a start up to the stop that belongs to it."""
    steps = np.zeros(size + 1, np.int8)
    # A range may be empty, and the next one begin at its stop.
    np.add.at(steps, starts, 1)
    np.add.at(steps, stops, -1)
    return np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)


def _column(kind: pa.DataType, data: _Bytes, sizes: _Numbers, missing: _Flags | None = None) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    offsets[1:] = np.cumsum(sizes)
    present = None
    if missing is not None and missing.any():
        present = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(sizes), [present, pa.py_buffer(offsets), pa.py_buffer(data)])


def _damaged(how: str) -> LogDamagedError:
    return LogDamagedError(f"an entry of a log with keys {how}: it was not written by a client of this log")
