"""The metrics of a bookie, taken from the objects that count them. Nothing is computed that a scrape in a loop could
make expensive: every value is a number that is at hand."""

import itertools
from collections import Counter
from collections.abc import Iterator

from octavo.bookie.admin.administered import ReadyBookie, Subject
from octavo.bookie.admin.process import ProcessStatistics
from octavo.bookie.server.access import DENIAL_REASONS
from octavo.bookie.server.clients import LIMITS
from octavo.bookie.upkeep.upkeep import Upkeep
from octavo.metrics import table
from octavo.metrics.exposition import Sample
from octavo.protocol.messages import PROTOCOL_VERSION
from octavo.security.tls_port import HANDSHAKE_OUTCOMES

STATES = ("starting", "writable", "read-only", "stopping")


def state_of(subject: Subject) -> str:
    """One of :data:`STATES`."""
    ready = subject.ready
    if subject.stopping or (ready is not None and ready.service.draining):
        return "stopping"
    if ready is None:
        return "starting"
    return "read-only" if ready.service.read_only else "writable"


def samples(subject: Subject, process: ProcessStatistics) -> Iterator[Sample]:
    """Every metric of the bookie; of one that is starting, those of its process and its state."""
    ready = subject.ready
    if ready is not None:
        yield from _requests(ready)
        yield from _security(ready)
        yield from _storage(ready)
        yield from _disks(ready)
        yield from _upkeep(ready.upkeep)
        yield from _repair(ready)
    state = state_of(subject)
    for name in STATES:
        yield Sample(table.STATE, int(name == state), (name,))
    if ready is not None:
        service = ready.service
        yield Sample(table.READ_ONLY_REASON, int(ready.upkeep.disks.read_only), ("disk",))
        yield Sample(table.READ_ONLY_REASON, int(service.operator_read_only is not None), ("operator",))
        yield Sample(table.REGISTERED, int(ready.registered()))
        yield Sample(table.METADATA_UP, int(ready.store.answers))
        for op, seconds in list(ready.store.seconds.items()):
            yield Sample(table.METADATA_SECONDS, seconds, (op,))
        identity = service.identity
        yield Sample(table.BUILD_INFO, 1, (identity.software, str(PROTOCOL_VERSION), identity.bookie_id))
    if subject.ready_at is not None:
        yield Sample(table.START_TIME_SECONDS, subject.ready_at)
    yield from _process(process)


def _requests(ready: ReadyBookie) -> Iterator[Sample]:
    service = ready.service
    requests, traffic = service.requests, service.traffic
    for op, code, count in requests.totals():
        yield Sample(table.REQUESTS, count, (op, code))
    for served, histogram in requests.seconds.items():
        yield Sample(table.REQUEST_SECONDS, histogram, (served.name.lower(),))
    yield Sample(table.ENTRIES_ADDED, traffic.entries_added)
    yield Sample(table.ADDED_BYTES, traffic.bytes_added)
    yield Sample(table.ENTRIES_READ, traffic.entries_read)
    yield Sample(table.READ_BYTES, traffic.bytes_read)
    connections = list(service.connections)
    yield Sample(table.REQUESTS_OUTSTANDING, sum(connection.outstanding for connection in connections))
    yield Sample(table.LONG_POLLS, sum(connection.long_polls for connection in connections))
    yield Sample(table.SUBSCRIPTIONS, sum(connection.subscriptions for connection in connections))
    kinds = Counter((connection.uses_tls, connection.principal is not None) for connection in connections)
    for tls, known in itertools.product((True, False), repeat=2):
        yield Sample(table.CONNECTIONS, kinds[tls, known], ("yes" if tls else "no", "yes" if known else "no"))
    yield Sample(table.CONNECTIONS_REFUSED, traffic.connections_refused)
    yield Sample(table.PROTOCOL_ERRORS, traffic.protocol_errors)
    yield Sample(table.ANSWER_BYTES, service.answers.budget.held)
    yield Sample(table.HELD_BACK_SECONDS, service.held_back_seconds)
    yield Sample(table.CONNECTIONS_EVICTED, service.answers.connections_evicted)


