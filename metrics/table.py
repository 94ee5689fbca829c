"""Every metric that Octavo exposes: its name, kind, labels and meaning. Pure.

This table is the only list of metrics. The bookie and the client take their names from it, the exposition writer its
``HELP`` and ``TYPE`` lines, ``docs/metrics.md`` its rows and the dashboard its panels; tests compare them. A metric
that is not in the table cannot be exposed, and every metric of the table is exposed.

Names follow Prometheus: the unit is the last word (``_seconds``, ``_bytes``), and a counter ends in ``_total``. No
metric has a label for a ledger, a log or a client: their number has no bound.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Kind(enum.StrEnum):
    """The kind of a metric's values."""

    COUNTER = "counter"
    """A number that only rises; it begins at 0 when the process starts."""
    GAUGE = "gauge"
    """A number that rises and falls."""
    HISTOGRAM = "histogram"
    """Durations, counted in the buckets of ``octavo.metrics.histogram``."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table."""

    name: str
    kind: Kind
    help: str
    """One sentence without a full stop, as it stands in the ``HELP`` line."""
    labels: tuple[str, ...] = ()
    values: Mapping[str, str] | None = field(default=None, hash=False)
    """The values that a label can have, where they are few: label -> values, separated by commas."""


def _counter(name: str, text: str, *labels: str, **values: str) -> Metric:
    return Metric(name, Kind.COUNTER, text, labels, values or None)


def _gauge(name: str, text: str, *labels: str, **values: str) -> Metric:
    return Metric(name, Kind.GAUGE, text, labels, values or None)


def _histogram(name: str, text: str, *labels: str, **values: str) -> Metric:
    return Metric(name, Kind.HISTOGRAM, text, labels, values or None)


_OPS = "add, read, read_lac, write_lac, force, list_entries, info, ping, missing, authenticate, subscribe"

# --- bookie: requests -------------------------------------------------------------------------------------------------

REQUESTS = _counter(
    "octavo_bookie_requests_total",
    "Requests answered, by operation and by result: ok, or the class of the error without its suffix Error",
    "op", "code", op=_OPS,
)  # fmt: skip
REQUEST_SECONDS = _histogram(
    "octavo_bookie_request_seconds",
    "Time from the arrival of a request until its answer is handed to the socket, without long polls",
    "op", op=_OPS,
)  # fmt: skip
ENTRIES_ADDED = _counter("octavo_bookie_entries_added_total", "Entries in the adds that the bookie accepted")
ADDED_BYTES = _counter("octavo_bookie_added_bytes_total", "Bytes of the sealed entries in these adds")
ENTRIES_READ = _counter("octavo_bookie_entries_read_total", "Entries in answers to reads, and in pushes")
READ_BYTES = _counter("octavo_bookie_read_bytes_total", "Bytes of the sealed entries in answers to reads")
REQUESTS_OUTSTANDING = _gauge(
    "octavo_bookie_requests_outstanding", "Requests without an answer yet, without long polls that wait"
)
LONG_POLLS = _gauge("octavo_bookie_long_polls", "Long polls that wait for a ledger to grow")
SUBSCRIPTIONS = _gauge("octavo_bookie_subscriptions", "Subscriptions of clients to ledgers")
DUPLICATES_REFUSED = _counter(
    "octavo_bookie_duplicates_refused_total",
    "Entries refused because the bookie holds other bytes under the same id (rule W11)",
)
FENCES = _counter("octavo_bookie_fences_total", "Ledgers fenced")
CONNECTIONS = _gauge(
    "octavo_bookie_connections",
    "Open connections of clients, by whether they use TLS and whether the client has proved to be a principal",
    "tls", "authenticated", tls="yes, no", authenticated="yes, no",
)  # fmt: skip
CONNECTIONS_REFUSED = _counter(
    "octavo_bookie_connections_refused_total",
    "Connections refused because the bookie, or their client, had as many as it may have",
)
PROTOCOL_ERRORS = _counter(
    "octavo_bookie_protocol_errors_total", "Connections closed by the bookie because of an error of the client"
)

