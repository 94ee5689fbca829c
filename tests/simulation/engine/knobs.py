"""Limits of the code under test that a universe would not reach, and smaller values for them."""

KNOBS: dict[str, tuple[int | None, ...]] = {
    "octavo.client.recover.recovery:_READ_BYTES_MAX": (None, 300, 3000),
    "octavo.client.recover.recovery:ENTRIES_PER_FRAME_MAX": (None, None, 1, 5),
    "octavo.client.recover.recovery:WINDOW_ENTRIES": (None, 3, 30, 200),
    "octavo.client.recover.recovery:WINDOW_BYTES": (None, None, 2000),
    "octavo.client.read.range_read:RANGE_BYTES_MAX": (None, None, 1000),
    "octavo.client.read.range_read:ENTRIES_PER_FRAME_MAX": (None, None, 2, 10),
    "octavo.bookie.server.answers:RUNS_PER_ANSWER_MAX": (None, None, 1, 3),
    "octavo.bookie.storage.checkpoint:_WRITE_BUFFERS": (None, 2),
}
"""Limits of the code under test that a small universe would not reach -> values to draw from; None keeps the limit."""

STREAM_KNOBS: dict[str, tuple[int | None, ...]] = {
    "octavo.metadata.stream.pages:TAIL_FRAGMENTS_MAX": (None, 1, 2, 4, 8),
    "octavo.metadata.stream.pages:MOVED_FRAGMENTS_MAX": (None, 1, 2, 3),
    "octavo.metadata.stream.pages:PAGE_FRAGMENTS_MAX": (None, 1, 2, 5),
    "octavo.client.terms.term:RENEWAL_OFFSET": (None, None, 1, 3, 10),
}
"""Limits of streams that a universe would not reach, as in :data:`KNOBS`."""

FRAME = "octavo.client.write.front.batching:FRAME_PAYLOAD_BYTES_TARGET"
"""Payload bytes per frame. One frame must fit into a journal segment, and segments are small here."""

FRAME_BYTES = 16 * 1024

STORAGE: dict[str, tuple[int | None, ...]] = {
    "ledgers_hot_max": (None, 1, 2),
    "checkpoint_ledgers": (None, None, 1, 2),
    "index_cache_bytes": (None, None, 1),
}
"""Limits of the storage that a small universe would not reach -> values to draw from; None keeps the limit."""
