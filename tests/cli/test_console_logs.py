"""What the console knows of logs and of the last hour: the list with rates, entries, the history of plots."""

import json
from typing import Any

import octavo.testing
import pytest
from octavo.cli.console.entries import SHOWN_BYTES_MAX, entries_as_json
from octavo.cli.console.history import COARSE_SECONDS, FINE_SECONDS, HISTORY_SECONDS, History, Point
from octavo.cli.console.json_fields import parse_field
from octavo.cli.console.logs_watch import FRESH_SECONDS, LISTS_MAX, STALE_SECONDS, LogsWatch
from octavo.client.client import Client
from octavo.metadata import open_metadata_store
from octavo.protocol.errors import InvalidArgumentError, UnauthorizedError
from octavo.testing import Cluster
from support.waiting import eventually

import octavo

# --- the last hour -------------------------------------------------------------------------------------------------


def point(at: float, rate: float | None = 1.0, slowest: float | None = 0.001) -> Point:
    return Point(at, (rate,), (slowest,))


def test_recent_points_are_kept_as_they_are() -> None:
    history = History()
    looks = [point(1000 + 2 * at, at) for at in range(100)]
    for one in looks:
        history.add(one)
    assert history.points() == looks


def test_older_points_are_joined_and_the_slowest_moment_stays() -> None:
    history = History()
    for at in range(0, 900, 2):
        history.add(point(at, 10.0 if at % 4 else 20.0, 5.0 if at == 102 else 0.001))
    points = history.points()
    assert [one.at for one in points] == sorted(one.at for one in points)
    coarse = [one for one in points if one.at < 898 - FINE_SECONDS]
    assert len(coarse) == pytest.approx((898 - FINE_SECONDS) / COARSE_SECONDS, abs=1)
    assert {one.rates for one in coarse[:-1]} == {(15.0,)}
    assert [one.times for one in coarse].count((5.0,)) == 1


def test_an_hour_is_kept_in_few_points_and_no_more() -> None:
    history = History()
    for at in range(0, 3 * int(HISTORY_SECONDS), 2):
        history.add(point(at))
    points = history.points()
    assert HISTORY_SECONDS - COARSE_SECONDS <= points[-1].at - points[0].at <= HISTORY_SECONDS
    assert len(points) < 340


def test_what_is_not_known_is_not_counted() -> None:
    history = History()
    history.add(point(0, None, None))
    history.add(point(2, 4.0, None))
    history.add(point(3000, None))
    assert history.points()[0] == Point(2, (4.0,), (None,))


def test_a_clock_that_is_set_back_begins_the_history_anew() -> None:
    history = History()
    for at in (1000.0, 1002.0, 500.0):
        history.add(point(at))
    assert [one.at for one in history.points()] == [500.0]


# --- entries -------------------------------------------------------------------------------------------------------


async def added(client: Client, name: str, payloads: list[bytes], password: bytes = b"") -> None:
    async with client.create_log(name, password=password) as log, log.lead() as writer:
        for payload in payloads:
            await writer.add(payload)


async def test_the_newest_entries_are_shown_and_those_before(octavo_client: Client) -> None:
    await added(octavo_client, "newest", [b"%d" % at for at in range(10)])
    page = await entries_as_json(octavo_client, "newest", count=3)
    assert ([one["payload"] for one in page["items"]], page["next"], page["end"]) == (["7", "8", "9"], None, 10)
    page = await entries_as_json(octavo_client, "newest", first=4, count=3)
    assert ([one["position"] for one in page["items"]], page["next"]) == ([4, 5, 6], 7)
    page = await entries_as_json(octavo_client, "newest", first=8, last=8)
    assert ([one["position"] for one in page["items"]], page["next"]) == ([8], None)


async def test_a_search_ends_after_so_many_entries_and_says_where_to_go_on(octavo_client: Client) -> None:
    await added(octavo_client, "searched", [b"needle" if at in {3, 8} else b"hay" for at in range(10)])
    page = await entries_as_json(octavo_client, "searched", first=0, contains="needle", searched_max=5)
    assert ([one["position"] for one in page["items"]], page["next"], page["searched"]) == ([3], 5, 5)
    page = await entries_as_json(octavo_client, "searched", first=page["next"], contains="needle", searched_max=5)
    assert ([one["position"] for one in page["items"]], page["next"]) == ([8], None)


async def test_what_was_truncated_is_left_out_and_what_lies_beyond_the_end_is_nothing(octavo_client: Client) -> None:
    await added(octavo_client, "truncated", [b"x"] * 5)
    async with octavo_client.open_log("truncated") as log:
        await log.truncate(3)
    assert [one["position"] for one in (await entries_as_json(octavo_client, "truncated", first=0))["items"]] == [3, 4]
    page = await entries_as_json(octavo_client, "truncated", first=99)
    assert (page["items"], page["next"], page["searched"], page["error"]) == ([], None, 0, None)


async def test_an_entry_that_cannot_be_had_ends_the_page_with_the_reason() -> None:
    async with (
        octavo.testing.cluster() as cluster,
        octavo.connect(cluster.uri, read_quorum_timeout_seconds=0.2) as client,
    ):
        await added(client, "lost", [b"x"] * 3)
        for bookie in cluster.bookies:
            cluster.kill(bookie)
        page = await entries_as_json(client, "lost")
    assert (page["items"], page["next"]) == ([], None)
    assert page["error"]