CERTIFICATE_EXPIRY_SECONDS = _gauge(
    "octavo_bookie_certificate_expiry_seconds",
    "When the certificate of the bookie expires, in seconds since 1970; 0 while TLS is off",
)
TLS_HANDSHAKES = _counter(
    "octavo_bookie_tls_handshakes_total", "TLS handshakes with clients, by how they ended", "outcome",
    outcome="ok, refused, failed, timeout",
)  # fmt: skip
DENIED = _counter(
    "octavo_bookie_denied_total",
    "Refusals by what was not enough: the certificate at the hello, the key, or the roles for a request",
    "reason", reason="certificate, key, role",
)  # fmt: skip

AUDIT_LINES = _counter("octavo_bookie_audit_lines_total", "Lines written to the audit log")
AUDIT_LOST = _counter("octavo_bookie_audit_lost_total", "Lines of the audit log that could not be written")
CLIENT_REFUSALS = _counter(
    "octavo_bookie_client_refusals_total",
    "Connections and requests refused because their client had reached its limit", "limit",
    limit="connections, new_ledgers, held, long_polls, subscriptions",
)  # fmt: skip
THROTTLED_SECONDS = _counter(
    "octavo_bookie_clients_throttled_seconds_total",
    "Time in which the bookie read nothing from a client that was over its rates, all clients together",
)

# --- bookie: journal --------------------------------------------------------------------------------------------------

JOURNAL_SYNC_SECONDS = _histogram(
    "octavo_bookie_journal_sync_seconds", "Time to write and sync one group of the journal"
)
JOURNAL_QUEUE_SECONDS = _histogram(
    "octavo_bookie_journal_queue_seconds", "Time that the oldest record of a group waited until its write began"
)
JOURNAL_GROUPS = _counter("octavo_bookie_journal_groups_total", "Groups of records written and synced")
JOURNAL_BYTES = _counter("octavo_bookie_journal_bytes_total", "Bytes written and synced, whole pages")
JOURNAL_SEGMENTS_UNPREPARED = _counter(
    "octavo_bookie_journal_segments_unprepared_total",
    "Segments for which the journal had to wait because none was prepared",
)
JOURNAL_PENDING_BYTES = _gauge("octavo_bookie_journal_pending_bytes", "Bytes of records that are not synced yet")
JOURNAL_REPLAY_BYTES = _gauge(
    "octavo_bookie_journal_replay_bytes", "Bytes journaled since the last checkpoint, which a start would replay"
)

# --- bookie: memory ---------------------------------------------------------------------------------------------------

CACHE_BYTES = _gauge("octavo_bookie_cache_bytes", "Memory of the write cache")
ANSWER_BYTES = _gauge("octavo_bookie_answer_bytes", "Memory of answers that clients have not taken yet")
HELD_BACK_SECONDS = _counter(
    "octavo_bookie_held_back_seconds_total",
    "Time during which the bookie read no socket because the storage had no memory for more adds",
)
CONNECTIONS_EVICTED = _counter(
    "octavo_bookie_connections_evicted_total", "Connections closed because the client did not read its answers"
)

# --- bookie: checkpoint and index -------------------------------------------------------------------------------------

CHECKPOINT_SECONDS = _histogram("octavo_bookie_checkpoint_seconds", "Time of a checkpoint, without waiting to begin")
CHECKPOINT_AGE_SECONDS = _gauge("octavo_bookie_checkpoint_age_seconds", "Time since the last checkpoint was completed")
INDEX_PARTS = _gauge("octavo_bookie_index_parts", "Parts of the index")
INDEX_LOOKUP_SECONDS = _histogram("octavo_bookie_index_lookup_seconds", "Time of one look-up in the index")
INDEX_MERGE_BYTES = _counter("octavo_bookie_index_merge_bytes_total", "Bytes of index parts written by merges")