def _security(ready: ReadyBookie) -> Iterator[Sample]:
    service = ready.service
    yield Sample(table.CERTIFICATE_EXPIRY_SECONDS, service.tls.expires_at() or 0)
    for outcome in HANDSHAKE_OUTCOMES:
        yield Sample(table.TLS_HANDSHAKES, service.tls.handshakes[outcome], (outcome,))
    for reason in DENIAL_REASONS:
        denied = service.access.denied[reason] if service.access is not None else 0
        yield Sample(table.DENIED, denied, (reason,))
    yield Sample(table.AUDIT_LINES, service.audit.lines)
    yield Sample(table.AUDIT_LOST, service.audit.lines_lost)
    for limit in LIMITS:
        yield Sample(table.CLIENT_REFUSALS, service.clients.refused[limit], (limit,))
    yield Sample(table.THROTTLED_SECONDS, service.clients.throttled_seconds)


def _storage(ready: ReadyBookie) -> Iterator[Sample]:
    storage = ready.storage
    statistics = storage.statistics()
    journal = statistics.journal
    yield Sample(table.DUPLICATES_REFUSED, statistics.duplicates_refused)
    yield Sample(table.FENCES, statistics.fences)
    yield Sample(table.JOURNAL_SYNC_SECONDS, journal.sync_seconds)
    yield Sample(table.JOURNAL_QUEUE_SECONDS, journal.queue_seconds)
    yield Sample(table.JOURNAL_GROUPS, journal.groups_synced)
    yield Sample(table.JOURNAL_BYTES, journal.bytes_synced)
    yield Sample(table.JOURNAL_SEGMENTS_UNPREPARED, journal.segments_unprepared)
    yield Sample(table.JOURNAL_PENDING_BYTES, journal.pending_bytes)
    yield Sample(table.JOURNAL_REPLAY_BYTES, statistics.journal_bytes)
    yield Sample(table.CACHE_BYTES, statistics.cache_bytes)
    yield Sample(table.CHECKPOINT_SECONDS, statistics.checkpoint_seconds)
    yield Sample(table.CHECKPOINT_AGE_SECONDS, statistics.checkpoint_age_seconds)
    yield Sample(table.INDEX_PARTS, statistics.index_parts)
    yield Sample(table.INDEX_LOOKUP_SECONDS, statistics.index_lookup_seconds)
    yield Sample(table.INDEX_MERGE_BYTES, statistics.merge_bytes)
    yield Sample(table.DISK_FULL, statistics.disk_full_met)
    yield Sample(table.ENTRY_LOGS, statistics.entry_logs)
    yield Sample(table.ENTRY_LOG_BYTES, statistics.log_bytes)
    yield Sample(table.ENTRY_LOG_LIVE_BYTES, statistics.log_bytes_live)
    yield Sample(table.LEDGERS, statistics.ledgers)
    yield Sample(table.COMPACTION_BYTES, statistics.compaction_bytes_copied, ("copied",))
    yield Sample(table.COMPACTION_BYTES, statistics.compaction_bytes_freed, ("freed",))
    yield Sample(table.DAMAGE, statistics.entries_damaged, ("entry",))
    yield Sample(table.DAMAGE, statistics.index_damage_seen, ("index",))
    yield Sample(table.DAMAGE, len(storage.corruption), ("journal",))
    yield Sample(table.SCRUB_BYTES, statistics.bytes_scrubbed)
    yield Sample(table.SCRUB_ROUNDS, statistics.scrub_rounds)
    yield Sample(table.SCRUB_ROUND_AGE_SECONDS, statistics.scrub_age_seconds)
    yield Sample(table.IN_DOUBT, int(storage.doubt is not None))
    yield Sample(table.UNSURE_LEDGERS, 0 if storage.doubt is None else storage.doubt.unsure_ledgers)


def _disks(ready: ReadyBookie) -> Iterator[Sample]:
    spaces = ready.upkeep.spaces
    for role, path in ready.directories.items():
        space = spaces.get(path)
        if space is not None:
            yield Sample(table.DISK_FREE_BYTES, space.free_bytes, (str(path), role))
            yield Sample(table.DISK_TOTAL_BYTES, space.total_bytes, (str(path), role))
    yield Sample(table.DISK_READ_ONLY_THRESHOLD_BYTES, ready.disk_limits.read_only_bytes)


