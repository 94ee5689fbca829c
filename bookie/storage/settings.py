"""The settings of a storage, and the values it reports."""

from dataclasses import field
from typing import NamedTuple

from octavo.bookie.journal.journal import JournalSettings, JournalStatistics
from octavo.metrics.histogram import Histogram
from octavo.protocol.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Sizes in bytes, times in seconds."""

    cache_bytes_max: int = 64 * 1024 * 1024
    """A half of the write cache. There are two; as much again may wait for the journal, and for look-ups."""
    cache_spread: float = 0.5
    """Each half is flushed when it is filled to a size drawn between this share less than whole and whole. The
    bookies that hold one ledger fill equally fast, and must not all flush in the same moment."""
    entry_log_bytes: int = 1024 * 1024 * 1024
    """Size at which the next entry log is begun: compaction rewrites one at a time."""
    checkpoint_journal_bytes: int = 512 * 1024 * 1024
    """Journal bytes after which a checkpoint is taken: bounds the replay at a start."""
    checkpoint_seconds: float = 60.0
    """Longest time between a change and the checkpoint that covers it."""
    checkpoint_ledgers: int = 65_536
    """Changed ledgers after which a checkpoint is taken: bounds the states held as objects."""
    index_cache_bytes: int = 32 * 1024 * 1024
    ledgers_hot_max: int = 65_536
    full_disk_retry_seconds: float = 1.0
    """Time between two attempts of a write that found the disk full, unless space is known to have been freed."""
    journal_segment_bytes: int = 64 * 1024 * 1024
    journal: JournalSettings | None = field(default=None)
    """All settings of the journal; None: the defaults with ``journal_segment_bytes``."""


class LacView(NamedTuple):
    """The end of a ledger as a bookie knows it without a look at the disk."""

    known: bool
    """A writer or a fence has named the ledger to the bookie."""
    fenced: bool
    """The term asked for is over (rule T7); that of a ledger with one writer is 0."""
    last_add_confirmed: int | None
    explicit: bytes | None
    """The sealed explicit LAC, if there is one."""
    in_doubt: bool
    """Something of the ledger may have been lost here: the LAC is only a hint (rule B4)."""


class StorageStatistics(NamedTuple):
    """Counts since the start, and current sizes in bytes."""

    ledgers: int
    cache_bytes: int
    journal_bytes: int
    """Journaled since the last checkpoint's mark."""
    journal: JournalStatistics
    log_bytes: int
    log_bytes_live: int
    """Of finished logs, when a compaction last looked."""
    entry_logs: int
    index_parts: int
    index_cache_bytes: int
    index_lookup_seconds: Histogram
    checkpoints: int
    checkpoint_seconds: Histogram
    checkpoint_age_seconds: float
    merges: int
    merge_bytes: int
    entries_damaged: int
    index_damage_seen: int
    duplicates_refused: int
    fences: int
    logs_compacted: int
    logs_kept_damaged: int
    """Entry logs that compaction left as they are because something in them, or of what the index says of them, is
    damaged."""
    compaction_bytes_copied: int
    compaction_bytes_freed: int
    scrub_rounds: int
    scrub_age_seconds: float
    """Since a round was completed, or since the start."""
    bytes_scrubbed: int
    disk_full_met: int
    """How many times a write found the disk full and waited for free space."""