# --- bookie: space ----------------------------------------------------------------------------------------------------

DISK_FREE_BYTES = _gauge(
    "octavo_bookie_disk_free_bytes", "Free space of the disk of each directory",
    "path", "role", role="data, journal, entries-N",
)  # fmt: skip
DISK_TOTAL_BYTES = _gauge(
    "octavo_bookie_disk_total_bytes", "Size of the disk of each directory",
    "path", "role", role="data, journal, entries-N",
)  # fmt: skip
DISK_READ_ONLY_THRESHOLD_BYTES = _gauge(
    "octavo_bookie_disk_read_only_threshold_bytes", "Free space below which a disk makes the bookie read-only"
)
DISK_FULL = _counter("octavo_bookie_disk_full_total", "Attempts to write that found the disk full and were repeated")
ENTRY_LOGS = _gauge("octavo_bookie_entry_logs", "Entry logs")
ENTRY_LOG_BYTES = _gauge("octavo_bookie_entry_log_bytes", "Bytes of all entry logs")
ENTRY_LOG_LIVE_BYTES = _gauge(
    "octavo_bookie_entry_log_live_bytes",
    "Bytes of finished entry logs that belong to ledgers that are not deleted, at the last garbage round",
)
LEDGERS = _gauge("octavo_bookie_ledgers", "Ledgers known to the bookie at the last checkpoint, deleted ones included")
GARBAGE_ROUNDS = _counter("octavo_bookie_garbage_rounds_total", "Garbage collections", "outcome", outcome="ok, failed")
GARBAGE_ROUND_AGE_SECONDS = _gauge(
    "octavo_bookie_garbage_round_age_seconds",
    "Time since the last garbage collection that succeeded, or since the start",
)
LEDGERS_DELETED = _counter("octavo_bookie_ledgers_deleted_total", "Ledgers removed by garbage collections")
STREAMS_TRIMMED = _counter(
    "octavo_bookie_streams_trimmed_total", "How often garbage collections have trimmed a stream that was truncated"
)
COMPACTION_BYTES = _counter(
    "octavo_bookie_compaction_bytes_total", "Bytes of entry logs copied and removed by compactions",
    "direction", direction="copied, freed",
)  # fmt: skip

# --- bookie: soundness ------------------------------------------------------------------------------------------------

DAMAGE = _counter(
    "octavo_bookie_damage_total", "Damaged places found since the start, each counted once",
    "kind", kind="entry, index, journal",
)  # fmt: skip
SCRUB_BYTES = _counter("octavo_bookie_scrub_bytes_total", "Bytes verified by the scrubber")
SCRUB_ROUNDS = _counter("octavo_bookie_scrub_rounds_total", "Rounds of the scrubber that were completed")
SCRUB_ROUND_AGE_SECONDS = _gauge(
    "octavo_bookie_scrub_round_age_seconds", "Time since the scrubber completed a round, or since the start"
)
IN_DOUBT = _gauge(
    "octavo_bookie_in_doubt", "1 while the bookie may lack acknowledged entries that it has lost, otherwise 0"
)
UNSURE_LEDGERS = _gauge(
    "octavo_bookie_unsure_ledgers",
    "Ledger ids of which the bookie in doubt denies no entry; many of them may not exist",
)

# --- bookie: repair ---------------------------------------------------------------------------------------------------

