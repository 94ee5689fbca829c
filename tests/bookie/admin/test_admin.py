"""The administration interface of a bookie: what each endpoint answers and does."""

import asyncio
import json
import os
import socket as socket_module
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import structlog
from octavo.bookie.bookie import Bookie
from octavo.bookie.identity.errors import BookieStartError
from octavo.metadata import BookieLease, BookieRegistration, BookieState, MetadataStore
from octavo.metadata.cluster.registration import Cookie
from octavo.metadata.store.values import Version
from octavo.protocol.errors import MetadataUnavailableError
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.messages import Added
from octavo.protocol.places import place
from prometheus_client.parser import text_string_to_metric_families
from support.admin import Answer, administered_bookie, ask, exchange
from support.metadata.ledger_metadata import fragment, open_ledger
from support.metadata.stream_metadata import open_stream, stream_fragment
from support.raw_client import RawClient, add, seal
from support.waiting import WAIT_SECONDS


@pytest.fixture
async def bookie(tmp_path: Path, store: MetadataStore) -> AsyncIterator[Bookie]:
    async with administered_bookie(tmp_path, store) as running:
        yield running


def store_that_registers_after(store: MetadataStore, work: Callable[[], Awaitable[None]]) -> MetadataStore:
    """The store, with ``work`` done before each registration of a bookie."""

    class Registering:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def register_bookie(self, registration: BookieRegistration, *, cookie: Version) -> BookieLease:
            await work()
            return await store.register_bookie(registration, cookie=cookie)

    return cast(MetadataStore, Registering())


@pytest.fixture
def socket(bookie: Bookie, tmp_path: Path) -> Path:
    return tmp_path / "admin.sock"


async def client_of(bookie: Bookie) -> RawClient:
    host, _, port = bookie.address.rpartition(":")
    client = await RawClient(host, int(port)).__aenter__()
    await client.greet()
    return client


async def wait_job(socket: Path, job: int) -> dict[str, object]:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            seen: dict[str, object] = (await ask(socket, "GET", f"/api/v1/jobs/{job}")).json
            if seen["state"] != "running":
                return seen


# --- health and metrics ----------------------------------------------------------------------------------------------


async def test_a_serving_bookie_is_healthy_and_ready(socket: Path) -> None:
    assert (await ask(socket, "GET", "/healthz")).json == {"healthy": True, "reasons": []}
    answer = await ask(socket, "GET", "/readyz")
    assert (answer.status, answer.json) == (200, {"ready": True, "reasons": []})


async def test_a_bookie_that_starts_answers_that_it_is_not_ready(tmp_path: Path, store: MetadataStore) -> None:
    seen: list[Answer] = []

    async def look() -> None:
        for path in ("/readyz", "/healthz", "/metrics", "/api/v1/bookie"):
            seen.append(await ask(tmp_path / "admin.sock", "GET", path))  # noqa: PERF401 - one after another

    async with administered_bookie(tmp_path, store_that_registers_after(store, look)):
        pass
    ready, healthy, metrics, shown = seen
    assert (ready.status, ready.json["reasons"]) == (503, ["the bookie is starting"])
    assert healthy.status == 200
    assert b'octavo_bookie_state{state="starting"} 1' in metrics.body
    assert (shown.status, shown.json["error"], shown.json["retryable"]) == (503, "Starting", True)


async def test_a_bookie_that_lost_its_registration_is_not_ready_and_still_healthy(
    tmp_path: Path, store: MetadataStore
) -> None:
    socket = tmp_path / "admin.sock"
    outage = False

    async def fail_in_an_outage() -> None:
        if outage:
            raise MetadataUnavailableError("the store does not answer")

    async with administered_bookie(tmp_path, store_that_registers_after(store, fail_in_an_outage)) as bookie:
        outage = True
        registration = (await store.list_bookies())[bookie.bookie_id]
        await store.register_bookie(registration)  # another process under its id: its own registration is lost
        async with asyncio.timeout(WAIT_SECONDS):
            while (answer := await ask(socket, "GET", "/readyz")).status == 200:
                pass
        assert answer.json["reasons"] == ["the bookie is not registered in the cluster"]
        assert (await ask(socket, "GET", "/healthz")).status == 200
        assert b"octavo_bookie_registered 0" in (await ask(socket, "GET", "/metrics")).body
        outage = False
        async with asyncio.timeout(WAIT_SECONDS):
            while (await ask(socket, "GET", "/readyz")).status != 200:
                pass


