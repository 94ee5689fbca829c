"""The numbers of the stored forms of logs: a document's format tells its layout. Pure."""

from typing import Final

CHAIN_FORMAT: Final = 1

STREAM_FORMAT: Final = 2
"""Of documents that name their layout."""

STREAM_FORMAT_WITH_KEYS: Final = 3
"""Of logs whose entries have keys: a version that does not know them would give keys as parts of payloads."""

STREAM_LAYOUT: Final = "stream"