REPAIR_READS = _counter("octavo_bookie_repair_reads_total", "Reads of other bookies that were served for repair")
REPAIR_READ_BYTES = _counter("octavo_bookie_repair_read_bytes_total", "Bytes of the sealed entries in these answers")
REPAIR_ENTRIES_COPIED = _counter(
    "octavo_bookie_repair_entries_copied_total", "Entries that the bookie has copied from other bookies"
)
REPAIR_COPIED_BYTES = _counter("octavo_bookie_repair_copied_bytes_total", "Bytes of these sealed entries")
REPAIR_LEDGERS_NAMED = _counter(
    "octavo_bookie_repair_ledgers_named_total", "Ledgers in which the bookie has taken another one's slot"
)
REPAIR_CONFLICTS = _counter(
    "octavo_bookie_repair_conflicts_total", "Attempts to take a slot that found the metadata changed"
)
REPAIR_ENTRIES_SHORT = _counter(
    "octavo_bookie_repair_entries_short_total", "Entries to be copied of which no bookie that answered had a sound copy"
)
COPIES_DROPPED = _counter(
    "octavo_bookie_copies_dropped_total",
    "Ledgers whose copies were given up because other bookies have taken this one's slot",
)
ENTRIES_RELIEVED = _counter(
    "octavo_bookie_relieved_entries_total",
    "Entries of streams that were given up because other bookies have taken this one's slot",
)
RELIEVED_BYTES = _counter("octavo_bookie_relieved_bytes_total", "Bytes of these entries; compaction frees their space")
REPAIR_AUDITOR = _gauge("octavo_bookie_repair_auditor", "1 while the bookie is the auditor of the cluster, otherwise 0")
REPAIR_LEDGERS = _gauge(
    "octavo_bookie_repair_ledgers",
    "Ledgers of the cluster that are not whole, as the auditor knows them; 0 on every other bookie",
    "state", state="queued, copying, short, open, divergent, no_target",
)  # fmt: skip
REPAIR_LEDGERS_OWING = _gauge(
    "octavo_bookie_repair_ledgers_owing",
    "Ledgers and streams of the cluster whose metadata say that copies may be missing (debts), as the auditor knows "
    "them; 0 on every other bookie",
)
REPAIR_BOOKIES = _gauge(
    "octavo_bookie_repair_bookies",
    "Bookies of the cluster by condition, as the auditor knows them; 0 on every other bookie",
    "condition", condition="missing, held, lost, draining, doubtful, retired",
)  # fmt: skip
REPAIR_WAITING_SINCE_SECONDS = _gauge(
    "octavo_bookie_repair_waiting_since_seconds",
    "Since when ledgers have been waiting for repair without a break, in seconds since 1970, as the auditor knows it; "
    "0 while none waits, and on every other bookie",
)
REPAIR_SUSPENDED = _gauge(
    "octavo_bookie_repair_suspended",
    "1 on the auditor for each reason for which repair declares no bookie lost (brake) or plans nothing (paused)",
    "reason", reason="brake, paused",
)  # fmt: skip
REPAIR_MOVES = _counter("octavo_bookie_repair_moves_total", "Ledgers in which the bookie has taken a fuller one's slot")
REPAIR_MOVES_UNDER_WAY = _gauge(
    "octavo_bookie_repair_moves_under_way",
    "Ledgers that are being moved from full bookies to empty ones, as the auditor knows them; 0 on every other bookie",
)
REPAIR_UNEVEN_RATIO = _gauge(
    "octavo_bookie_repair_uneven_ratio",
    "How far the bookie furthest from its share of all copies was away from it when the auditor looked last, as a part "
    "of that share; 0 before it has looked, and on every other bookie",
)
REPAIR_CLOCK_AHEAD_SECONDS = _gauge(
    "octavo_bookie_repair_clock_ahead_seconds",
    "By how much the auditor's clock was ahead of the metadata store's when it looked last, below 0 where it was "
    "behind; 0 on every other bookie",
)

# --- bookie: state ----------------------------------------------------------------------------------------------------

