"""Identifiers of things in a cluster, and the largest value each may take.

Ids are plain integers and strings under their own type names, so that a ledger id is never handed over as an entry id.
``None`` stands for "no entry yet" wherever an entry id may be missing.
"""

import re
from functools import lru_cache
from typing import Final, NewType

LedgerId = NewType("LedgerId", int)
"""A ledger, 0 to :data:`ID_MAX`; never used twice in one cluster."""

EntryId = NewType("EntryId", int)
"""A position in a ledger: 0, 1, 2, ... up to :data:`ID_MAX`."""

BookieId = NewType("BookieId", str)
"""A bookie: made once, kept in its data directory, unchanged when host or port change."""

ID_MAX = 2**63 - 1
"""Largest ledger or entry id: SQLite integers and Spark's ``long`` are signed 64-bit."""

TERM_MAX = 2**28 - 1
"""Largest term. A term counts the take-overs of one ledger by a new writer; 0 for a ledger that has one writer only. A
place (``places``) holds the term above 35 bits of offset."""

_BOOKIE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


@lru_cache(maxsize=4096)
def is_bookie_id(text: str) -> bool:
    """Whether ``text`` can be a bookie's id: 1 to 128 letters, digits and ``._:-`` (it becomes part of keys and
    paths)."""
    return _BOOKIE_ID.fullmatch(text) is not None
