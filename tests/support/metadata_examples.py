"""One value of each document that the metadata store holds, for docs/metadata-format.md. Each has every field that it
can have; a few show what is left out as well."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from octavo.client.log.ages.ages import LogAges, Mark, SeenCursor, decode_ages
from octavo.client.log.documents.chain import (
    Dropped,
    LogDocument,
    Making,
    Retention,
    Segment,
    SegmentEnd,
    decode_log,
    encode_page,
    page_reference,
)
from octavo.client.log.documents.chain import decode_page as decode_segments
from octavo.client.log.documents.cursors import CursorsDocument, CursorState, decode_cursors, encode_cursors
from octavo.client.log.documents.key_window import KeyWindow
from octavo.client.log.documents.names import page_document
from octavo.client.log.documents.states import LogState
from octavo.client.log.documents.stream import Abandoned, StreamLogDocument, Truncating, decode_any_log
from octavo.gateway.groups.entries import (
    MARK,
    Committed,
    EpochStored,
    GenerationStored,
    GroupDeleted,
    GroupEntry,
    MemberLeft,
    MemberStored,
    OffsetsCommitted,
    OffsetsDeleted,
    decode_entry,
    encode_entry,
)
from octavo.gateway.groups.epoch_member import EpochMember
from octavo.gateway.groups.places import Place
from octavo.gateway.records.offsets import Anchor, decode_anchor, encode_anchor
from octavo.gateway.records.producers import Producer, Producers, Remembered
from octavo.gateway.records.snapshot import (
    SnapshotHead,
    decode_producers,
    decode_snapshot,
    encode_pages,
    encode_snapshot,
)
from octavo.gateway.topics.changes import TopicChanges, decode_changes
from octavo.gateway.topics.document import Topic, decode_topic
from octavo.gateway.topics.producer_ids import decode_counter, encode_counter
from octavo.gateway.topics.settings import TopicRetention, TopicSettings
from octavo.metadata.clocks.proven_time import BootTime, Disagreement, Moment, ProvenTime
from octavo.metadata.cluster.object_stores import (
    ObjectStoreEntry,
    StoreState,
    decode_stores,
    encode_stores,
    make_stores,
)
from octavo.metadata.cluster.principals import Principal, Principals, decode_principals, encode_principals
from octavo.metadata.cluster.registration import (
    BookieRegistration,
    BookieState,
    Cookie,
    decode_cookie,
    decode_registration,
    encode_cookie,
    encode_registration,
)
from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates, decode_states, encode_states
from octavo.metadata.ledger.archive_word import ArchiveWord
from octavo.metadata.ledger.debts import Debt, FullCopies
from octavo.metadata.ledger.model import Fragment, LedgerMetadata, LedgerState, SyncMode, decode_ledger, encode_ledger
from octavo.metadata.stream.any_metadata import decode_either, encode_either
from octavo.metadata.stream.archived import FragmentWords, archived_page
from octavo.metadata.stream.encoding import decode_stream, encode_stream
from octavo.metadata.stream.model import StreamFragment, StreamKey, StreamMetadata, StreamState
from octavo.metadata.stream.page_reference import Pages
from octavo.metadata.stream.pages import decode_page, make_page
from octavo.metadata.updates.cluster_release import Release, decode_release, encode_release
from octavo.metadata.updates.dump import ClusterFacts, Document, DumpWriter, read_dump
from octavo.metadata.updates.garbage_hold import GarbageHold, decode_hold, encode_hold
from octavo.metadata.zookeeper.layout import (
    Guarded,
    LedgerIdCounter,
    decode_guarded,
    decode_layout,
    decode_ledger_ids,
    encode_guarded,
    encode_layout,
    encode_ledger_ids,
)
from octavo.pipeline.base.log_writes import LogWrite, decode_log_write
from octavo.pipeline.base.manifest import Head, PublishedLedger, decode_head, decode_segment, encode_segment
from octavo.protocol.entries import Digest
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums
from octavo.repair.base.balance_document import (
    AskedBy,
    BalanceState,
    BookieFill,
    Phase,
    decode_balance,
    encode_balance,
)
from octavo.repair.base.documents import (
    AcceptedLoss,
    BookieFigures,
    Check,
    Report,
    Summary,
    WorkPlan,
    decode_blocked,
    decode_checks,
    decode_plan,
    decode_report,
    decode_summary,
    encode_blocked,
    encode_checks,
    encode_plan,
    encode_report,
    encode_summary,
)
from octavo.repair.base.planning import Blocked, BlockedClass, Job, Why
from octavo.repair.base.waits import Wait, Waits, decode_waits
from octavo.security.roles import Role
from octavo.security.salted_keys import SaltedVerifier
from octavo.security.scram import Verifier
from octavo.security.topic_rights import Grant, TopicRight


@dataclass(frozen=True, slots=True)
class Example:
    """A value, how it is written, and how it is read."""

    value: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    @property
    def stored(self) -> bytes:
        """What the store holds of it."""
        return self.encode(self.value)


CREATED_AT = datetime(2026, 3, 1, 12, 30, 15, 250_000, tzinfo=UTC)
CREATED_MS = int(CREATED_AT.timestamp() * 1000)
B1, B2, B3, B4 = (BookieId(f"b{number}") for number in (1, 2, 3, 4))
LOG_ID, PAGE_TOKEN, OTHER_TOKEN = "5f" * 16, "7a" * 16, "0c" * 16
SALT, VERIFIER = bytes(range(16)), bytes(range(32))

# --- ledgers and streams ----------------------------------------------------------------------------------------------

LEDGER: Final = LedgerMetadata(
    ledger_id=LedgerId(9),
    ensemble_size=3,
    write_quorum=3,
    ack_quorum=2,
    fragments=(Fragment(EntryId(0), (B1, B2, B3)),),
    digest=Digest.CRC32C,
    created_at=CREATED_AT,
    verifier=VERIFIER,
    salt=SALT,
    writer_token=OTHER_TOKEN,
)

CLOSED_LEDGER: Final = replace(
    LEDGER,
    state=LedgerState.CLOSED,
    fragments=(
        Fragment(EntryId(0), (B1, B2, B3), 0, debt=Debt(40, 49)),
        Fragment(EntryId(50), (B1, B2, B4), 5000, debt=Debt(0, -1)),
    ),
    last_entry_id=EntryId(149),
    length=15000,
    custom_metadata={"app": b"orders"},
    private=True,
    sync=SyncMode.DEFERRED,
    full_copies=FullCopies.RECORDED,
    fenced_at=CREATED_AT,
    fenced_by="host-2",
)


def _fragment(term: int, offset: int, position: int, bookies: tuple[BookieId, ...], length: int) -> StreamFragment:
    return StreamFragment(
        first_entry_id=place(term, offset),
        first_position=position,
        bookies=bookies,
        write_quorum=3,
        ack_quorum=2,
        length_before=length,
        opened_at_ms=CREATED_MS + 1000 * position,
    )


STREAM: Final = StreamMetadata(
    ledger_id=LedgerId(12),
    owner=OTHER_TOKEN,
    fragments=(_fragment(1, 0, 0, (B1, B2, B3), 0),),
    keys=(StreamKey(Digest.CRC32C, VERIFIER, SALT),),
    custom_metadata={"octavo.log": b"orders/eu"},
    created_at=CREATED_AT,
    writer_token=OTHER_TOKEN,
)

_OLD_FRAGMENTS: Final = (
    replace(_fragment(2, 0, 0, (B1, B2, B3), 0), leader_term=1, debt=Debt(0, -1)),
    replace(_fragment(2, 10, 10, (B1, B2, B4), 1000), leader_term=1, debt=Debt(0, -1)),
)
_TAIL: Final = (
    replace(_fragment(2, 40, 40, (B1, B2, B3), 4000), leader_term=1, debt=Debt(place(2, 60), place(2, 69))),
    replace(_fragment(3, 0, 70, (B2, B3, B4), 7000), debt=Debt(0, -1)),
)
_BEFORE_PAGING: Final = replace(
    STREAM, term=3, state=StreamState.AT_REST, fragments=(*_OLD_FRAGMENTS, *_TAIL), full_copies=FullCopies.REQUIRED,
    private=True, last_entry_id=place(3, 9), length=8000, terms_skipped=65536, fenced_at=CREATED_AT, fenced_by="host-2",
)  # fmt: skip
PAGE: Final = make_page(_BEFORE_PAGING, _OLD_FRAGMENTS, _TAIL[0])
PAGED_STREAM: Final = replace(
    _BEFORE_PAGING, fragments=_TAIL, pages=Pages([PAGE.reference]), revision=1, start=5, start_entry_id=place(2, 5)
)
_WORD: Final = ArchiveWord(1, bytes(range(16)), place(2, 0), place(2, 39), 5000, bytes(range(32)))
_ARCHIVED: Final = archived_page(
    PAGED_STREAM,
    PAGE.reference,
    decode_page(PAGED_STREAM, PAGE.reference, PAGE.value),
    [FragmentWords(place(2, 0), place(2, 9), (_WORD,)), FragmentWords(place(2, 10), place(2, 39), (_WORD,))],
)
ARCHIVED_PAGE: Final = _ARCHIVED[0]
ARCHIVED_STREAM: Final = replace(
    PAGED_STREAM.with_pages({PAGE.reference: ARCHIVED_PAGE.reference}),
    fragments=(
        replace(_TAIL[0], archive=(_WORD._replace(first=place(2, 40), last=place(2, 69), object_bytes=3000),)),
        _TAIL[1],
    ),
    archived_before=place(3, 0),
)


def token_of(page: bytes) -> str:
    """What the name of a page of a stream ends with."""
    return hashlib.sha256(page).hexdigest()[:24]


# --- logs -------------------------------------------------------------------------------------------------------------

_SEGMENTS: Final = tuple(
    Segment(LedgerId(20 + n), 1 + n, OTHER_TOKEN, CREATED_MS + n, 100 * n, SegmentEnd(100, 5000, CREATED_MS + n + 50))
    for n in range(2)
)

CHAIN: Final = LogDocument(
    name="orders/eu",
    log_id=LOG_ID,
    quorums=Quorums(3, 3, 2),
    digest=Digest.HMAC_SHA256,
    verifier=VERIFIER,
    salt=SALT,
    created_at_ms=CREATED_MS,
    private=True,
    retention=Retention(86400.0, None, cursors=True),
    state=LogState.ACTIVE,
    first_position=150,
    term=3,
    segments=(Segment(LedgerId(22), 3, OTHER_TOKEN, CREATED_MS + 2, 200),),
    pages=(page_reference(page_document(LOG_ID, PAGE_TOKEN), _SEGMENTS),),
    making=(Making(LedgerId(23), PAGE_TOKEN),),
    dropped=(Dropped(LedgerId(19), 1),),
    terms=((1, 0), (2, 100), (3, 200)),
    gaps=((160, 169),),
    dropped_sealed_at_ms=CREATED_MS,
    counts_ages=True,
)

STREAM_LOG: Final = StreamLogDocument(
    name="orders/eu",
    log_id=LOG_ID,
    ledger_id=LedgerId(12),
    created_at_ms=CREATED_MS,
    retention=Retention(None, 10**12),
    first_position=75,
    truncating=Truncating(77, PAGE_TOKEN),
    abandoned=(Abandoned(LedgerId(11)),),
    keys=KeyWindow(entries=5000, seconds=3600.0),
    counts_ages=True,
)

CURSORS: Final = CursorsDocument({"billing": CursorState(70, CREATED_MS), "search/eu": CursorState(12, 0)}, floor=60)

TIME: Final = ProvenTime(
    Moment(CREATED_MS + 5, CREATED_MS, BootTime("5d3a8f0e", 7_200_000)),
    3_600_000,
    Disagreement(1_800_000, 90_000, 60_000, None),
)

AGES: Final = LogAges(
    time=TIME,
    marks=(Mark(place(2, 60), 0), Mark(place(3, 9), 3_540_000)),
    term=3,
    cursors=MappingProxyType({"billing": SeenCursor(70, CREATED_MS, 3_600_000)}),
)

# --- bookies, repair, the cluster -------------------------------------------------------------------------------------

REGISTRATION: Final = BookieRegistration(
    bookie_id=B1, address="host1:3181", state=BookieState.WRITABLE, version="0.1.0", boot_id=PAGE_TOKEN, rack="/dc1/r7",
    host_id="boot-5d3a8f0e1b2c4d5e", free_bytes=10**12, tls="required",
)  # fmt: skip

COOKIE: Final = Cookie(bookie_id=B1, generation=7, address="host1:3181", body=b"c0ffee", lineage=OTHER_TOKEN)

STATES: Final = RepairStates(
    {
        B1: BookieCondition(Condition.MISSING, CREATED_MS),
        B2: BookieCondition(Condition.HELD, CREATED_MS, CREATED_MS + 600_000, "new disks"),
    },
    brake_overridden=True,
)

_BLOCKED: Final = Blocked(LedgerId(9), 40, 49, BlockedClass.SHORT, (B2,), "no copy answers")
PLAN: Final = WorkPlan(4, (Job(LedgerId(9), B1, Why.LOST), Job(LedgerId(12), None, Why.HOLE)), carried=1)
REPORT: Final = Report(4, frozenset({0, 1}), entries_copied=100, bytes_copied=5000, failures=(_BLOCKED,))
SUMMARY: Final = Summary(
    round_at_ms=CREATED_MS, ledgers=1000, queued=3, copying=2, blocked_counts={"short": 1},
    bookies={B1: BookieFigures(600, 2)}, entries_copied=100, bytes_copied=5000, bytes_per_second=2500.0,
    ledgers_per_second=0.5, queued_since_ms=CREATED_MS, blocked=(_BLOCKED,),
)  # fmt: skip
BALANCE: Final = BalanceState(
    CREATED_MS, AskedBy.OPERATOR, Phase.MOVING, "", 12, 48_000_000, 1, 4, 16_000_000,
    {BookieId("b1"): BookieFill(300_000_000, 1_000_000_000), BookieId("b4"): BookieFill(64_000_000, 2_000_000_000)},
)  # fmt: skip

CHECKS: Final = (Check(LedgerId(9), CREATED_MS), Check(LedgerId(12), CREATED_MS, short=False))
LOSS: Final = AcceptedLoss(LedgerId(9), (B2, B3), CREATED_MS, 149, "disks are gone")
WAITS: Final = Waits(TIME, MappingProxyType({B2: Wait(CREATED_MS, CREATED_MS + 600_000, 3_000_000)}))

PRINCIPALS: Final = Principals(
    {
        "billing": Principal(name="billing", roles=frozenset({Role.READ}), verifier=Verifier(VERIFIER, bytes(32))),
        "old-app": Principal(name="old-app", roles=frozenset({Role.APPEND, Role.OBSERVE}), disabled=True),
    }
)

_SALTED: Final = SaltedVerifier(bytes(16), 8192, VERIFIER, bytes(32))
PRINCIPALS_OF_GATEWAYS: Final = Principals(
    {
        "gateway": Principal(
            name="gateway", roles=frozenset({Role.APPEND}), verifier=Verifier(VERIFIER, bytes(32)), salted=_SALTED,
            grants=frozenset({Grant(TopicRight.DESCRIBE, "*")}),
        ),
        "web": Principal(
            name="web", roles=frozenset(), verifier=Verifier(VERIFIER, bytes(32)), salted=_SALTED,
            grants=frozenset({Grant(TopicRight.READ, "orders.*"), Grant(TopicRight.GROUP, "web")}),
        ),
    },
    decoy_seed=bytes(32),
)  # fmt: skip

HEAD: Final = Head(
    epoch=1,
    segments=(PAGE_TOKEN,),
    recent=(PublishedLedger(9, 150, 15000),),
    streams={"0b6c": (17, 9)},
    jobs=(OTHER_TOKEN,),
)
PUBLISHED: Final = (PublishedLedger(7, 10, 500), PublishedLedger(8, 20, 900))

# --- a dump -----------------------------------------------------------------------------------------------------------

FACTS: Final = ClusterFacts("9d" * 16, CREATED_AT, "0.1.0")


def _dump(records: Any) -> bytes:
    writer = DumpWriter()
    return b"".join([writer.begin(FACTS), *(writer.record(record) for record in records), writer.end(LedgerId(23))])


def _undump(value: bytes) -> Any:
    return [*read_dump(value.splitlines(keepends=True), "example")][1:-1]


TOPIC = Topic(
    "orders", "7a" * 16, partitions=3, write_quorum=3, ack_quorum=2,
    settings=TopicSettings(1_048_588, TopicRetention(604_800_000, None)),
)  # fmt: skip

SNAPSHOT = SnapshotHead(LOG_ID, term=2, position=812, next_offset=40_212, forgotten_below=17, pages=1)


ORDERS = Place(TOPIC.topic_id, 0)
MEMBER = EpochMember(
    "m1", None, 4, 3, frozenset({ORDERS}), topics=("orders",), rebalance_ms=300_000, client="worker", host="10.0.0.1"
)

GROUP_ENTRIES: list[GroupEntry] = [
    OffsetsCommitted("billing", {ORDERS: Committed(40_212, 2, "", CREATED_MS)}),
    GenerationStored("billing", 3, 45_000, CREATED_MS),
    EpochStored("billing", 4, CREATED_MS),
    MemberStored("billing", MEMBER),
    MemberLeft("billing", "m1"),
    OffsetsDeleted("billing", (ORDERS,)),
    GroupDeleted("billing"),
]


def _group_entries(entries: list[GroupEntry]) -> bytes:
    """One after another, as no log holds them."""
    return b"".join(encode_entry(entry) + b"\n" for entry in entries)


def _known_group_entries(value: bytes) -> list[GroupEntry | None]:
    return [decode_entry(MARK + one.rstrip(), "entry") for one in value.split(MARK)[1:]]


def _snapshot_page(producers: dict[int, tuple[int, list[Remembered]]]) -> bytes:
    known = Producers(forgotten_below=SNAPSHOT.forgotten_below)
    for producer_id, (at_ms, batches) in producers.items():
        known.restore(producer_id, at_ms, batches)
    return encode_pages(known, log_id=LOG_ID, position=SNAPSHOT.position)[0]


def _known_producers(page: bytes) -> dict[int, tuple[int, list[Remembered]]]:
    def known(producer: Producer) -> tuple[int, list[Remembered]]:
        return producer.at_ms, list(producer.acknowledged)

    return {producer_id: known(producer) for producer_id, producer in decode_producers(SNAPSHOT, [page])}


EXAMPLES: Final[dict[str, Example]] = {
    "ledger": Example(LEDGER, encode_ledger, lambda value: decode_ledger(LedgerId(9), value)),
    "closed-ledger": Example(CLOSED_LEDGER, encode_either, lambda value: decode_either(LedgerId(9), value)),
    "stream": Example(STREAM, encode_either, lambda value: decode_either(LedgerId(12), value)),
    "archived-stream": Example(ARCHIVED_STREAM, encode_stream, lambda value: decode_stream(LedgerId(12), value)),
    "paged-stream": Example(PAGED_STREAM, encode_stream, lambda value: decode_stream(LedgerId(12), value)),
    "stream-page": Example(
        _OLD_FRAGMENTS,
        lambda fragments: make_page(_BEFORE_PAGING, fragments, _TAIL[0]).value,
        lambda value: tuple(decode_page(PAGED_STREAM, replace(PAGE.reference, token=token_of(value)), value).fragments),
    ),
    "archived-stream-page": Example(
        tuple(decode_page(ARCHIVED_STREAM, ARCHIVED_PAGE.reference, ARCHIVED_PAGE.value).fragments),
        lambda fragments: make_page(_BEFORE_PAGING, fragments, _TAIL[0]).value,
        lambda value: tuple(
            decode_page(ARCHIVED_STREAM, replace(ARCHIVED_PAGE.reference, token=token_of(value)), value).fragments
        ),
    ),
    "chain": Example(CHAIN, LogDocument.encode, lambda value: decode_log(value, "orders/eu")),
    "chain-page": Example(_SEGMENTS, encode_page, lambda value: decode_segments(value, "example")),
    "stream-log": Example(STREAM_LOG, StreamLogDocument.encode, lambda value: decode_any_log(value, "orders/eu")),
    "cursors": Example(CURSORS, encode_cursors, lambda value: decode_cursors(value, "example")),
    "ages": Example(AGES, LogAges.encode, lambda value: decode_ages(value, "example")),
    "anchor": Example(
        Anchor(position=512, base_offset=20_480, start_offset=20_500),
        lambda anchor: encode_anchor(anchor, LOG_ID),
        lambda value: decode_anchor(value, LOG_ID),
    ),
    "topic": Example(TOPIC, Topic.encode, lambda value: decode_topic(value, "orders")),
    "private-topic": Example(
        replace(TOPIC, is_private=True), Topic.encode, lambda value: decode_topic(value, "orders")
    ),
    "topic-changes": Example(TopicChanges(3, ("orders", "payments", "orders")), TopicChanges.encode, decode_changes),
    "producer-ids": Example(4000, encode_counter, decode_counter),
    "producers-snapshot": Example(SNAPSHOT, encode_snapshot, lambda value: decode_snapshot(value, LOG_ID)),
    "producers-page": Example(
        {4001: (1772368215250, [Remembered(0, 0, 250, 39_700), Remembered(0, 250, 250, 40_100)])},
        _snapshot_page,
        _known_producers,
    ),
    "group-entries": Example(GROUP_ENTRIES, _group_entries, _known_group_entries),
    "registration": Example(REGISTRATION, encode_registration, lambda value: decode_registration(B1, value)),
    "cookie": Example(COOKIE, encode_cookie, lambda value: decode_cookie(B1, value)),
    "conditions": Example(STATES, encode_states, decode_states),
    "plan": Example(PLAN, encode_plan, lambda value: decode_plan(value, "example")),
    "report": Example(REPORT, encode_report, lambda value: decode_report(value, "example")),
    "summary": Example(SUMMARY, encode_summary, decode_summary),
    "balance": Example(BALANCE, encode_balance, decode_balance),
    "checks": Example(CHECKS, encode_checks, decode_checks),
    "blocked": Example((_BLOCKED,), encode_blocked, lambda value: decode_blocked(value, "example")),
    "accepted-loss": Example(LOSS, AcceptedLoss.encode, lambda value: AcceptedLoss.decode(value, "example")),
    "clock": Example(WAITS, Waits.encode, decode_waits),
    "release": Example(Release(0, 1), encode_release, decode_release),
    "object-stores": Example(
        make_stores(
            [
                ObjectStoreEntry(1, "s3://entries/octavo", StoreState.READ_ONLY, b"first"),
                ObjectStoreEntry(2, "s3://more-entries/octavo", StoreState.ACTIVE, b"first"),
            ]
        ),
        encode_stores,
        decode_stores,
    ),
    "garbage-hold": Example(GarbageHold("restored from a dump", CREATED_AT), encode_hold, decode_hold),
    "principals": Example(PRINCIPALS, encode_principals, decode_principals),
    "principals-of-gateways": Example(PRINCIPALS_OF_GATEWAYS, encode_principals, decode_principals),
    "dataset-head": Example(HEAD, Head.encode, lambda value: decode_head(value, "example")),
    "log-write": Example(
        LogWrite("orders", "0b6c", 17, (PublishedLedger(9, 150, 15000),), may_repeat=True, starts_at=4000, floor=7),
        LogWrite.encode,
        lambda value: decode_log_write(value, "example"),
    ),
    "dataset-segment": Example(
        PUBLISHED,
        lambda ledgers: encode_segment(ledgers, written_at=CREATED_AT.timestamp()),
        lambda value: decode_segment(value, "example")[0],
    ),
    "zookeeper-layout": Example("9d" * 16, encode_layout, lambda value: decode_layout(value, "/octavo/layout")),
    "zookeeper-ledger-ids": Example(
        LedgerIdCounter(23), encode_ledger_ids, lambda value: decode_ledger_ids(value, "/octavo/ledger-ids")
    ),
    "zookeeper-guarded": Example(
        Guarded("guard-8f8f8f8f8f8f8f8f", "41" * 8, encode_release(Release(0, 1))),
        encode_guarded,
        lambda value: decode_guarded(value, "example"),
    ),
    "dump": Example([COOKIE, Document("cluster/version", encode_release(Release(0, 1))), LEDGER], _dump, _undump),
}
"""By the name that the page gives them."""