STATE = _gauge(
    "octavo_bookie_state", "1 for the state that the bookie is in, 0 for the others",
    "state", state="starting, writable, read-only, stopping",
)  # fmt: skip
READ_ONLY_REASON = _gauge(
    "octavo_bookie_read_only_reason", "1 for each reason for which the bookie is read-only now, otherwise 0",
    "reason", reason="disk, operator",
)  # fmt: skip
REGISTERED = _gauge("octavo_bookie_registered", "1 while the bookie is registered in the cluster, otherwise 0")
METADATA_UP = _gauge(
    "octavo_bookie_metadata_up", "1 if the metadata store answered the last request of the bookie, otherwise 0"
)
METADATA_SECONDS = _histogram(
    "octavo_bookie_metadata_seconds", "Time of a request of the bookie to the metadata store", "op"
)
START_TIME_SECONDS = _gauge("octavo_bookie_start_time_seconds", "When the bookie was ready, in seconds since 1970")
BUILD_INFO = _gauge(
    "octavo_bookie_build_info", "Always 1; the labels are the versions", "version", "protocol", "bookie"
)
LOOP_LAG_SECONDS = _histogram(
    "octavo_bookie_loop_lag_seconds", "How late the event loop runs a timer, sampled four times a second"
)
GC_PAUSE_SECONDS = _histogram("octavo_bookie_gc_pause_seconds", "Pauses of Python's search for reference cycles")
LOG_LINES_DROPPED = _counter(
    "octavo_bookie_log_lines_dropped_total", "Lines of the bookie's own log that could not be written"
)

# --- bookie: process --------------------------------------------------------------------------------------------------

PROCESS_CPU_SECONDS = _counter("process_cpu_seconds_total", "User and system time of the process")
PROCESS_RESIDENT_BYTES = _gauge("process_resident_memory_bytes", "Resident memory of the process")
PROCESS_OPEN_FDS = _gauge("process_open_fds", "Open file descriptors")
PROCESS_MAX_FDS = _gauge("process_max_fds", "Limit of open file descriptors")

BOOKIE_METRICS: Mapping[str, tuple[Metric, ...]] = {
    "Requests and connections": (
        REQUESTS, REQUEST_SECONDS, ENTRIES_ADDED, ADDED_BYTES, ENTRIES_READ, READ_BYTES, REQUESTS_OUTSTANDING,
        LONG_POLLS, SUBSCRIPTIONS, DUPLICATES_REFUSED, FENCES, CONNECTIONS, CONNECTIONS_REFUSED, PROTOCOL_ERRORS,
    ),
    "Security": (
        CERTIFICATE_EXPIRY_SECONDS, TLS_HANDSHAKES, DENIED, CLIENT_REFUSALS, THROTTLED_SECONDS, AUDIT_LINES, AUDIT_LOST,
    ),
    "Journal": (
        JOURNAL_SYNC_SECONDS, JOURNAL_QUEUE_SECONDS, JOURNAL_GROUPS, JOURNAL_BYTES, JOURNAL_SEGMENTS_UNPREPARED,
        JOURNAL_PENDING_BYTES, JOURNAL_REPLAY_BYTES,
    ),
    "Memory": (CACHE_BYTES, ANSWER_BYTES, HELD_BACK_SECONDS, CONNECTIONS_EVICTED),
    "Checkpoints and index": (
        CHECKPOINT_SECONDS, CHECKPOINT_AGE_SECONDS, INDEX_PARTS, INDEX_LOOKUP_SECONDS, INDEX_MERGE_BYTES,
    ),
    "Space": (
        DISK_FREE_BYTES, DISK_TOTAL_BYTES, DISK_READ_ONLY_THRESHOLD_BYTES, DISK_FULL, ENTRY_LOGS, ENTRY_LOG_BYTES,
        ENTRY_LOG_LIVE_BYTES, LEDGERS, GARBAGE_ROUNDS, GARBAGE_ROUND_AGE_SECONDS, LEDGERS_DELETED, STREAMS_TRIMMED,
        COMPACTION_BYTES,
    ),
    "Soundness": (DAMAGE, SCRUB_BYTES, SCRUB_ROUNDS, SCRUB_ROUND_AGE_SECONDS, IN_DOUBT, UNSURE_LEDGERS),
    "Repair": (
        REPAIR_READS, REPAIR_READ_BYTES, REPAIR_ENTRIES_COPIED, REPAIR_COPIED_BYTES, REPAIR_LEDGERS_NAMED,
        REPAIR_CONFLICTS, REPAIR_ENTRIES_SHORT, COPIES_DROPPED, ENTRIES_RELIEVED, RELIEVED_BYTES, REPAIR_AUDITOR,
        REPAIR_LEDGERS, REPAIR_LEDGERS_OWING, REPAIR_BOOKIES, REPAIR_WAITING_SINCE_SECONDS, REPAIR_SUSPENDED,
        REPAIR_MOVES, REPAIR_MOVES_UNDER_WAY, REPAIR_UNEVEN_RATIO, REPAIR_CLOCK_AHEAD_SECONDS,
    ),
    "State": (
        STATE, READ_ONLY_REASON, REGISTERED, METADATA_UP, METADATA_SECONDS, START_TIME_SECONDS, BUILD_INFO,
        LOOP_LAG_SECONDS, GC_PAUSE_SECONDS, LOG_LINES_DROPPED,
    ),
    "Process": (PROCESS_CPU_SECONDS, PROCESS_RESIDENT_BYTES, PROCESS_OPEN_FDS, PROCESS_MAX_FDS),
}  # fmt: skip
"""What a bookie exposes on ``/metrics``, by subject."""

