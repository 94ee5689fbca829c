"""The pages of `octavo top`, how keys change them, and what is told of logs between two looks."""

from typing import Any

import pytest
from octavo.cli.rates import compare
from octavo.cli.top.looks import LOGS_MAX, LogLooks, intervals, lag_of
from octavo.cli.top.pages import BOOKIES, LOGS, PAGES, PageName
from octavo.cli.top.screen import Order, Screen, keys_of
from octavo.client.bookie_status import BookieStatus
from octavo.client.log.documents.cursors import CursorState
from octavo.metadata import BookieState
from octavo.protocol.ids import BookieId
from support.clusters.reading import cluster_of
from support.waiting import eventually

import octavo


def log_row(name: str, **facts: Any) -> dict[str, Any]:
    return {
        "name": name, "log_id": name, "leader": None, "sealed": False, "first_position": 0, "end": 0,
        "end_is_known": True, "bytes": 0, "age_seconds": 60.0, "lag": None, "slowest_cursor": None,
        "adds_per_second": None,
    } | facts  # fmt: skip


ROWS = [log_row("b", end=5, adds_per_second=3.0), log_row("a", end=9), log_row("c", end=1, adds_per_second=7.0)]


@pytest.mark.parametrize(
    ("word", "reverse", "names"),
    [
        ("log", False, "abc"), ("log", True, "cba"), ("end", False, "abc"), ("end", True, "cba"),
        ("adds", False, "cba"), ("adds", True, "bca"),
    ],
)  # fmt: skip
def test_numbers_begin_with_the_largest_words_with_the_first_and_what_is_not_known_is_last(
    word: str, *, reverse: bool, names: str
) -> None:
    ordered = LOGS.in_order(ROWS, LOGS.column_of(word), reverse=reverse)
    assert "".join(row["name"] for row in ordered) == names


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_every_page_can_be_sorted_by_each_of_its_columns(page: Any) -> None:
    seen = [BookieStatus(BookieId(name), f"{name}:1", BookieState.WRITABLE, "", "/r", None) for name in "ab"]
    rows = ROWS if page is LOGS else compare([], seen, 1.0)
    for at, column in enumerate(page.columns):
        assert page.column_of(column.word) == at
        assert len(page.in_order(rows, at, reverse=False)) == len(rows)
    assert {len(page.cells(row)) for row in rows} == {len(page.headers())}


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(octavo.InvalidArgumentError, match="only by bookie, state, adds"):
        BOOKIES.column_of("lag")


def test_a_log_is_shown_with_its_leader_an_open_end_and_its_lag() -> None:
    row = log_row("a", leader="n1", end=12345, end_is_known=False, lag=7, slowest_cursor="mail", bytes=2_500_000)
    assert LOGS.cells(row) == ["a", "n1", "-", "12,345+", "2.5", "7", "mail", "1m"]
    assert LOGS.cells(log_row("a", sealed=True))[1] == "sealed"


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"lq", ["l", "q"]),
        (b"\x1b[A\x1b[B\x1bOC\x1b[D", ["up", "down", ">", "<"]),
        (b"\x1b[5~\x1b[6~\x1b[H", ["page-up", "page-down", "home"]),
        (b"\x1b[15~r", ["\x1b[15~", "r"]),
        (b"\x1b", ["\x1b"]),
        (b"\xff \t", ["\ufffd", " ", "\t"]),
    ],
)
def test_keys_are_told_apart(typed: bytes, keys: list[str]) -> None:
    assert keys_of(typed) == keys


def pressed(screen: Screen, *keys: str, rows: int = 100, height: int = 10) -> Screen:
    for key in keys:
        screen = screen.press(key, rows=rows, height=height)
    return screen


@pytest.mark.parametrize(
    ("keys", "top"),
    [
        (["down", "down", "up"], 1), (["up"], 0), (["page-down"], 10), (["page-down"] * 20, 90),
        (["page-down", "page-down", "page-up"], 10), (["page-down", "home"], 0), (["page-down", "l"], 0),
        (["page-down", ">"], 0), (["page-down", "x"], 10),
    ],
)  # fmt: skip
def test_scrolling_stays_within_the_rows(keys: list[str], top: int) -> None:
    assert pressed(Screen(), *keys).top == top


