"""`octavo console` on a real cluster, seen by a real browser: what pages show, that they follow the cluster, and that
nothing that is stored in it can do anything in them.

OCTAVO_SCREENSHOTS=DIRECTORY keeps a picture of every page.
"""

import asyncio
import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from octavo.metadata import Fragment, LedgerMetadata, open_metadata_store
from octavo.protocol.entries import Digest
from octavo.protocol.ids import EntryId
from support.browser import Browser
from support.clusters.secrets import write_secret
from support.commands.forked_processes import OctavoProcess
from support.commands.gateways import gateway
from support.commands.processes import Up, environment, free_neighbours
from support.waiting import WAIT_SECONDS, wait_until

import octavo

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>\u202egnp.exe'

LARGE = 12345678901234567890
"""No number of JavaScript: a page that parsed it would show another."""

ENTER = "\ue007"
"""The key, as the browser's driver knows it."""

EVENTS = (
    b"".join(b'{"order":%d,"total":%d,"note":"%s"}\n' % (at, LARGE, b"<b>x</b>") for at in range(120))
    + b"\xff\x00raw\n"
)

PAGES = ("cluster", "bookies", "ledgers", "logs", "topics", "groups", "repair", "jobs")


class Shown(NamedTuple):
    """A cluster with its console, open in a browser."""

    up: Up
    browser: Browser
    url: str
    token: str
    ledger: int
    """Has hostile custom metadata."""
    changed: int
    """A ledger whose bookies were replaced twice."""

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])

    def go(self, page: str) -> None:
        """Show a page, once its title tells that it is there."""
        self.browser.run("location.hash = arguments[0]", f"#/{page}")
        self.browser.wait_until(
            lambda: self.browser.run("return document.querySelector('main').dataset.page") == f"#/{page}", page
        )

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, Any]:
        """A request of any program on this host: status, headers, value."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            data = None if body is None else json.dumps(body)
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            text = answer.read()
            return answer.status, answer.headers, json.loads(text) if path.startswith("/api/") else text
        finally:
            connection.close()


@pytest.fixture(scope="module")
def shown(module_folder: Path) -> Iterator[Shown]:
    with Up(module_folder / "cluster") as up:
        up.wait_ready()
        added = up.run(
            "ledger",
            "append",
            "--quiet",
            "--custom",
            f"note={HOSTILE}",
            "--custom",
            "<b>key</b>=x",
            stdin=b"one\ntwo\n",
        )
        ledger = int(added.stdout)
        assert up.run("log", "create", "orders/eu").status == 0
        assert up.run("log", "create", "orders/us", "--layout", "stream").status == 0
        for lines in (b"a\nb\n", b"c\n"):
            assert up.run("log", "append", "orders/us", stdin=lines).status == 0
        assert up.run("log", "seal", "orders/us").status == 0
        assert up.run("log", "create", "events").status == 0
        assert up.run("log", "append", "events", stdin=EVENTS).status == 0
        settings = environment(OCTAVO_METADATA=up.uri)
        leader = OctavoProcess(
            ["log", "append", "orders/eu", "--leader", HOSTILE[:60]],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=settings,
        )  # fmt: skip
        console = OctavoProcess(
            ["console", "--listen", "127.0.0.1:0", "--json", "--entries"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=settings,
        )  # fmt: skip
        try:
            assert leader.stdin is not None
            assert console.stdout is not None
            leader.stdin.write(b"a\nb\nc\n")
            leader.stdin.flush()
            place = json.loads(console.stdout.readline())
            changed = asyncio.run(prepare(up.uri))
            with Browser(module_folder / "browser") as browser:
                browser.open(f"{place['url']}#token={place['token']}")
                browser.wait_for("The cluster is healthy", "#health")
                yield Shown(up, browser, place["url"], place["token"], ledger, changed)
        finally:
            assert leader.stdin is not None
            leader.stdin.close()
            console.terminate()
            for process in (leader, console):
                process.wait(WAIT_SECONDS)
            assert console.stdout is not None
            console.stdout.close()


async def prepare(uri: str) -> int:
    """A cursor of the log, and the metadata of a ledger with three fragments; its id."""
    async with octavo.connect(uri) as client, client.open_log("orders/eu") as log:
        async with aclosing(log.follow()) as entries:
            await anext(entries)
            await anext(entries)
        await (await log.cursor("billing")).advance(2)
    async with await open_metadata_store(uri) as store:
        a, b, c = sorted(await store.list_bookies())
        parts = [(0, (a, b)), (400, (a, c)), (500, (c, b))]
        ledger = LedgerMetadata(
            ledger_id=await store.allocate_ledger_id(),
            ensemble_size=2,
            write_quorum=2,
            ack_quorum=1,
            fragments=tuple(Fragment(EntryId(first), names, first) for first, names in parts),
            digest=Digest.CRC32C,
            custom_metadata={},
            created_at=datetime.now(UTC),
            verifier=b"v" * 32,
            salt=b"s" * 16,
            writer_token="writer",
        )
        await store.create_ledger(ledger)
    return ledger.ledger_id


def test_pages_show_the_cluster_and_every_part_has_a_name(shown: Shown) -> None:
    browser, pictures = shown.browser, os.environ.get("OCTAVO_SCREENSHOTS")
    expected = {
        "cluster": "writable of 3", "bookies": "127.0.0.1:", "ledgers": "closed", "logs": "orders/eu",
        "topics": "No topic", "groups": "no gateway runs", "repair": "Nothing is blocked", "jobs": "Drain",
    }  # fmt: skip
    for page in PAGES:
        shown.go(page)
        browser.wait_for(expected[page], "main")
        assert browser.unnamed_parts() == []
        assert browser.run("return document.querySelector('nav [aria-current]').textContent").lower() == page
        if pictures:
            browser.screenshot(Path(pictures) / f"{page}.png")
    assert browser.messages() == []


def test_what_is_stored_in_the_cluster_is_shown_and_does_nothing(shown: Shown) -> None:
    browser = shown.browser
    shown.go(f"ledgers/{shown.ledger}")
    browser.wait_for("<script>window.hacked=1</script>", "main")
    browser.wait_for("<b>key</b>", "main")
    assert "\u202e" not in browser.text()
    if pictures := os.environ.get("OCTAVO_SCREENSHOTS"):
        browser.screenshot(Path(pictures) / "ledger.png")
    shown.go("logs/orders%2Feu")
    browser.wait_for("<img src=x onerror=", "main")
    if pictures:
        browser.screenshot(Path(pictures) / "log.png")
    assert browser.run(
        "return window.hacked === undefined && document.querySelectorAll('main img, main script').length === 0"
    )
    assert browser.messages() == []
    # And if the page did make markup of a text, the browser would refuse it.
    refused = "try { document.body.innerHTML = arguments[0]; return 'taken' } catch (error) { return error.name }"
    assert browser.run(refused, HOSTILE) == "TypeError"
    browser.messages()


def test_a_ledger_shows_which_bookies_have_which_entries(shown: Shown) -> None:
    browser = shown.browser
    shown.go(f"ledgers/{shown.changed}")
    browser.wait_for("Fragments over bookies", "main")
    bars = browser.run("return [...document.querySelectorAll('main svg rect title')].map((one) => one.textContent)")
    names = sorted(shown.up.run("bookies", "--json").json, key=lambda one: str(one["bookie_id"]))
    a, b, c = (one["bookie_id"] for one in names)
    assert bars == [
        *(f"{name}: entries 0 to 399" for name in (a, b)),
        *(f"{name}: entries 400 to 499" for name in (a, c)),
        *(f"{name}: entries 500 and on, being written" for name in (c, b)),
    ]
    widths = browser.run(
        "return [...document.querySelectorAll('main svg rect title')].map((one) => one.parentNode.width.baseVal.value)"
    )
    assert widths[0] > widths[2] * 3 > 0
    assert browser.unnamed_parts() == []
    if pictures := os.environ.get("OCTAVO_SCREENSHOTS"):
        browser.screenshot(Path(pictures) / "fragments.png")


def test_a_stream_shows_the_positions_that_its_users_know(shown: Shown) -> None:
    """And never its places, which are beyond what people can read."""
    browser = shown.browser
    listed = map(json.loads, shown.up.run("ledger", "list", "--json").stdout.splitlines())
    (stream,) = (one["ledger_id"] for one in listed if one["kind"] == "stream" and one["log"] == "orders/us")
    shown.go("ledgers")
    row = f"return document.querySelector('a[href=\"#/ledgers/{stream}\"]')?.closest('tr').textContent ?? ''"
    browser.wait_until(
        lambda: all(part in str(browser.run(row)) for part in ("stream", "closed", "orders/us")), "the stream"
    )
    shown.go(f"ledgers/{stream}")
    browser.wait_for("0 to 2", "main")
    bars = browser.run("return [...document.querySelectorAll('main svg rect title')].map((one) => one.textContent)")
    # The last term is that in which the log was sealed.
    assert {bar.partition(": ")[2] for bar in bars} == {"entries 0 to 1", "entries 2 to 2", "no entries"}
    assert str(1 << 35)[:5] not in browser.text("main").replace(",", "").replace(" ", "")
    if pictures := os.environ.get("OCTAVO_SCREENSHOTS"):
        browser.screenshot(Path(pictures) / "stream.png")
    shown.go("logs/orders%2Fus")
    browser.wait_for("the log is sealed", "main")
    assert browser.messages() == []


def test_entries_are_found_by_position_time_and_text(shown: Shown) -> None:
    browser = shown.browser
    shown.go("entries/events")
    browser.wait_for("The newest entries", "main")
    rows = "return [...document.querySelectorAll('main tbody tr')].map((one) => one.cells[0].textContent)"
    assert browser.run(rows) == [str(position) for position in range(71, 121)]
    browser.wait_for("ff 00 72 61 77", "main")  # what is no text is shown by its bytes
    assert f'  "total": {LARGE},\n' in browser.run("return document.querySelector('main tbody .value').textContent")
    assert browser.unnamed_parts() == []
    if pictures := os.environ.get("OCTAVO_SCREENSHOTS"):
        browser.screenshot(Path(pictures) / "entries.png")
    browser.click_button("Older", "main")
    browser.wait_until(lambda: browser.run(rows) == [str(position) for position in range(21, 71)], "the entries before")
    browser.click_button("Oldest", "main")
    browser.wait_until(lambda: browser.run(rows)[0] == "0", "the first entries")
    browser.type("main input[name=contains]", '"order":11')
    browser.click_button("Show", "main")
    browser.wait_until(
        lambda: browser.run(rows) == ["11", *(str(position) for position in range(110, 120))],
        "those that hold the text",
    )
    browser.run("document.querySelector('main input[name=contains]').value = ''")
    browser.type("main input[name=field]", "order = 115")
    browser.click_button("Show", "main")
    browser.wait_until(lambda: browser.run(rows) == ["115"], "the one with this field")
    browser.wait_for("Searched 121 entries for order = 115", "main")
    assert browser.unnamed_parts() == []
    if pictures := os.environ.get("OCTAVO_SCREENSHOTS"):
        browser.screenshot(Path(pictures) / "entries-field.png")
    assert browser.run("return window.hacked === undefined && document.querySelectorAll('main b').length === 0")
    assert browser.messages() == []


def test_entries_follow_the_log_and_other_logs_are_listed_with_what_they_do(shown: Shown) -> None:
    browser = shown.browser
    shown.go("entries/orders%2Feu")
    browser.wait_for("The newest entries", "main")
    shown.go("logs")
    row = "return document.querySelector('a[href=\"#/logs/orders%2Feu\"]')?.closest('tr').textContent ?? ''"
    browser.wait_until(lambda: "billing" in str(browser.run(row)), "the slowest cursor of the log")
    cells = "[...document.querySelector('a[href=\"#/logs/events\"]').closest('tr').cells]"
    assert browser.run(f"return {cells}.map((one) => one.textContent)")[2:4] == ["0", "121"]
    assert browser.messages() == []


def test_a_console_shows_entries_only_if_it_was_asked_to(shown: Shown) -> None:
    settings = environment(OCTAVO_METADATA=shown.up.uri)
    plain = OctavoProcess(
        ["console", "--listen", "127.0.0.1:0", "--json"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=settings,
    )  # fmt: skip
    try:
        assert plain.stdout is not None
        with plain.stdout:
            place = json.loads(plain.stdout.readline())
        other = shown._replace(url=place["url"])
        good = {"Authorization": f"Bearer {place['token']}"}
        status, _, value = other.ask("GET", "/api/logs/events/entries", **good)
        assert (status, value["error"]) == (403, "Forbidden")
        assert "octavo console --entries" in value["message"]
        assert other.ask("GET", "/api/state", **good)[2]["entries"] is False
    finally:
        plain.terminate()
        plain.wait(WAIT_SECONDS)


def test_entries_of_a_private_log_are_never_shown(shown: Shown, tmp_path: Path) -> None:
    password = write_secret(tmp_path / "password", b"secret words")
    assert shown.up.run("log", "create", "private", "--password-file", password).status == 0
    assert shown.up.run("log", "append", "private", "--password-file", password, stdin=b"hush\n").status == 0
    good = {"Authorization": f"Bearer {shown.token}"}
    status, _, value = shown.ask("GET", "/api/logs/private/entries", **good)
    assert (status, value["error"]) == (403, "UnauthorizedError")
    assert "hush" not in json.dumps(value)
    shown.go("entries/private")
    shown.browser.wait_for(value["message"], "main")
    shown.browser.messages()


def test_what_was_asked_for_wrongly_can_be_asked_for_again(shown: Shown) -> None:
    browser = shown.browser
    shown.go("entries/events")
    browser.wait_for("The newest entries", "main")
    browser.type("main input[name=at]", "soon")
    browser.click_button("Show", "main")
    browser.wait_for("'soon' is no time", "main .bad")
    browser.click_button("Newest", "main")
    browser.wait_for("The newest entries", "main")
    browser.messages()


def test_pages_follow_the_cluster_without_being_loaded_again(shown: Shown) -> None:
    browser = shown.browser
    browser.run("window.loaded = 1")
    shown.go("ledgers")
    ledger = int(shown.up.run("ledger", "append", "--quiet", stdin=b"three\n").stdout)
    browser.wait_until(
        lambda: browser.run(f"return document.querySelector('a[href=\"#/ledgers/{ledger}\"]') !== null"), "the ledger"
    )
    shown.go("bookies")

    def shows_a_latency() -> bool:
        shown.up.run("ledger", "append", "--quiet", stdin=b"four\n")
        return " ms" in browser.text("main")

    browser.wait_until(shows_a_latency, "the latency of the adds that were just made")
    assert "no TLS" in browser.text("main")
    name, pid = next(iter(shown.up.pids.items()))
    with shown.up.hanging(pid):
        browser.wait_for("does not answer", "#health")
        assert browser.run("return document.querySelector('#health').className") == "health bad"
    browser.wait_for("The cluster is healthy", "#health")
    assert browser.run("return window.loaded") == 1, name


def test_a_drain_wants_the_name_typed_and_can_be_ended(shown: Shown) -> None:
    browser = shown.browser
    shown.go("jobs")
    browser.wait_for("Drain", "main")
    bookie = browser.text("main tbody th")
    browser.click_button("Drain", "main")
    assert browser.run("return document.querySelector('dialog .danger').disabled")
    browser.type("dialog input", bookie[:-1])
    assert browser.run("return document.querySelector('dialog .danger').disabled")
    browser.type("dialog input", bookie[-1])
    if pictures := os.environ.get("OCTAVO_SCREENSHOTS"):
        browser.screenshot(Path(pictures) / "drain.png")
    browser.click("dialog .danger")
    browser.wait_for("End drain", "main")
    conditions = {one["bookie_id"]: one["state"] for one in shown.up.run("repair", "status", "--json").json["bookies"]}
    assert conditions[bookie] == "draining"
    browser.click_button("End drain", "main")
    browser.click("dialog .danger")
    browser.wait_until(lambda: "End drain" not in browser.text("main"), "the end of the drain")


def test_a_bookie_on_this_host_is_made_read_only_for_a_reason_and_writable_again(shown: Shown) -> None:
    browser = shown.browser
    shown.go("jobs")
    browser.wait_for("Make read-only", "main")
    bookie = browser.text("main tbody th")

    def operator() -> str | None:
        reason: str | None = shown.up.run("bookie", "show", bookie, "--json").json["read_only"]["operator"]
        return reason

    browser.click_button("Make read-only", "main")
    browser.type("dialog input[name=reason]", "<b>disk</b> swap")
    assert browser.run("return document.querySelector('dialog .danger').disabled")
    browser.type("dialog input[name=typed]", bookie)
    browser.click("dialog .danger")
    browser.wait_for("<b>disk</b> swap", "main")
    assert operator() == "<b>disk</b> swap"
    browser.wait_for("read-only", "main tbody .state")  # the bookie tells the metadata once it is
    browser.click_button("Make writable", "main")
    browser.click("dialog .danger")
    browser.wait_until(lambda: "Make writable" not in browser.text("main"), "the bookie to be writable")
    assert operator() is None
    assert browser.messages() == []


def test_a_page_that_waits_is_answered_after_the_next_look(shown: Shown) -> None:
    good = {"Authorization": f"Bearer {shown.token}"}
    _, _, first = shown.ask("GET", "/api/state", **good)
    _, _, second = shown.ask("GET", f"/api/state?after={first['look']}", **good)
    assert second["look"] > first["look"]
    assert second["looked_at"] > first["looked_at"]
    _, _, same = shown.ask("GET", f"/api/state?after={second['look'] + 1000}", **good)
    assert same["look"] >= second["look"]


def test_dark_colours_are_taken_from_the_user(shown: Shown) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    shown.go("cluster")
    light = shown.browser.run(colour)
    shown.browser.dark(True)
    assert shown.browser.run(colour) != light
    if pictures := os.environ.get("OCTAVO_SCREENSHOTS"):
        shown.browser.screenshot(Path(pictures) / "dark.png")
    shown.browser.dark(False)


@pytest.fixture(scope="module")
def orders(shown: Shown) -> Iterator[Any]:
    """The topic `orders` of two partitions, and a member of the group `billing`, which has handled 20 records of it."""
    port = free_neighbours(1)
    with gateway(shown.up.uri, port):
        address = f"127.0.0.1:{port}"
        assert shown.up.run("topic", "create", "orders", "--partitions", 2).status == 0
        producer = confluent_kafka.Producer({"bootstrap.servers": address})
        for at in range(120):
            value = b'{"order":%d,"total":%d,"note":%s}' % (at, LARGE, json.dumps(HOSTILE).encode())
            producer.produce(
                "orders", value, key=b"<b>%d</b>" % at, partition=0, headers=[("trace", HOSTILE), ("raw", b"\xff\x00")]
            )
        producer.produce("orders", None, key=b"gone", partition=1)
        assert producer.flush(WAIT_SECONDS) == 0
        member = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "billing",
                "client.id": HOSTILE[:40],
                "enable.auto.commit": False,
            }
        )
        member.subscribe(["orders"])
        wait_until(lambda: member.poll(0.1) is None and len(member.assignment()) == 2, "the partitions of the member")
        member.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 20)], asynchronous=False)
        try:
            yield member
        finally:
            member.close()


def test_topics_and_groups_are_shown_with_leaders_ends_members_and_lag(shown: Shown, orders: Any) -> None:
    browser, pictures = shown.browser, os.environ.get("OCTAVO_SCREENSHOTS")
    texts = "(row) => [...row.cells].map((one) => one.textContent)"
    rows = f"return [...document.querySelectorAll('main tbody tr')].map({texts})"
    for page, expected in {"topics": "orders", "groups": "billing"}.items():
        shown.go(page)
        browser.wait_for(expected, "main tbody")
        assert browser.unnamed_parts() == []
        if pictures:
            browser.screenshot(Path(pictures) / f"{page}.png")
    assert browser.run(rows) == [["billing", "classic", "Stable", "1", "100"]]
    shown.go("groups/billing")
    browser.wait_for("Committed", "main")
    (member, offset) = browser.run(rows)
    assert (member[1][:20], member[3].split()) == (HOSTILE[:20], ["orders/0", "orders/1"])
    assert offset[:5] == ["orders", "0", "20", "120", "100"]
    if pictures:
        browser.screenshot(Path(pictures) / "group.png")
    orders.commit(offsets=[confluent_kafka.TopicPartition("orders", 0, 119)], asynchronous=False)
    browser.wait_until(lambda: browser.run(rows)[1][4] == "1", "the lag to follow the group")
    shown.go("topics/orders")
    browser.wait_for("Begins at", "main")
    assert [(row[0], row[3], row[4]) for row in browser.run(rows)] == [("0", "0", "120"), ("1", "0", "1")]
    assert all(row[1].isdecimal() for row in browser.run(rows))
    if pictures:
        browser.screenshot(Path(pictures) / "topic.png")
        browser.dark(True)
        browser.screenshot(Path(pictures) / "topic-dark.png")
        browser.dark(False)
    assert browser.unnamed_parts() == []
    assert browser.messages() == []


def test_records_are_found_by_offset_and_time_with_the_keyboard_alone(shown: Shown, orders: Any) -> None:
    browser, pictures = shown.browser, os.environ.get("OCTAVO_SCREENSHOTS")
    shown.go("topics/orders")
    browser.wait_for("Begins at", "main")
    browser.type("main tbody tr:first-child td:last-child a", ENTER)
    browser.wait_for("The newest records", "main")
    offsets = "return [...document.querySelectorAll('main tbody tr')].map((one) => one.cells[0].textContent)"
    assert browser.run(offsets) == [str(at) for at in range(70, 120)]
    value = "return document.querySelector('main tbody tr').cells[3].textContent"
    assert f'  "total": {LARGE},\n' in browser.run(value)
    browser.wait_for("ff 00", "main tbody")
    assert browser.unnamed_parts() == []
    for dark in (False, True):
        browser.dark(dark)
        assert browser.low_contrasts("main") == []
        if pictures:
            browser.screenshot(Path(pictures) / f"records{'-dark' if dark else ''}.png")
    browser.dark(False)
    browser.type("main input[name=offset]", f"17{ENTER}")
    browser.wait_until(lambda: browser.run(offsets)[0] == "17", "the records from offset 17 on")
    browser.click_button("Newer", "main")
    browser.wait_until(lambda: browser.run(offsets)[0] == "67", "the records behind them")
    browser.click_button("Oldest", "main")
    browser.wait_until(lambda: browser.run(offsets)[0] == "0", "the first records")
    browser.type("main input[name=at]", f"soon{ENTER}")
    browser.wait_for("'soon' is no time", "main .bad")
    browser.click_button("Newest", "main")
    browser.wait_for("The newest records", "main")
    browser.messages()
    browser.type("main select[name=partition]", "1")
    browser.wait_for("partition 1", "main h1")
    browser.wait_for("none", "main tbody")
    assert browser.run(
        "return window.hacked === undefined && document.querySelectorAll('main b, main img').length === 0"
    )
    assert browser.messages() == []


def test_data_need_the_token_and_no_other_page_can_have_them(shown: Shown) -> None:
    good = {"Authorization": f"Bearer {shown.token}"}
    assert shown.ask("GET", "/api/state", **good)[0] == 200
    for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {shown.token}x"}):
        status, _, value = shown.ask("GET", "/api/state", **wrong)
        assert (status, value["error"]) == (401, "Unauthorized")
    assert shown.ask("GET", "/api/state", Host="attacker.example", **good)[0] == 403
    assert shown.ask("GET", "/", Host=f"attacker.example:{shown.port}")[0] == 403
    # A form of another page can post texts, but no JSON and no token.
    assert shown.ask("POST", "/api/jobs/pause", {}, Content_Type="text/plain", **good)[0] == 415
    assert shown.ask("POST", "/api/jobs/pause", {}, Content_Type="application/json")[0] == 401


def test_every_answer_forbids_what_the_page_does_not_need(shown: Shown) -> None:
    for path in ("/", "/main.js", "/missing", "/api/state"):
        _, headers, _ = shown.ask("GET", path)
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/ledgers/999999999", None, 404),
        ("GET", "/api/ledgers/-1", None, 404),
        ("GET", f"/api/ledgers/{2**64}", None, 404),
        ("GET", "/api/ledgers?state=lost", None, 400),
        ("GET", "/api/ledgers?after=x", None, 400),
        ("GET", "/api/logs/none", None, 404),
        ("GET", "/api/logs/%ff", None, 404),
        ("GET", "/api/logs/..%2F..%2Fsecret", None, 400),
        ("GET", "/../answers.py", None, 404),
        ("DELETE", "/api/state", None, 405),
        ("POST", "/index.html", {}, 405),
        ("POST", "/api/jobs/drain", {"bookie": "unknown"}, 409),
        ("POST", "/api/jobs/drain", {}, 400),
        ("POST", "/api/jobs/hold", {"bookie": "b", "seconds": -1}, 400),
        ("POST", "/api/jobs/read-only", {"bookie": "b", "reason": ""}, 400),
        ("POST", "/api/jobs/read-only", {"bookie": "on-another-host"}, 409),
        ("POST", "/api/jobs/writable", {"bookie": 1}, 400),
        ("GET", "/api/state?after=-1", None, 400),
        ("GET", "/api/logs/none/entries", None, 404),
        ("GET", "/api/logs/events/entries?first=-1", None, 400),
        ("GET", "/api/logs/events/entries?count=101", None, 400),
        ("GET", "/api/logs/events/entries?at=soon", None, 400),
        ("GET", "/api/logs/events/entries?offset=1", None, 400),
        ("GET", "/api/logs/entries/entries/entries", None, 404),
        ("GET", "/api/topics/none", None, 404),
        ("GET", "/api/topics/none?first=-1", None, 400),
        ("GET", "/api/topics/none/records", None, 404),
        ("GET", "/api/topics/none/records?offset=-1", None, 400),
        ("GET", "/api/topics/none/records?at=soon", None, 400),
        ("POST", "/api/topics", {}, 405),
        ("POST", "/api/logs/events/entries", {}, 405),
        ("POST", "/api/jobs/retire", {"bookie": "b"}, 404),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason(shown: Shown, method: str, path: str, body: Any, status: int) -> None:
    headers = {"Authorization": f"Bearer {shown.token}", "Content_Type": "application/json"}
    got, _, value = shown.ask(method, path, body, **headers)
    assert got == status, value
    if path.startswith("/api/"):
        assert value["message"]


def test_a_console_whose_port_is_taken_says_so(shown: Shown) -> None:
    taken = shown.up.run("console", "--listen", f"127.0.0.1:{shown.port}")
    taken.failed_with_one_line(1, "cannot listen on", "in use")