# --- gateway ----------------------------------------------------------------------------------------------------------

GATEWAY_REQUESTS = _counter(
    "octavo_gateway_requests_total",
    "Requests of clients, by kind and by result: ok, the name of the first error in the answer, or malformed",
    "api", "code",
)  # fmt: skip
GATEWAY_REQUEST_SECONDS = _histogram(
    "octavo_gateway_request_seconds",
    "Time from a whole request until its answer is made; that of FETCH, JOIN_GROUP and SYNC_GROUP includes waiting",
    "api",
)
GATEWAY_RECEIVED_BYTES = _counter("octavo_gateway_received_bytes_total", "Bytes of requests, without their headers")
GATEWAY_SENT_BYTES = _counter("octavo_gateway_sent_bytes_total", "Bytes of answers, without their headers")
GATEWAY_BATCHES = _counter("octavo_gateway_batches_total", "Record batches that were acknowledged to producers")
GATEWAY_RECORDS = _counter("octavo_gateway_records_total", "Records in these batches")
GATEWAY_BATCH_BYTES = _counter("octavo_gateway_batch_bytes_total", "Bytes of these batches")
GATEWAY_FETCHED_BYTES = _counter("octavo_gateway_fetched_bytes_total", "Bytes of record batches given to consumers")
GATEWAY_CONNECTIONS = _gauge("octavo_gateway_connections", "Open connections of clients")
GATEWAY_CONNECTIONS_REFUSED = _counter(
    "octavo_gateway_connections_refused_total", "Connections closed at once because there were as many as there may be"
)
GATEWAY_HELD_BYTES = _gauge(
    "octavo_gateway_held_bytes", "Memory of large requests, and of answers that consumers have not taken yet", "budget",
    budget="requests, answers",
)  # fmt: skip
GATEWAY_BUDGET_WAITS = _counter(
    "octavo_gateway_budget_waits_total", "Requests and answers that waited because this memory was used up", "budget",
    budget="requests, answers",
)  # fmt: skip

GATEWAY_GATEWAYS = _gauge("octavo_gateway_gateways", "Gateways of the cluster that take part, as this one sees it")
GATEWAY_TOPICS = _gauge("octavo_gateway_topics", "Topics of the cluster, as this gateway knows them")
GATEWAY_PARTITIONS = _gauge(
    "octavo_gateway_partitions", "Partitions that this gateway leads, and those whose lead it waits for", "state",
    state="leading, opening",
)  # fmt: skip
GATEWAY_BATCHES_UNDER_WAY = _gauge(
    "octavo_gateway_batches_under_way", "Batches that were handed to logs and are not acknowledged"
)
GATEWAY_PRODUCERS = _gauge(
    "octavo_gateway_producers", "Idempotent producers that are remembered, over all partitions that are led"
)
GATEWAY_LEADS_LOST = _counter(
    "octavo_gateway_leads_lost_total", "Leads that ended before the gateway gave them up", "kind",
    kind="partition, coordinator",
)  # fmt: skip

