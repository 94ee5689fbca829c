"""Dumps: what is written is read back; nothing damaged, cut or foreign is taken for a dump; restores begin empty."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.metadata import MetadataStore, open_metadata_store
from octavo.metadata.connect import create_metadata_store
from octavo.metadata.store.driver import ClusterOrigin
from octavo.metadata.updates.dump import (
    RESTORED_IDS_SKIPPED,
    RESTORED_TERMS_SKIPPED,
    ClusterFacts,
    Document,
    DumpEnd,
    DumpRecord,
    DumpWriter,
    first_restored_id,
    read_dump,
    restored_terms_skipped,
)
from octavo.metadata.updates.garbage_hold import DOCUMENT, GarbageHold, decode_hold, encode_hold, read_hold, set_hold
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import ID_MAX, TERM_MAX, LedgerId
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.memory_stores import memory_uri
from support.metadata.metadata_clusters import cookie, registration
from support.metadata.stream_metadata import open_stream, stream_fragment
from support.metadata.zookeeper import new_cluster_uri

FACTS = ClusterFacts("c1", datetime(2026, 3, 1, 12, tzinfo=UTC), "0.1.0")
RECORDS: list[DumpRecord] = [
    Document("logs/norders", b'{"a":1}'),
    Document("cluster/version", bytes(range(256))),
    cookie("b1", 4),
    open_ledger(3, fragment(0, "abc"), fragment(10, "abd")),
    open_stream(stream_fragment(1, 0, 0), stream_fragment(3, 0, 10, "abd", 100)).restored(2).in_recovery(),
]
END = DumpEnd(LedgerId(8), len(RECORDS))


def dumped() -> bytes:
    writer = DumpWriter()
    lines = [writer.begin(FACTS), *(writer.record(record) for record in RECORDS), writer.end(END.ledger_ids_stop)]
    return b"".join(lines)


def test_what_is_dumped_is_read_back() -> None:
    assert list(read_dump(dumped().splitlines(keepends=True), "f")) == [FACTS, *RECORDS, END]


@given(st.data())
def test_no_damage_to_a_dump_goes_unnoticed(data: st.DataObject) -> None:
    content = bytearray(dumped())
    at = data.draw(st.integers(0, len(content) - 1))
    match data.draw(st.sampled_from(["flip", "cut", "drop a line", "double a line", "append"])):
        case "flip":
            content[at] ^= data.draw(st.integers(1, 255))
        case "cut":
            del content[at:]
        case "append":
            content += b"{}\n"
        case change:
            lines = bytes(content).splitlines(keepends=True)
            chosen = data.draw(st.integers(0, len(lines) - 1))
            lines[chosen : chosen + 1] = [] if change == "drop a line" else [lines[chosen]] * 2
            content = bytearray(b"".join(lines))
    if bytes(content) == dumped() or bytes(content) == dumped().removesuffix(b"\n"):
        return
    with pytest.raises(MetadataError):
        list(read_dump(bytes(content).splitlines(keepends=True), "f"))


@pytest.mark.parametrize("content", [b"", b"\n", b"[]\n", b"{}\n", b'{"octavo_dump":2}\n', b'{"octavo_dump":"1"}\n'])
def test_other_files_are_refused(content: bytes) -> None:
    with pytest.raises(MetadataError, match="the-file"):
        list(read_dump(content.splitlines(keepends=True), "the-file"))


def test_a_restored_cluster_leaves_out_the_ids_of_the_time_after_the_dump() -> None:
    assert first_restored_id(END, timedelta(0)) == 8 + RESTORED_IDS_SKIPPED
    with pytest.raises(InvalidArgumentError, match="exhausted"):
        first_restored_id(DumpEnd(LedgerId(ID_MAX), 0), timedelta(0))


def test_a_dump_that_is_restored_again_leaves_out_more_each_time() -> None:
    """What the first restored cluster has given out, bookies may hold: a second one must not give it out again."""
    first, second = timedelta(hours=1), timedelta(hours=2)
    assert first_restored_id(END, second) - first_restored_id(END, first) == 3600 * 2**20
    assert restored_terms_skipped(second) - restored_terms_skipped(first) == 3600
    # Clocks that are behind, or far ahead.
    assert restored_terms_skipped(-first) == restored_terms_skipped(timedelta(0)) == RESTORED_TERMS_SKIPPED
    assert first_restored_id(END, -first) == first_restored_id(END, timedelta(0))
    assert restored_terms_skipped(timedelta(days=100_000)) < TERM_MAX // 3


@pytest.fixture(params=["sqlite", "zookeeper"])
def empty_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A URI at which there is no cluster."""
    return f"sqlite:///{tmp_path}/metadata.db" if request.param == "sqlite" else new_cluster_uri()


async def test_a_store_continues_the_cluster_that_it_restores(empty_place: str) -> None:
    async with await create_metadata_store(empty_place, ClusterOrigin("c1", LedgerId(1000))) as store:
        assert await store.cluster_id() == "c1"
        await store.create_ledger(open_ledger(3))
        assert await store.allocate_ledger_id() >= 1000
    async with await open_metadata_store(empty_place) as again:
        assert (await again.read_ledger(LedgerId(3))).value == open_ledger(3)
        assert await again.ledger_ids_stop() > 1000


async def test_a_cluster_is_restored_only_where_there_is_none(empty_place: str) -> None:
    async with await open_metadata_store(empty_place, create=True) as store:
        cluster_id = await store.cluster_id()
        with pytest.raises(MetadataError, match=rf"already \({cluster_id}\)"):
            await create_metadata_store(empty_place, ClusterOrigin("c1", LedgerId(1000)))
        assert await store.cluster_id() == cluster_id
    with pytest.raises(InvalidArgumentError, match="memory://x"):
        await create_metadata_store("memory://x", ClusterOrigin("c1", LedgerId(1000)))


@pytest.fixture
async def store(request: pytest.FixtureRequest) -> AsyncIterator[MetadataStore]:
    async with await open_metadata_store(memory_uri(request.node.name), create=True) as opened:
        await opened.register_bookie(registration("b1"))
        yield opened


async def test_the_first_hold_on_garbage_collection_stands(store: MetadataStore) -> None:
    first, second = (GarbageHold(reason, datetime(2026, 1, 1, tzinfo=UTC)) for reason in ("first", "second"))
    assert await read_hold(store) is None
    assert await set_hold(store, first) == first
    assert await set_hold(store, second) == first
    assert await read_hold(store) == first
    await store.delete_document(DOCUMENT)
    assert await read_hold(store) is None


def test_a_hold_that_cannot_be_understood_is_an_error_and_not_the_absence_of_a_hold() -> None:
    hold = GarbageHold("because", datetime(2026, 1, 1, tzinfo=UTC))
    assert decode_hold(encode_hold(hold)) == hold
    with pytest.raises(MetadataError, match="hold on garbage collection"):
        decode_hold(b"{}")
