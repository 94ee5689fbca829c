"""Whatever bytes a file holds and however they are cut into chunks, its lines give the same bytes back."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from octavo.cli.ledger.lines import LINES, LINES_WITHOUT_FINAL_NEWLINE, NOTHING_BETWEEN, ChunkSplitter, LineSplitter
from octavo.protocol.errors import EntryTooLargeError

NASTY = st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"\0", b"a", b"\xff\xfe", b"long " * 5]), max_size=30).map(
    b"".join
)


def split(data: bytes, cuts: list[int], splitter: LineSplitter | ChunkSplitter) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    entries = []
    for start, stop in itertools.pairwise(edges):
        entries += splitter.feed(data[start:stop])
    return entries + splitter.finish()


@settings(max_examples=200, deadline=None)
@given(NASTY, st.lists(st.integers(0, 10_000), max_size=6))
@example(b"", [])
@example(b"\n", [])
@example(b"\n\n\n", [1, 2])
@example(b"no newline", [3])
@example(b"a\r\nb", [2])
def test_lines_joined_again_are_the_file(data: bytes, cuts: list[int]) -> None:
    splitter = LineSplitter(1000)
    lines = split(data, cuts, splitter)
    output = LINES if splitter.final_newline else LINES_WITHOUT_FINAL_NEWLINE
    half = len(lines) // 2
    assert output.join(lines, ends=True) == data
    assert output.join(lines[:half], ends=False) + output.join(lines[half:], ends=True) == data
    assert len(lines) == data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
    assert not any(b"\n" in line for line in lines)


@settings(max_examples=100, deadline=None)
@given(NASTY, st.lists(st.integers(0, 10_000), max_size=6), st.integers(1, 20))
def test_chunks_joined_again_are_the_file(data: bytes, cuts: list[int], entry_bytes: int) -> None:
    entries = split(data, cuts, ChunkSplitter(entry_bytes))
    assert NOTHING_BETWEEN.join(entries, ends=True) == data
    assert all(len(entry) == entry_bytes for entry in entries[:-1])
    assert all(entries)


@pytest.mark.parametrize("chunks", [[b"ok\n12345\n"], [b"ok\n", b"123", b"45\n"], [b"ok\n12345"]])
def test_a_line_over_the_limit_is_named(chunks: list[bytes]) -> None:
    splitter = LineSplitter(4)
    for chunk in chunks[:-1]:
        splitter.feed(chunk)
    with pytest.raises(EntryTooLargeError, match="line 2 is longer than the 4 bytes"):
        splitter.feed(chunks[-1])


def test_a_line_at_the_limit_is_taken() -> None:
    assert LineSplitter(4).feed(b"12") == []
    assert LineSplitter(4).feed(b"1234\n4321\n") == [b"1234", b"4321"]
