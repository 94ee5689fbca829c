"""The partitions of a consumer, in the form in which members of consumer groups exchange them. Pure.

A version, then an array of topics, each with an array of partitions. Gateways pass these bytes on and do not read them;
people want to see which member reads what.
"""

import struct
from typing import Final

_VERSION: Final = struct.Struct(">h")
_COUNT: Final = struct.Struct(">i")


def assigned_partitions(assignment: bytes) -> list[tuple[str, int]] | None:
    """Topics and partitions, in order; None: the bytes are of another form."""
    found: list[tuple[str, int]] = []
    try:
        at = _VERSION.size
        (topics,) = _COUNT.unpack_from(assignment, at)
        at += _COUNT.size
        for _ in range(topics):
            (length,) = _VERSION.unpack_from(assignment, at)
            at += _VERSION.size
            topic = assignment[at : at + length].decode()
            at += length
            (count,) = _COUNT.unpack_from(assignment, at)
            at += _COUNT.size
            partitions = struct.unpack_from(f">{count}i", assignment, at)
            at += _COUNT.size * count
            found += [(topic, partition) for partition in partitions]
    except (struct.error, UnicodeDecodeError, MemoryError, OverflowError):
        return None
    return sorted(found)