GATEWAY_COORDINATORS = _gauge(
    "octavo_gateway_coordinators", "Logs of consumer groups, of 16, whose groups this gateway coordinates"
)
GATEWAY_GROUPS = _gauge(
    "octavo_gateway_groups", "Consumer groups that this gateway coordinates, by state", "state",
    state="Empty, PreparingRebalance, CompletingRebalance, Assigning, Reconciling, Stable",
)  # fmt: skip
GATEWAY_MEMBERS = _gauge("octavo_gateway_members", "Members of these groups")

GATEWAY_GROUP_LAG = _gauge(
    "octavo_gateway_group_lag_records",
    "Records behind the offset that a group has committed in a partition, for at most 1,000 such offsets of a gateway",
    "group", "topic", "partition",
)  # fmt: skip
GATEWAY_GROUP_BEHIND_SECONDS = _gauge(
    "octavo_gateway_group_behind_seconds",
    "For how long this gateway has known of records that the group has not handled yet; 0 where there are none",
    "group",
)
GATEWAY_GROUP_OFFSETS_LEFT_OUT = _gauge(
    "octavo_gateway_group_offsets_left_out", "Committed offsets whose lag is not shown, because there are too many"
)

GATEWAY_SERVES = _gauge("octavo_gateway_serves", "1 while the gateway may lead: its lease lives and it takes part")
GATEWAY_METADATA_UP = _gauge(
    "octavo_gateway_metadata_up", "1 if the metadata store answered the last request of the gateway, otherwise 0"
)
GATEWAY_METADATA_SECONDS = _histogram(
    "octavo_gateway_metadata_seconds", "Time of a request of the gateway to the metadata store", "op"
)
GATEWAY_START_TIME_SECONDS = _gauge(
    "octavo_gateway_start_time_seconds", "When the gateway began to serve, in seconds since 1970"
)
GATEWAY_BUILD_INFO = _gauge(
    "octavo_gateway_build_info", "Always 1; the labels are the version and the number by which clients know it",
    "version", "node",
)  # fmt: skip
GATEWAY_LOOP_LAG_SECONDS = _histogram(
    "octavo_gateway_loop_lag_seconds", "How late the event loop runs a timer, sampled four times a second"
)
GATEWAY_GC_PAUSE_SECONDS = _histogram(
    "octavo_gateway_gc_pause_seconds", "Pauses of Python's search for reference cycles"
)

GATEWAY_METRICS: Mapping[str, tuple[Metric, ...]] = {
    "Gateway: requests": (
        GATEWAY_REQUESTS, GATEWAY_REQUEST_SECONDS, GATEWAY_RECEIVED_BYTES, GATEWAY_SENT_BYTES, GATEWAY_BATCHES,
        GATEWAY_RECORDS, GATEWAY_BATCH_BYTES, GATEWAY_FETCHED_BYTES, GATEWAY_CONNECTIONS, GATEWAY_CONNECTIONS_REFUSED,
        GATEWAY_HELD_BYTES, GATEWAY_BUDGET_WAITS,
    ),
    "Gateway: partitions": (
        GATEWAY_GATEWAYS, GATEWAY_TOPICS, GATEWAY_PARTITIONS, GATEWAY_BATCHES_UNDER_WAY, GATEWAY_PRODUCERS,
        GATEWAY_LEADS_LOST,
    ),
    "Gateway: consumer groups": (
        GATEWAY_COORDINATORS, GATEWAY_GROUPS, GATEWAY_MEMBERS, GATEWAY_GROUP_LAG, GATEWAY_GROUP_BEHIND_SECONDS,
        GATEWAY_GROUP_OFFSETS_LEFT_OUT,
    ),
    "Gateway: state": (
        GATEWAY_SERVES, GATEWAY_METADATA_UP, GATEWAY_METADATA_SECONDS, GATEWAY_START_TIME_SECONDS, GATEWAY_BUILD_INFO,
        GATEWAY_LOOP_LAG_SECONDS, GATEWAY_GC_PAUSE_SECONDS,
    ),
}  # fmt: skip
"""What a gateway exposes on ``/metrics``, by subject; and the figures of its process, as a bookie does."""

