"""The history of keys finds answers that are wrong, and keys with two entries in one window."""

import pytest
from octavo.client.log.seam.entries import LogEntry
from octavo.protocol.ids import EntryId, LedgerId
from simulation.judges.history import Violation
from simulation.judges.key_history import KEYS, WINDOW_ENTRIES, KeyHistory

KEY, OTHER = KEYS[:2]


def log_with(keys: dict[int, str | None]) -> dict[int, LogEntry]:
    return {at: LogEntry(at, b"", 1, 0, LedgerId(1), EntryId(at), key) for at, key in keys.items()}


def test_an_answer_names_an_entry_with_the_key_unless_it_was_truncated() -> None:
    history = KeyHistory("orders")
    history.answered(KEY, 3)
    history.check(log_with({3: KEY}), 0)
    history.check(log_with({4: OTHER}), first=4)
    wrong: list[dict[int, str | None]] = [{3: OTHER}, {3: None}, {4: KEY}]
    for held in wrong:
        with pytest.raises(Violation, match="key-0 was said to be at 3"):
            history.check(log_with(held), 0)


def test_a_key_has_one_entry_within_the_window() -> None:
    history = KeyHistory("orders")
    history.check(log_with({1: KEY, 2: OTHER, 2 + WINDOW_ENTRIES: KEY}), 0)
    with pytest.raises(Violation, match="key-0 is at 1 and at 13, in one window"):
        history.check(log_with({1: KEY, 1 + WINDOW_ENTRIES: KEY}), 0)
    history.check(log_with({1: KEY, 1 + WINDOW_ENTRIES: KEY}), first=2)
