"""The word of a fragment: which objects of which store hold its entries. Pure.

A *word* names one object. Its name follows from the word and the ledger: prefix and cluster are in the document of the
stores (:mod:`octavo.metadata.cluster.object_stores`), the rest is here. A fragment has one word; a large one, of which
no object holds all, has several, in order. Small fragments that share an object have equal words.

Words are stored as one base64 text, 71 bytes for each: big-endian store u16, token (16 bytes), first and last id u64,
bytes of the object u40, SHA-256 (32 bytes). No word holds a checksum against damage: the object has one itself, and
the SHA-256 notices an object that was replaced, too.
"""

import base64
import binascii
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from octavo.protocol.ids import ID_MAX

STORE_ID_MAX: Final = 2**16 - 1
TOKEN_BYTES: Final = 16
WORDS_MAX: Final = 16
"""Objects of one fragment: of 4 GiB each, 64 GiB."""

_WORD = struct.Struct(">H16sQQBI32s")
WORD_BYTES: Final = _WORD.size


class ArchiveWord(NamedTuple):
    """One object."""

    store_id: int
    token: bytes
    """Random, and part of the object's name."""
    first: int
    last: int
    """The ids from and to which the object holds entries, inclusive; part of its name."""
    object_bytes: int
    sha256: bytes
    """Of the whole object."""


type ArchiveWords = tuple[ArchiveWord, ...]
"""Of one fragment."""


def words_problem(words: Sequence[ArchiveWord]) -> str | None:
    """Why no fragment can have these words; None if one can."""
    if len(words) > WORDS_MAX:
        return f"it has {len(words)} words; {WORDS_MAX} is the most"
    for word in words:
        if not 0 < word.store_id <= STORE_ID_MAX or len(word.token) != TOKEN_BYTES or len(word.sha256) != 32:
            return "it has a word without a store, a token or a SHA-256"
        if not 0 <= word.first <= word.last <= ID_MAX or not 0 < word.object_bytes < 2**40:
            return "it has a word with a number that is out of range"
    if any(following.first != one.last + 1 for one, following in pairwise(words)):
        return "it has words with a gap between them"
    return None


def words_text(words: Sequence[ArchiveWord]) -> str:
    """The stored form of a fragment's words."""
    packed = []
    for store_id, token, first, last, object_bytes, sha256 in words:
        high, low = divmod(object_bytes, 2**32)
        packed.append(_WORD.pack(store_id, token, first, last, high, low, sha256))
    return base64.b64encode(b"".join(packed)).decode("ascii")


def words_from(text: str) -> ArchiveWords:
    """From the stored form. Raises ValueError for a text that is no words, or none that a fragment can have."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("its words are not base64") from error
    if not data or len(data) % WORD_BYTES:
        raise ValueError(f"{len(data)} bytes are not words")
    words = tuple(
        ArchiveWord(store_id, token, first, last, high << 32 | low, sha256)
        for store_id, token, first, last, high, low, sha256 in _WORD.iter_unpack(data)
    )
    problem = words_problem(words)
    if problem is not None:
        raise ValueError(problem)
    return words