# --- client -----------------------------------------------------------------------------------------------------------

CLIENT_ADDS = _counter(
    "octavo_client_adds_total", "Adds to ledgers that were acknowledged or failed", "outcome",
    outcome="acknowledged, failed",
)  # fmt: skip
CLIENT_ADDED_BYTES = _counter("octavo_client_added_bytes_total", "Payload bytes of acknowledged adds")
CLIENT_ADD_SECONDS = _histogram(
    "octavo_client_add_seconds",
    "Time from adding until the acknowledgement, one sample for each run of adds acknowledged together: its oldest",
)
CLIENT_WINDOW_ENTRIES = _gauge("octavo_client_window_entries", "Adds without an acknowledgement yet, all writers")
CLIENT_ENSEMBLE_CHANGES = _counter(
    "octavo_client_ensemble_changes_total",
    "Bookies that writers replaced in ensembles, by the class of their last error without its suffix Error", "reason",
)  # fmt: skip
CLIENT_ENTRIES_READ = _counter("octavo_client_entries_read_total", "Entries that readers received and verified")
CLIENT_SPECULATIVE_READS = _counter(
    "octavo_client_speculative_reads_total", "Reads sent to a further replica because the first was slow"
)
CLIENT_DIGEST_MISMATCHES = _counter(
    "octavo_client_digest_mismatches_total", "Entries received whose digest does not match"
)
CLIENT_RECOVERIES = _counter(
    "octavo_client_recoveries_total", "Recoveries of ledgers", "outcome", outcome="closed, failed"
)
CLIENT_RECONNECTS = _counter(
    "octavo_client_reconnects_total",
    "Connections to bookies that were lost or could not be made, by the class of the error without its suffix Error",
    "reason",
)  # fmt: skip
CLIENT_CURSOR_STORES_FAILED = _counter(
    "octavo_client_cursor_stores_failed_total", "Attempts to store positions of cursors that failed; they are repeated"
)
CLIENT_LEADS_LOST = _counter(
    "octavo_client_leads_lost_total",
    "Leads of logs that were lost: Lease (the lock was lost), or the class of the error without its suffix Error",
    "reason",
)  # fmt: skip
CLIENT_LOCKS_GOT_AGAIN = _counter(
    "octavo_client_locks_got_again_total",
    "Leases of logs that ran out while no other client wanted the log, so that this client leads on",
)  # fmt: skip
CLIENT_CLOCK_AHEAD_SECONDS = _gauge(
    "octavo_client_clock_ahead_seconds",
    "By how much this client's clock was ahead of the metadata store's when the leader of a log looked last (rule P19)",
)
CLIENT_METADATA_SECONDS = _histogram("octavo_client_metadata_seconds", "Time of a request to the metadata store", "op")

CLIENT_METRICS: Mapping[str, tuple[Metric, ...]] = {
    "Client": (
        CLIENT_ADDS, CLIENT_ADDED_BYTES, CLIENT_ADD_SECONDS, CLIENT_WINDOW_ENTRIES, CLIENT_ENSEMBLE_CHANGES,
        CLIENT_ENTRIES_READ, CLIENT_SPECULATIVE_READS, CLIENT_DIGEST_MISMATCHES, CLIENT_RECOVERIES, CLIENT_RECONNECTS,
        CLIENT_CURSOR_STORES_FAILED, CLIENT_LEADS_LOST, CLIENT_LOCKS_GOT_AGAIN, CLIENT_CLOCK_AHEAD_SECONDS,
        CLIENT_METADATA_SECONDS,
    ),
}  # fmt: skip
"""What ``client.metrics()`` returns."""
