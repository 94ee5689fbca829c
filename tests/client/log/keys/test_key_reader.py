"""Where a handle finds a key, when the log is not what it was (rule P21)."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from octavo.client.log.key_reader import KeyReader
from octavo.client.log.seam.entries import LogEntry
from octavo.protocol.ids import EntryId, LedgerId

import octavo


class Log:
    """A log that can lose entries, as view and iteration of a handle."""

    name = "orders"
    keys = octavo.KeyWindow(entries=10)

    def __init__(self, *keys: str) -> None:
        self.entries_there = list(keys)
        self.first_position = 0
        self.reads = 0
        self.truncates_to = 0
        """Where the log begins once the next read has begun."""

    async def end_now(self, _enough: int) -> int:
        return len(self.entries_there)

    async def entries(self, first: int, last: int) -> AsyncGenerator[LogEntry]:
        self.first_position = max(self.first_position, self.truncates_to)
        for position in range(first, last + 1):
            if position < self.first_position:
                raise octavo.TruncatedError("gone", first_position=self.first_position)
            if position >= len(self.entries_there):
                raise octavo.NoSuchEntryError("lost")
            self.reads += 1
            key = self.entries_there[position]
            yield LogEntry(position, b"", 1, 0, LedgerId(1), EntryId(position), key)


def reader_of(log: Any) -> KeyReader:
    return KeyReader(log, log, lambda: 0)


async def test_later_questions_read_what_was_added_since() -> None:
    log = Log("a", "b")
    keys = reader_of(log)
    assert await keys.position_of("b", 2) == 1
    reads = log.reads
    log.entries_there += ["c"]
    assert await keys.position_of("c", 3) == 2
    assert log.reads == reads + 2, "the new entry, and the one that was found"


@pytest.mark.parametrize(("left", "wanted"), [(["a"], None), (["a", "x"], None), (["a", "x", "b"], 2)])
async def test_an_entry_whose_loss_was_accepted_has_no_position(left: list[str], wanted: int | None) -> None:
    log = Log("a", "b")
    keys = reader_of(log)
    assert await keys.position_of("b", 2) == 1
    log.entries_there = left
    assert await keys.position_of("b", 2) == wanted


async def test_a_truncation_while_the_window_is_read_is_passed() -> None:
    log = Log("a", "b", "c")
    log.truncates_to = 2
    keys = reader_of(log)
    assert await keys.position_of("c", 3) == 2
    assert await keys.position_of("a", 3) is None


async def test_a_leader_knows_the_log_up_to_its_end() -> None:
    known = await reader_of(Log("a", "b")).for_leader(2)
    assert known is not None
    assert (known.end, known.find("b", 0)) == (2, 1)