def _upkeep(upkeep: Upkeep) -> Iterator[Sample]:
    yield Sample(table.GARBAGE_ROUNDS, upkeep.garbage_rounds - upkeep.garbage_rounds_failed, ("ok",))
    yield Sample(table.GARBAGE_ROUNDS, upkeep.garbage_rounds_failed, ("failed",))
    yield Sample(table.GARBAGE_ROUND_AGE_SECONDS, upkeep.garbage_age_seconds)
    yield Sample(table.LEDGERS_DELETED, upkeep.ledgers_deleted)
    yield Sample(table.STREAMS_TRIMMED, upkeep.streams_trimmed)


def _repair(ready: ReadyBookie) -> Iterator[Sample]:
    """The reads that the bookie serves to repairs, and the figures that repair in this process publishes
    (``repair/agent.py``)."""
    reads, facts = ready.service.repair_reads, ready.service.companion_facts
    yield Sample(table.REPAIR_READS, reads.reads)
    yield Sample(table.REPAIR_READ_BYTES, reads.bytes_read)
    yield Sample(table.COPIES_DROPPED, ready.upkeep.copies_dropped)
    relieved = ready.upkeep.relieved
    yield Sample(table.ENTRIES_RELIEVED, 0 if relieved is None else relieved.entries)
    yield Sample(table.RELIEVED_BYTES, 0 if relieved is None else relieved.bytes)
    for metric, fact in (
        (table.REPAIR_ENTRIES_COPIED, "repair_entries_copied"),
        (table.REPAIR_COPIED_BYTES, "repair_bytes_copied"),
        (table.REPAIR_LEDGERS_NAMED, "repair_ledgers_named"),
        (table.REPAIR_CONFLICTS, "repair_conflicts"),
        (table.REPAIR_ENTRIES_SHORT, "repair_entries_short"),
        (table.REPAIR_AUDITOR, "repair_auditor"),
        (table.REPAIR_LEDGERS_OWING, "repair_ledgers_owing"),
        (table.REPAIR_MOVES, "repair_moves"),
        (table.REPAIR_MOVES_UNDER_WAY, "repair_moves_under_way"),
    ):
        yield Sample(metric, int(facts.get(fact, 0)))
    yield Sample(table.REPAIR_UNEVEN_RATIO, facts.get("repair_uneven_ratio", 0))
    yield Sample(table.REPAIR_CLOCK_AHEAD_SECONDS, facts.get("repair_clock_ahead_ms", 0) / 1000)
    yield Sample(table.REPAIR_WAITING_SINCE_SECONDS, facts.get("repair_waiting_since_ms", 0) / 1000)
    for metric, prefix in (
        (table.REPAIR_LEDGERS, "repair_ledgers"),
        (table.REPAIR_BOOKIES, "repair_bookies"),
        (table.REPAIR_SUSPENDED, "repair_suspended"),
    ):
        for values in (metric.values or {}).values():
            for value in values.split(", "):
                yield Sample(metric, int(facts.get(f"{prefix}_{value}", 0)), (value,))


def _process(process: ProcessStatistics) -> Iterator[Sample]:
    yield Sample(table.LOOP_LAG_SECONDS, process.loop_lag_seconds)
    yield Sample(table.GC_PAUSE_SECONDS, process.gc_pause_seconds)
    yield Sample(table.LOG_LINES_DROPPED, process.log_lines_dropped)
    yield from usage_samples(process)


def usage_samples(process: ProcessStatistics) -> Iterator[Sample]:
    """The process's use of the machine, as every process of Octavo exposes it."""
    usage = process.usage()
    yield Sample(table.PROCESS_CPU_SECONDS, usage.cpu_seconds)
    for metric, value in (
        (table.PROCESS_RESIDENT_BYTES, usage.resident_bytes),
        (table.PROCESS_OPEN_FDS, usage.open_files),
        (table.PROCESS_MAX_FDS, usage.open_files_max),
    ):
        if value is not None:
            yield Sample(metric, value)