async def test_a_read_only_bookie_is_ready(socket: Path) -> None:
    await ask(socket, "POST", "/api/v1/bookie/read-only", {"read_only": True})
    assert (await ask(socket, "GET", "/readyz")).status == 200


async def test_a_bookie_whose_disk_failed_is_neither_healthy_nor_ready(bookie: Bookie, socket: Path) -> None:
    # Of a bookie that is really broken the process ends in the same moment.
    bookie.subject.failure = lambda: OSError(5, "sync failed")
    for path in ("/healthz", "/readyz"):
        answer = await ask(socket, "GET", path)
        assert answer.status == 503
        assert "sync failed" in answer.json["reasons"][0]


async def test_metrics_come_in_the_form_that_prometheus_reads(bookie: Bookie, socket: Path) -> None:
    answer = await ask(socket, "GET", "/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert {"octavo_bookie_requests", "octavo_bookie_journal_sync_seconds", "process_cpu_seconds"} <= families


# --- state -----------------------------------------------------------------------------------------------------------


async def test_the_bookie_shows_its_state_disks_and_settings(bookie: Bookie, socket: Path, tmp_path: Path) -> None:
    shown = (await ask(socket, "GET", "/api/v1/bookie")).json
    assert shown["bookie_id"] == bookie.bookie_id
    assert shown["state"] == "writable"
    assert shown["read_only"] == {"operator": None, "disks": False}
    assert [disk["role"] for disk in shown["disks"]] == ["data", "journal"]
    assert shown["settings"]["data_dir"] == str(tmp_path)
    assert shown["settings"]["checkpoint_seconds"] == 60.0
    assert shown["facts"]["version"] == "0-test"


async def test_settings_are_shown_without_the_password_of_the_metadata(tmp_path: Path, store: MetadataStore) -> None:
    async with administered_bookie(tmp_path, store, metadata="zk://octavo:secret@zk1:2181/root"):
        answer = await ask(tmp_path / "admin.sock", "GET", "/api/v1/bookie")
    assert answer.json["settings"]["metadata"] == "zk://octavo:***@zk1:2181/root"
    assert b"secret" not in answer.body


async def test_connections_are_listed_with_what_they_hold(bookie: Bookie, socket: Path) -> None:
    client = await client_of(bookie)
    name = client.writer.get_extra_info("sockname")
    (connection,) = (await ask(socket, "GET", "/api/v1/connections")).json["items"]
    assert connection == {
        "peer": f"{name[0]}:{name[1]}", "principal": None, "tls": False, "outstanding": 0, "long_polls": 0,
        "unsent_bytes": 0,
    }  # fmt: skip
    client.writer.close()


async def test_cluster_and_bookies_are_shown(bookie: Bookie, socket: Path, store: MetadataStore) -> None:
    await store.create_cookie(Cookie(bookie_id=BookieId("gone"), generation=1, address="b2:3181"))
    cluster = (await ask(socket, "GET", "/api/v1/cluster")).json
    assert cluster["cluster_id"] == await store.cluster_id()
    assert cluster["bookies"] == {"writable": 1, "read-only": 0, "unavailable": 1}
    bookies = {item["bookie_id"]: item for item in (await ask(socket, "GET", "/api/v1/bookies")).json["items"]}
    assert bookies[bookie.bookie_id]["state"] == "writable"
    assert bookies["gone"]["state"] == "unavailable"
    assert bookies["gone"]["version"] is None


@pytest.fixture
async def ledgers(store: MetadataStore) -> list[int]:
    """Five ledgers, one of them with another bookie."""
    made: list[int] = []
    for number in range(5):
        ledger_id = await store.allocate_ledger_id()
        metadata = open_ledger(ledger_id, fragment(0, "xyw" if number == 3 else "xyz"))
        await store.create_ledger(replace(metadata, custom_metadata={"k": b"\xff", "name": b"caf\xc3\xa9"}))
        made.append(ledger_id)
    return made


async def test_ledgers_are_listed_page_by_page(socket: Path, ledgers: list[int]) -> None:
    seen: list[int] = []
    after = ""
    while True:
        page = (await ask(socket, "GET", f"/api/v1/ledgers?limit=2{after}")).json
        assert len(page["items"]) <= 2
        seen += [item["ledger_id"] for item in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == ledgers


async def test_ledgers_are_listed_by_state_and_bookie(socket: Path, ledgers: list[int]) -> None:
    named = (await ask(socket, "GET", "/api/v1/ledgers?bookie=w")).json
    assert [item["ledger_id"] for item in named["items"]] == [ledgers[3]]
    assert (await ask(socket, "GET", "/api/v1/ledgers?state=closed")).json == {"items": [], "next": None}
    assert len((await ask(socket, "GET", "/api/v1/ledgers?state=open")).json["items"]) == 5


async def test_a_ledger_is_shown_without_its_verifier(socket: Path, ledgers: list[int]) -> None:
    shown = (await ask(socket, "GET", f"/api/v1/ledgers/{ledgers[3]}")).json
    bookies = ["x", "y", "w"]
    assert shown["fragments"] == [{"first_entry_id": 0, "first_position": None, "term": 0, "bookies": bookies}]
    assert shown["custom_metadata"] == {"k": {"base64": "/w=="}, "name": "café"}
    assert not {"verifier", "salt"} & shown.keys()
    absent = await ask(socket, "GET", "/api/v1/ledgers/999999")
    assert (absent.status, absent.json["error"]) == (404, "NoSuchLedger")


async def test_streams_are_listed_and_shown_among_ledgers(socket: Path, store: MetadataStore) -> None:
    ledger_id = await store.allocate_ledger_id()
    stream = open_stream(stream_fragment(1, 0, 0, "xyz"), stream_fragment(3, 0, 10, "xyzw", 100))
    await store.create_stream(replace(stream, ledger_id=ledger_id))
    (item,) = (await ask(socket, "GET", "/api/v1/ledgers?bookie=w&state=open")).json["items"]
    assert (item["ledger_id"], item["kind"], item["last_entry_id"]) == (ledger_id, "stream", None)
    assert (item["first_position"], item["last_position"], item["entries"], item["length"]) == (0, None, None, 100)
    shown = (await ask(socket, "GET", f"/api/v1/ledgers/{ledger_id}")).json
    assert item.items() <= shown.items()
    assert (shown["ensemble_size"], shown["write_quorum"], shown["ack_quorum"]) == (4, 3, 2)
    assert [(one["first_entry_id"], one["first_position"], one["term"]) for one in shown["fragments"]] == [
        (place(1, 0), 0, 1), (place(3, 0), 10, 3),
    ]  # fmt: skip
    assert not {"verifier", "salt", "owner", "keys"} & shown.keys()


async def test_clients_on_loopback_see_nothing_of_what_private_ledgers_hold(
    tmp_path: Path, store: MetadataStore
) -> None:
    """Rule S6. The bookie asks no client who it is."""
    public, private = [await store.allocate_ledger_id() for _ in range(2)]
    await store.create_ledger(open_ledger(public).closed(EntryId(4), 50))
    await store.create_ledger(replace(open_ledger(private), private=True).closed(EntryId(4), 50))
    stream = await store.allocate_ledger_id()
    await store.create_stream(replace(open_stream(stream_fragment(1, 0, 0)), ledger_id=stream, private=True))
    with socket_module.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with administered_bookie(tmp_path, store, admin_listen=f"127.0.0.1:{port}"):
        for address, sees_all in ((tmp_path / "admin.sock", True), (("127.0.0.1", port), False)):
            items = {one["ledger_id"]: one for one in (await ask(address, "GET", "/api/v1/ledgers")).json["items"]}
            shown = {one: (await ask(address, "GET", f"/api/v1/ledgers/{one}")).json for one in (private, stream)}
            assert (items[public]["entries"], items[public]["length"], items[public]["withheld"]) == (5, 50, False)
            for one in (items[private], items[stream], *shown.values()):
                assert (one["private"], one["withheld"]) == (True, not sees_all)
                told = [one[name] for name in ("entries", "last_entry_id", "length", "first_position", "log")]
                assert sees_all or told == [None] * 5
            assert (shown[private]["custom_metadata"] is None) is not sees_all
            for one in shown.values():
                places = [fragment["first_entry_id"] for fragment in one["fragments"]]
                assert sees_all or places == [None]
                assert one["fragments"][0]["bookies"] == ["a", "b", "c"]


# --- changes ---------------------------------------------------------------------------------------------------------


async def test_the_operators_switch_holds_over_restarts_and_against_the_disks(
    tmp_path: Path, store: MetadataStore
) -> None:
    socket = tmp_path / "admin.sock"
    async with administered_bookie(tmp_path, store) as bookie:
        answer = await ask(socket, "POST", "/api/v1/bookie/read-only", {"read_only": True, "reason": "disk swap"})
        assert answer.json == {"read_only": True, "operator": "disk swap", "disks": False}
        assert (await store.list_bookies())[bookie.bookie_id].state is BookieState.READ_ONLY
    async with administered_bookie(tmp_path, store) as bookie:
        assert (await store.list_bookies())[bookie.bookie_id].state is BookieState.READ_ONLY
        bookie.service.note_disks(low=True, read_only=True, out_of_space=False)
        bookie.service.note_disks(low=False, read_only=False, out_of_space=False)
        assert bookie.service.read_only
        assert (await ask(socket, "GET", "/api/v1/bookie")).json["read_only"] == {
            "operator": "disk swap", "disks": False,
        }  # fmt: skip
        await ask(socket, "POST", "/api/v1/bookie/read-only", {"read_only": False})
        assert (await store.list_bookies())[bookie.bookie_id].state is BookieState.WRITABLE
    async with administered_bookie(tmp_path, store) as bookie:
        assert not bookie.service.read_only


async def test_a_switch_that_cannot_be_understood_counts_as_read_only(tmp_path: Path, store: MetadataStore) -> None:
    async with administered_bookie(tmp_path, store):
        pass
    (tmp_path / "read-only").write_bytes(b"\xff{")
    async with administered_bookie(tmp_path, store) as bookie:
        assert bookie.service.read_only
        assert "cannot be understood" in str(bookie.service.operator_read_only)


async def test_a_switch_that_cannot_be_kept_changes_nothing(bookie: Bookie, socket: Path, tmp_path: Path) -> None:
    (tmp_path / "read-only.tmp").mkdir()  # in the way of the file's replacement
    answer = await ask(socket, "POST", "/api/v1/bookie/read-only", {"read_only": True})
    assert (answer.status, answer.json["error"]) == (503, "Storage")
    assert not bookie.service.read_only


async def test_jobs_do_what_they_say_and_tell_their_result(bookie: Bookie, socket: Path) -> None:
    client = await client_of(bookie)
    assert await client.ask(add(7, seal(7, 0, [b"a" * 100] * 10))) == Added()
    client.writer.close()
    for path, body, expected in [
        ("checkpoint", {}, {}),
        ("garbage", {}, {"ledgers_seen": 1, "deleted": 0, "never_allocated": 1}),
        ("scrub", {"bytes_per_second": 1 << 30}, {"entries": 10, "damaged_places": 0}),
        ("compaction", {"level": "major"}, {"logs_removed": 0, "out_of_space": False}),
    ]:
        answer = await ask(socket, "POST", f"/api/v1/bookie/{path}", body)
        assert answer.status == 202, answer
        job = await wait_job(socket, answer.json["job"])
        assert (job["kind"], job["state"], job["error"]) == (path, "done", None)
        assert expected.items() <= job["result"].items()  # type: ignore[attr-defined]
    jobs = (await ask(socket, "GET", "/api/v1/jobs")).json["items"]
    assert [job["kind"] for job in jobs] == ["checkpoint", "garbage", "scrub", "compaction"]


async def test_a_job_runs_once_at_a_time_and_can_be_cancelled(bookie: Bookie, socket: Path) -> None:
    client = await client_of(bookie)
    await client.ask(add(7, seal(7, 0, [b"a" * 100_000] * 20)))
    client.writer.close()
    await wait_job(socket, (await ask(socket, "POST", "/api/v1/bookie/checkpoint", {})).json["job"])
    slow = {"bytes_per_second": 1 << 16}  # half a minute for what is there
    job = (await ask(socket, "POST", "/api/v1/bookie/scrub", slow)).json["job"]
    second = await ask(socket, "POST", "/api/v1/bookie/scrub", slow)
    assert (second.status, second.json["error"]) == (409, "Conflict")
    assert f"job {job} " in second.json["message"]
    assert (await ask(socket, "DELETE", f"/api/v1/jobs/{job}")).status == 202
    assert (await wait_job(socket, job))["state"] == "cancelled"
    assert (await ask(socket, "DELETE", "/api/v1/jobs/4711")).status == 404


async def test_a_job_that_fails_tells_why(bookie: Bookie, socket: Path, store: MetadataStore) -> None:
    cookie = await store.read_cookie(bookie.bookie_id)
    assert cookie is not None
    client = await client_of(bookie)
    await client.ask(add(7, seal(7, 0, [b"a"])))
    client.writer.close()
    await store.delete_cookie(bookie.bookie_id, cookie.version)
    job = await wait_job(socket, (await ask(socket, "POST", "/api/v1/bookie/garbage", {})).json["job"])
    assert job["state"] == "failed"
    assert "does not know bookie" in str(job["error"])


async def test_a_pause_of_compaction_can_be_ended_early(bookie: Bookie, socket: Path) -> None:
    paused = await ask(socket, "POST", "/api/v1/bookie/compaction/pause", {"seconds": 3600})
    assert 3000 < paused.json["paused_seconds"] <= 3600
    refused = await ask(socket, "POST", "/api/v1/bookie/compaction", {"level": "minor"})
    assert (refused.status, refused.json["error"]) == (409, "Paused")
    ready = bookie.subject.ready
    assert ready is not None
    running = asyncio.ensure_future(ready.upkeep.compaction_limiter.take(1))
    await ask(socket, "POST", "/api/v1/bookie/compaction/pause", {"seconds": 0})
    await asyncio.wait_for(running, WAIT_SECONDS)  # what stood still goes on
    assert (await ask(socket, "POST", "/api/v1/bookie/compaction", {"level": "minor"})).status == 202


async def test_a_disk_that_is_short_of_space_ends_the_pause_of_compaction(bookie: Bookie, socket: Path) -> None:
    await ask(socket, "POST", "/api/v1/bookie/compaction/pause", {"seconds": 3600})
    ready = bookie.subject.ready
    assert ready is not None
    ready.upkeep.reclaim_space()
    assert (await ask(socket, "GET", "/api/v1/bookie")).json["compaction_paused_seconds"] == 0


async def test_the_log_level_changes_and_falls_back(
    tmp_path: Path, store: MetadataStore, capsys: pytest.CaptureFixture[str]
) -> None:
    async with administered_bookie(tmp_path, store, log_level="error"):
        socket = tmp_path / "admin.sock"
        log = structlog.get_logger("test")
        answer = await ask(socket, "POST", "/api/v1/bookie/log-level", {"level": "debug", "seconds": 1})
        assert answer.json == {"level": "debug", "seconds": 1}
        log.debug("while it holds")
        async with asyncio.timeout(WAIT_SECONDS):
            while (await ask(socket, "GET", "/api/v1/bookie")).json["log_level"] != "error":
                pass
        log.debug("after it fell back")
    logged = capsys.readouterr().err
    assert "while it holds" in logged
    assert "log level falls back" in logged
    assert "after it fell back" not in logged


async def test_stacks_show_where_each_task_waits(socket: Path) -> None:
    shown = (await ask(socket, "GET", "/api/v1/stacks")).json
    writer = next(task for task in shown["tasks"] if task["name"] == "octavo-journal-writer")
    assert any("Journal._write_groups" in line for line in writer["stack"])
    assert any(thread["name"] == "MainThread" and thread["stack"] for thread in shown["threads"])


async def test_a_profile_names_what_the_loop_is_busy_with(socket: Path) -> None:
    busy = True

    async def keep_busy() -> None:
        while busy:
            # In Python and for long: the thread that takes samples gets its turn every 5 ms, or when the loop polls.
            for _ in range(1_000_000):
                pass
            await asyncio.sleep(0)

    working = asyncio.ensure_future(keep_busy())
    answers = await asyncio.gather(*[ask(socket, "GET", "/api/v1/profile?seconds=1") for _ in range(2)])
    busy = False
    await working
    taken, refused = sorted(answers, key=lambda answer: answer.status)
    assert (refused.status, refused.json["error"]) == (409, "Conflict"), "one profile at a time"
    found = taken.json
    assert found["samples"] == sum(item["samples"] for item in found["stacks"]) > 0
    assert any("keep_busy" in item["stack"] for item in found["stacks"])


# --- the socket ------------------------------------------------------------------------------------------------------


async def test_the_socket_is_the_owners_alone_and_goes_with_the_bookie(tmp_path: Path, store: MetadataStore) -> None:
    socket = tmp_path / "admin.sock"
    async with administered_bookie(tmp_path, store):
        assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    assert not socket.exists()


async def test_the_socket_of_a_killed_bookie_is_replaced(tmp_path: Path, store: MetadataStore) -> None:
    socket = tmp_path / "admin.sock"
    async with administered_bookie(tmp_path, store):
        os.link(socket, tmp_path / "kept")
    (tmp_path / "kept").rename(socket)
    async with administered_bookie(tmp_path, store):
        assert (await ask(socket, "GET", "/healthz")).status == 200


async def test_a_file_in_the_place_of_the_socket_is_left_alone(tmp_path: Path, store: MetadataStore) -> None:
    (tmp_path / "data").mkdir()
    place = tmp_path / "precious"
    place.write_text("precious")
    with pytest.raises(BookieStartError, match="not a socket"):
        async with administered_bookie(tmp_path / "data", store, admin_socket=place):
            pass
    assert place.read_text() == "precious"


async def test_a_second_bookie_does_not_take_the_socket_of_a_running_one(tmp_path: Path, store: MetadataStore) -> None:
    place = tmp_path / "shared.sock"
    async with administered_bookie(tmp_path / "one", store, admin_socket=place):
        with pytest.raises(BookieStartError, match="another process listens"):
            async with administered_bookie(tmp_path / "two", store, admin_socket=place):
                pass
        assert (await ask(place, "GET", "/healthz")).status == 200


async def test_a_data_directory_with_a_very_long_path_has_its_socket(tmp_path: Path, store: MetadataStore) -> None:
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    async with administered_bookie(directory, store):
        assert (await ask(directory / "admin.sock", "GET", "/healthz")).status == 200


async def test_a_fresh_directory_that_holds_only_the_socket_counts_as_unused(
    tmp_path: Path, store: MetadataStore
) -> None:
    async with administered_bookie(tmp_path, store) as bookie:
        first_id = bookie.bookie_id
    assert first_id.startswith("bookie-")


async def test_requests_of_one_connection_are_answered_in_order(socket: Path) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answers = await exchange(socket, one * 5 + last, ["GET"] * 6)
    assert [list(json.loads(answer.body)) for answer in answers] == [["healthy", "reasons"]] * 5 + [
        ["ready", "reasons"]
    ]


async def test_head_answers_as_get_without_a_body(socket: Path) -> None:
    answer = await ask(socket, "HEAD", "/healthz")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 0
