"""What docs/disk-format.md says is what the code does."""

import re
from array import array
from pathlib import Path

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.filesystem import RealFileSystem
from octavo.bookie.entrylog import format as entry_log_format
from octavo.bookie.entrylog.format import Total
from octavo.bookie.index import format as index_format
from octavo.bookie.index.part import Part, PartWriter
from octavo.bookie.index.runs import RUN_ENTRIES_MAX, make_run
from octavo.bookie.journal.format import (
    HEADER_BYTES,
    JournalPosition,
    Record,
    RecordKind,
    SegmentHeader,
    encode_header,
    examine,
)
from octavo.bookie.journal.group_commit import GroupCommit, encode_group
from octavo.bookie.journal.replay import DECISIONS, Decision, Follower, Sight
from octavo.bookie.storage.ledger_state import (
    LedgerState,
    decode_relieved_below,
    encode_relief,
    encode_trim,
    relieved_below_in,
)
from octavo.bookie.storage.manifest import Manifest, decode_manifest, encode_manifest
from octavo.protocol.held_entries import Doubt
from octavo.protocol.places import place

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "disk-format.md").read_text(encoding="utf-8")
HEADER = SegmentHeader(7, 0x5EED5EED, 64 * 1024 * 1024, 6, JournalPosition(5, 12288))


def example(name: str) -> bytes:
    """The bytes of one example block."""
    found = re.search(rf"```{name}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None
    return bytes.fromhex(found[1])


def test_the_example_of_a_header_is_what_is_written() -> None:
    assert encode_header(HEADER)[:HEADER_BYTES] == example("journal-header")


def test_the_example_of_a_group_is_what_is_written_and_read() -> None:
    commit = GroupCommit(JournalPosition(7, 8192), segment_bytes=HEADER.segment_bytes)
    for body in (b"hello", b"world"):
        commit.append(RecordKind.FENCE, [body], len(body), None)
    written = b"".join(encode_group(commit.take(), HEADER, JournalPosition(7, 8192)))
    group = example("journal-group")
    assert written == group.ljust(4096, b"\0")
    synced = JournalPosition(7, 8192)
    first = examine(written, 8192, 8192, HEADER, HEADER.segment_bytes)
    assert first == Record(7, 8192, RecordKind.FENCE, b"hello", synced)
    second = examine(written, 8192, first.end.offset, HEADER, HEADER.segment_bytes)
    assert second == Record(7, 8232, RecordKind.FENCE, b"world", synced, ends_group=True)
    assert second.end == JournalPosition(7, 12288)


def test_every_kind_of_record_is_listed() -> None:
    for kind in RecordKind:
        assert f"| {kind.value} | {kind.name} |" in DOCUMENT


def test_the_table_of_decisions_is_the_one_in_the_document() -> None:
    words = {
        Decision.DELIVER: "deliver",
        Decision.NEXT_SEGMENT: "next segment",
        Decision.END: "end",
        Decision.TORN: "torn tail",
        Decision.CORRUPT: "corruption",
    }
    section = DOCUMENT.split("### Replay")[1].split("### Example")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    told = [row[1:] for row in rows[2:]]
    assert told == [[words[DECISIONS[sight, follower]] for follower in Follower] for sight in Sight]


def test_the_example_of_a_manifest_is_what_is_written_and_read() -> None:
    manifest = Manifest((7, 8192), 4, 3, (1, 3), ((2, 4096),))
    assert encode_manifest(manifest) == example("manifest")
    assert decode_manifest(example("manifest")) == manifest
    in_doubt = manifest._replace(doubt=Doubt(500, 120, {17: 0, 90: 2048}))
    assert encode_manifest(in_doubt) == example("manifest-in-doubt")
    assert decode_manifest(example("manifest-in-doubt")) == in_doubt


def test_the_examples_of_an_entry_log_are_what_is_written() -> None:
    assert entry_log_format.encode_header(2) == example("entry-log-header")
    assert entry_log_format.encode_filler(4076) == example("entry-log-filler")
    totals = {12: Total(3044, 19), 9: Total(1000, 10)}
    assert entry_log_format.encode_totals(2, totals) == example("entry-log-totals")
    totals[9] = Total(1000, place(1, 10))
    assert entry_log_format.encode_totals(2, totals) == example("entry-log-totals-of-streams")
    assert entry_log_format.decode_totals(2, example("entry-log-totals-of-streams")) == totals


def test_the_example_of_a_trim_is_what_is_written_and_read() -> None:
    assert encode_trim(9, place(3, 5)) == example("trim-record")
    state = LedgerState(9)
    state.ledger_key = b"key"
    state.trim(place(3, 5))
    assert state.encode() == example("trimmed-state")
    assert LedgerState.decode(9, example("trimmed-state")).first_kept == place(3, 5)


def test_the_example_of_a_relief_is_what_is_written_and_read() -> None:
    assert encode_relief(9, place(3, 5)) == example("relief-record")
    assert decode_relieved_below(example("relief-record")[8:]) == place(3, 5)
    state = LedgerState.decode(9, example("trimmed-state"))
    state.relieve(place(2, 5))
    assert state.encode() == example("relieved-state")
    assert LedgerState.decode(9, example("relieved-state")).first_kept == place(3, 5)
    for known in (state, LedgerState.decode(9, example("relieved-state"))):
        assert known.relieved_below == relieved_below_in(known.encode()) == place(2, 5)
    assert relieved_below_in(example("trimmed-state")) == 0


async def test_the_example_of_an_index_part_is_what_is_written_and_read(tmp_path: Path) -> None:
    regular = make_run(range(0, 6, 2), (100, 100, 100), 2, 32)
    irregular = make_run(array("Q", [7, 8, 10]), (100, 101, 100), 2, 332)
    state = LedgerState(9)
    state.ledger_key, state.fenced, state.highest_plus_one, state.lac_plus_one = b"key", True, 11, 9
    filesystem = RealFileSystem()
    writer = await PartWriter.create(filesystem, tmp_path, 3)
    await writer.add_run(9, regular)
    await writer.add_run(9, irregular)
    await writer.add_state(9, state.encode())
    written = await writer.finish()
    await written.retire()
    assert written.path.name == "0000000000000003.runs"
    assert written.path.read_bytes() == example("index-part")

    read = await Part.open(filesystem, written.path, 3)
    assert [run async for run in read.runs()] == [(9, regular), (9, irregular)]
    assert [found async for found in read.states()] == [(9, state.encode())]
    await read.retire()
    await filesystem.close()


def test_sizes_in_the_text_are_those_of_the_code() -> None:
    text = " ".join(DOCUMENT.split())
    fields = BookieConfig.__dataclass_fields__
    assert fields["journal_segment_bytes"].default == 64 * 1024 * 1024
    assert "one fixed size (64 MiB unless set otherwise)" in text
    assert fields["entry_log_bytes"].default == 1024 * 1024 * 1024
    assert "(`entry_log_bytes`, default 1 GiB)" in text
    low, high = entry_log_format.FILLER_BYTES_MIN, entry_log_format.FILLER_BYTES_MAX
    assert f"size of the filler, {low} to {high}" in text
    assert f"A checkpoint thus takes up to {high} bytes" in text
    assert f"A run has at most {RUN_ENTRIES_MAX:,} entries" in text
    assert f"blocks of about {index_format.BLOCK_BODY_BYTES_TARGET // 1024} KiB" in text