def test_a_screen_that_is_larger_than_its_rows_does_not_scroll() -> None:
    assert pressed(Screen(), "down", "page-down", rows=3).top == 0


def test_each_page_keeps_its_order() -> None:
    screen = pressed(Screen(), ">", "r", "l", "<")
    assert (screen.page, screen.order) == (PageName.LOGS, Order(len(LOGS.columns) - 1))
    assert pressed(screen, "\t").order == Order(1, reverse=True)
    assert pressed(screen, "b").page is PageName.BOOKIES


def test_space_pauses_and_q_ends() -> None:
    assert pressed(Screen(), " ").paused
    assert not pressed(Screen(), " ", " ").paused
    assert pressed(Screen(), "q").ended
    assert not pressed(Screen(), "x").ended


def test_the_slowest_cursor_tells_the_lag() -> None:
    assert lag_of({}, 10) == {"lag": None, "slowest_cursor": None}
    cursors = {"mail": CursorState(4, 0), "billing": CursorState(9, 0)}
    assert lag_of(cursors, 10) == {"lag": 6, "slowest_cursor": "mail"}
    assert lag_of(cursors, 2)["lag"] == 0, "the cursor was stored after the end was read"


async def look_at_end(looks: LogLooks, name: str, end: int) -> list[dict[str, Any]]:
    """The first look that finds the log at this end: bookies learn it a moment after the leader."""
    found: list[dict[str, Any]] = []

    async def is_there() -> bool:
        found[:] = await looks.look()
        return any(row["name"] == name and row["end"] == end for row in found)

    await eventually(is_there, f"{name} ends at {end}")
    return found


async def test_two_looks_tell_what_leaders_have_added_between_them() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        store = cluster.store
        async with client.create_log("shop/open") as log, log.lead("node-1") as writer:
            async with client.create_log("shop/still") as still, still.lead() as ended:
                await ended.add(b"x")
            async with client.create_log("other"), client.create_log("shop/secret", password=b"p") as secret:
                await log.cursor("mail")
                await writer.add(b"0")
                looks = LogLooks(client, store, "shop/")
                try:
                    async with secret.lead():
                        before = await look_at_end(looks, "shop/open", 1)
                        await writer.add_many([b"1", b"2", b"3", b"4"])
                        after = await look_at_end(looks, "shop/open", 5)
                        rows = {row["name"]: row for row in looks.compare(before, after, 2.0)}
                finally:
                    await looks.close()
    assert list(rows) == ["shop/open", "shop/secret", "shop/still"]
    shown = rows["shop/open"]
    assert (shown["leader"], shown["end"], shown["end_is_known"], shown["adds_per_second"]) == ("node-1", 5, True, 2.0)
    assert (rows["shop/still"]["leader"], rows["shop/still"]["end"]) == (None, 1)
    assert rows["shop/still"]["adds_per_second"] == 0.0
    hidden = rows["shop/secret"]
    assert (hidden["end"], hidden["end_is_known"], hidden["adds_per_second"]) == (0, False, None)
    assert looks.note == ""


async def test_logs_that_come_and_go_between_looks_have_no_rate_and_many_are_cut() -> None:
    async with cluster_of() as cluster, octavo.connect(cluster.uri) as client:
        store = cluster.store
        async with client.create_log("a") as log, log.lead():
            looks = LogLooks(client, store, "")
            assert [row["name"] for row in await looks.look()] == ["a"]
        await client.delete_log("a")
        for number in range(LOGS_MAX + 1):
            await client.create_log(f"b{number:03}")
        after = await looks.look()
        assert (len(after), looks.note) == (LOGS_MAX, f"the first {LOGS_MAX} logs")
        assert {row["adds_per_second"] for row in looks.compare(None, after, 1.0)} == {None}
        await looks.close()


class Counter:
    """Looks at a number that grows."""

    note = ""

    def __init__(self) -> None:
        self.looks = 0

    async def look(self) -> int:
        self.looks += 1
        return self.looks

    def compare(self, before: int | None, after: int, seconds: float) -> list[dict[str, Any]]:
        assert seconds > 0
        return [{"before": before, "after": after}]


async def test_intervals_are_measured_between_neighbouring_looks() -> None:
    assert [rows async for rows in intervals(Counter(), 0.001, count=2)] == [
        [{"before": 1, "after": 2}],
        [{"before": 2, "after": 3}],
    ]
