"""Which part of a bookie gets which of the bookie's settings."""

from octavo.bookie.config import BookieConfig
from octavo.bookie.memory.answer_memory import AnswerTiming
from octavo.bookie.server.limits import ClientLimits, ConnectionLimits
from octavo.bookie.storage.settings import StorageSettings
from octavo.bookie.upkeep.disk_watch import DiskLimits
from octavo.bookie.upkeep.hours import Hours
from octavo.bookie.upkeep.reserve import RESERVE_BYTES_MAX
from octavo.bookie.upkeep.upkeep import UpkeepSettings
from octavo.security.tls_port import ArrivalLimits

_STALLED_SHARE_MIN = 1 / 6
"""Share of ``stalled_client_seconds`` after which a stalled client is evicted if other clients wait for its memory."""


def storage_settings(config: BookieConfig) -> StorageSettings:
    """The settings of the storage."""
    return StorageSettings(
        cache_bytes_max=config.cache_bytes,
        journal_segment_bytes=config.journal_segment_bytes,
        checkpoint_journal_bytes=config.checkpoint_journal_bytes,
        checkpoint_seconds=config.checkpoint_seconds,
        entry_log_bytes=config.entry_log_bytes,
    )


def disk_limits(config: BookieConfig) -> DiskLimits:
    """Free space of a disk below which the bookie warns, or takes no entries."""
    return DiskLimits(config.disk_warn_bytes, config.disk_writable_bytes, config.disk_read_only_bytes)


def upkeep_settings(config: BookieConfig) -> UpkeepSettings:
    """The settings of garbage collection, compaction, scrubbing and the disk watch."""
    return UpkeepSettings(
        limits=disk_limits(config),
        disk_check_seconds=config.disk_check_seconds,
        garbage_seconds=config.garbage_seconds,
        minor_live_share=config.compaction_minor_share,
        major_live_share=config.compaction_major_share,
        major_seconds=config.compaction_major_seconds,
        major_hours=Hours.parse(config.compaction_major_hours),
        compaction_bytes_per_second=config.compaction_bytes_per_second,
        scrub_bytes_per_second=config.scrub_bytes_per_second,
        scrub_pause_seconds=config.scrub_pause_seconds,
        reserve_bytes=min(RESERVE_BYTES_MAX, config.entry_log_bytes // 16),
    )


def connection_limits(config: BookieConfig) -> ConnectionLimits:
    """The limits over all connections."""
    return ConnectionLimits(
        connections_max=config.connections_max,
        hello_timeout_seconds=config.hello_timeout_seconds,
        frame_timeout_seconds=config.frame_timeout_seconds,
        unfinished_frame_bytes=config.unfinished_frame_bytes,
    )


def client_limits(config: BookieConfig) -> ClientLimits:
    """The limits of each client."""
    return ClientLimits(
        connections_max=config.connections_per_client_max,
        bytes_per_second=config.client_bytes_per_second,
        requests_per_second=config.client_requests_per_second,
        new_ledgers_per_second=config.client_new_ledgers_per_second,
    )


def arrival_limits(config: BookieConfig) -> ArrivalLimits:
    """The limits of connections that are not ready."""
    return ArrivalLimits(
        connections_max=config.connections_max,
        connections_per_address_max=config.connections_per_client_max,
        handshakes_max=config.handshakes_max,
        handshakes_per_second=config.handshakes_per_second,
        handshake_seconds=config.handshake_seconds,
    )


def answer_timing(config: BookieConfig) -> AnswerTiming:
    """When clients that read no answers are evicted."""
    stalled_seconds_min = config.stalled_client_seconds * _STALLED_SHARE_MIN
    return AnswerTiming(
        watch_seconds=min(1.0, stalled_seconds_min),
        stalled_seconds_max=config.stalled_client_seconds,
        stalled_seconds_min=stalled_seconds_min,
    )
