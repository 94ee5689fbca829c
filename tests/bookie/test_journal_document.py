"""What docs/disk-format-journal.md says is what the code does."""

import re
from pathlib import Path

from octavo.bookie.journal_format import (
    HEADER_BYTES,
    JournalPosition,
    Record,
    RecordKind,
    SegmentHeader,
    encode_header,
    encode_record,
    examine,
)
from octavo.bookie.journal_replay import DECISIONS, Decision, Follower, Sight

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "disk-format-journal.md").read_text(encoding="utf-8")
HEADER = SegmentHeader(7, 0x5EED5EED, 64 * 1024 * 1024, 6, JournalPosition(5, 12288))


def example(name: str) -> bytes:
    """The bytes of one example block."""
    found = re.search(rf"```{name}\n(.*?)```", DOCUMENT, re.DOTALL)
    assert found is not None
    return bytes.fromhex(found[1])


def test_the_example_of_a_header_is_what_is_written() -> None:
    assert encode_header(HEADER)[:HEADER_BYTES] == example("journal-header")


def test_the_example_of_a_record_is_what_is_written_and_read() -> None:
    head, padding = encode_record(
        HEADER, 8192, RecordKind.FENCE, [b"hello"], body_bytes=5, synced=JournalPosition(7, 8192)
    )
    record = example("journal-record")
    assert head + b"hello" + padding == record
    assert examine(record, 8192, 8192, HEADER, HEADER.segment_bytes) == Record(
        7, 8192, RecordKind.FENCE, b"hello", JournalPosition(7, 8192)
    )


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
    section = DOCUMENT.split("### Reading back")[1].split("### Example")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    told = [row[1:] for row in rows[2:]]
    assert told == [[words[DECISIONS[sight, follower]] for follower in Follower] for sight in Sight]