async def test_a_long_text_is_cut_between_characters(octavo_client: Client) -> None:
    text = "x" + "é" * SHOWN_BYTES_MAX
    await added(octavo_client, "long", [text.encode(), b"\xff" * (SHOWN_BYTES_MAX + 1)])
    whole, raw = (await entries_as_json(octavo_client, "long"))["items"]
    assert whole["payload"] == text[: SHOWN_BYTES_MAX // 2]
    assert whole["bytes"] == len(text.encode())
    assert len(raw["payload"]["base64"]) == pytest.approx(SHOWN_BYTES_MAX * 4 / 3, abs=4)


async def test_a_log_with_a_password_is_not_shown(octavo_client: Client) -> None:
    await added(octavo_client, "hidden", [b"hush"], b"password")
    with pytest.raises(UnauthorizedError):
        await entries_as_json(octavo_client, "hidden")


# --- the list ------------------------------------------------------------------------------------------------------


async def test_rates_are_those_between_two_looks_and_a_look_serves_all_pages(
    octavo_cluster: Cluster, octavo_client: Client
) -> None:
    now = 100.0
    async with await open_metadata_store(octavo_cluster.uri) as store:
        watch = LogsWatch(octavo_client, store, lambda: now)
        async with octavo_client.create_log("rates/a") as log, log.lead() as writer:

            async def row() -> tuple[int, float | None]:
                (found,) = (await watch.logs("rates/"))["items"]
                return found["end"], found["adds_per_second"]

            async def add(count: int, end: int) -> None:
                """Add, and wait until others can see it."""
                for _ in range(count):
                    await writer.add(b"x")
                async with octavo_client.open_log("rates/a") as seen:

                    async def is_seen() -> bool:
                        return await seen.refresh() == end

                    await eventually(is_seen)

            await add(1, 1)
            assert await row() == (1, None), "nothing is known of the time before the first look"
            await add(10, 11)
            now += FRESH_SECONDS / 2
            assert await row() == (1, None), "a look that is fresh answers again"
            now += 2.0
            assert await row() == (11, round(10 / (2.0 + FRESH_SECONDS / 2), 1))
            now += STALE_SECONDS + 1
            assert await row() == (11, None), "the last look is too old"
        for number in range(LISTS_MAX + 2):
            await watch.logs(f"others/{number}")
        now += 2.0
        assert (await watch.logs("rates/"))["items"][0]["adds_per_second"] is None, "it was forgotten"
        await watch.close()


# --- fields of JSON -------------------------------------------------------------------------------------------------

ORDER = {
    "customer": {"id": 17, "name": "Anna", "tags": ["new", "eu"]},
    "items": [{"sku": "A1", "count": 2}, {"sku": "B=2", "count": 1}],
    "paid": True,
    "note": None,
    "number": "0042",
}


@pytest.mark.parametrize(
    "text",
    [
        "customer.id = 17",
        "customer.id=17",
        " customer . id  =  17 ",
        "customer.name = Anna",
        'customer.name = "Anna"',
        "customer.tags.0 = new",
        "customer.tags = [\"new\", \"eu\"]",
        "items.1.count = 1",
        "items.sku = A1",
        "items.sku = B=2",
        "paid = true",
        "note = null",
        "note",
        "customer.id",
        "number = 0042",
        'number = "0042"',
    ],
)  # fmt: skip
def test_field_is_found(text: str) -> None:
    assert parse_field(text).fits(json.dumps(ORDER).encode())


@pytest.mark.parametrize(
    "text",
    [
        "customer.id = 18",
        'customer.id = "17"',
        "customer.id = true",
        "paid = 1",
        "customer.name = anna",
        "customer.tags.2 = eu",
        "customer.tags.0.x",
        "items.sku = C3",
        "items.2",
        "paid.x",
        "id = 17",
        "note = 0",
        "customer.name =",
    ],
)
def test_field_of_another_value_or_place_is_not_found(text: str) -> None:
    assert not parse_field(text).fits(json.dumps(ORDER).encode())


@pytest.mark.parametrize("payload", [b"", b"text", b"\xff", b"17", b'{"customer":', b"[" * 100_000])
def test_payload_that_is_no_such_json_fits_nothing(payload: bytes) -> None:
    assert not parse_field("customer").fits(payload)


@pytest.mark.parametrize("text", ["", "=", "= 17", "customer. = 17", ".id", "a..b"])
def test_text_that_names_no_field_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a field"):
        parse_field(text)


async def test_entries_with_a_field_are_found_and_the_others_left_out() -> None:
    orders: list[dict[str, Any]] = [{"customer": number % 3, "note": "book"} for number in range(9)]
    with octavo.testing.cluster() as cluster:
        async with octavo.connect(cluster.uri) as client, client.create_log("orders") as log:
            async with log.lead() as writer:
                await writer.add_many([json.dumps(order).encode() for order in orders])
                await writer.add(b"no JSON")
            page = await entries_as_json(client, "orders", first=0, field="customer = 2")
            assert [one["position"] for one in page["items"]] == [2, 5, 8]
            assert (page["searched"], page["next"]) == (10, None)
            page = await entries_as_json(client, "orders", first=0, field="customer = 2", contains="bike")
            assert page["items"] == []
            with pytest.raises(InvalidArgumentError, match="is not a field"):
                await entries_as_json(client, "orders", field="=")
