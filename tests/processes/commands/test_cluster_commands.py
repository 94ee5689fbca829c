"""Commands for operators, on a real cluster: status, test, doctor, dump and restore, support bundle, bench disk."""

import asyncio
import json
import os
import re
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from octavo.cli.main import main
from octavo.metadata import open_metadata_store
from support.commands.processes import BookieProcess, Finished, Up
from support.tree import ROOT
from support.waiting import wait_until

from octavo import connect

SECRET = "s3cr3t-of-this-test"


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


type Run = Callable[..., Finished]
"""Runs a command in this process: starting one costs more than most of the commands."""

ONE: dict[str, Any] = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


@pytest.fixture
def octavo(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: object, uri: str = "", **settings: str) -> Finished:
        with monkeypatch.context() as changed:
            for name, value in settings.items():
                changed.setenv(name, value)
            status = main([*map(str, arguments), *(["--metadata", uri] if uri else [])])
        shown = capfdbinary.readouterr()
        return Finished(status, shown.out, shown.err.decode())

    return run


async def new_ledger(uri: str, *payloads: bytes, **options: Any) -> int:
    """A closed ledger with these entries on one bookie."""
    async with connect(uri) as client, client.create_ledger(**ONE, **options) as ledger:
        await ledger.add_many(payloads)
        return int(ledger.id)


async def entries_of(uri: str, ledger_id: int) -> list[bytes]:
    async with connect(uri) as client, client.open_ledger(ledger_id) as reader:
        return [entry.payload async for entry in reader]


async def add_to_log(uri: str, *payloads: bytes) -> list[bytes]:
    """Add to the log `orders` and return what it then holds."""
    async with connect(uri) as client, client.open_log("orders") as log:
        async with log.lead() as writer:
            await writer.add_many(payloads)
        await log.refresh()
        return [entry.payload async for entry in log.entries()]


async def new_log(uri: str) -> None:
    async with connect(uri) as client, client.create_log("orders", **ONE):
        pass


@pytest.fixture
def run(octavo: Run, cluster: Up) -> Run:
    """Runs a command on the cluster."""
    return lambda *arguments, **options: octavo(*arguments, uri=cluster.uri, **options)


def bookie_ids(run: Run) -> list[str]:
    return [bookie["bookie_id"] for bookie in run("bookies", "--json").json]


def test_status_and_test_succeed_on_a_healthy_cluster_and_leave_nothing(run: Run) -> None:
    before = run("ledger", "list").stdout
    status = run("cluster", "status", "--json").json
    assert (status["healthy"], status["findings"]) == (True, [])
    tested = run("cluster", "test", "--json").json
    names = bookie_ids(run)
    assert [result["bookies"] for result in tested] == [*([name] for name in names), names]
    assert [result["error"] for result in tested] == [None] * 4
    one = run("cluster", "test", "--bookie", names[1], "--json").json
    assert [result["bookies"] for result in one] == [[names[1]]]
    run("cluster", "test", "--bookie", "no-such").failed_with_one_line(1, "no-such is not registered")
    assert run("ledger", "list").stdout == before


def test_doctor_finds_nothing_wrong_and_checks_what_it_says(cluster: Up, run: Run, tmp_path: Path) -> None:
    settings = tmp_path / "one.toml"
    settings.write_text(
        f'data_dir = "{tmp_path / "one"}"\nmetadata = "{cluster.uri}"\ndisk_read_only_bytes = 268435456\n'
    )
    findings = {found["check"]: found for found in run("doctor", "--config", settings, "--json").json}
    for name in bookie_ids(run):
        assert findings[f"bookie {name}"]["result"] == "ok"
        assert findings[f"clock of {name}"]["result"] == "ok"
    assert findings["largest document"]["result"] == "ok"
    assert findings["settings"]["result"] == "ok"
    assert re.search(r"4 KiB in [0-9.]+ ms", findings["sync"]["detail"])
    assert list(tmp_path.iterdir()) == [settings]


def test_doctor_names_what_fails(octavo: Run, tmp_path: Path) -> None:
    settings = tmp_path / "one.toml"
    settings.write_text(f'data_dir = "{tmp_path}"\ndisk_warn_bytes = 1\n')
    done = octavo("doctor", "--config", settings, "--metadata", f"sqlite:///{tmp_path}/none.db", "--json")
    assert done.status == 1
    failed = {found["check"]: found["detail"] for found in json.loads(done.stdout) if found["result"] == "failed"}
    assert "must not decrease" in failed["settings"]
    assert "none.db" in failed["metadata"]


def test_ledgers_are_listed_by_bookie_and_counted_in_an_entry_log(cluster: Up, run: Run) -> None:
    names = bookie_ids(run)
    ledger_id = asyncio.run(new_ledger(cluster.uri, *[b"x"] * 10))
    (bookie,) = run("ledger", "show", ledger_id, "--json").json["fragments"][0]["bookies"]

    def listed(name: str) -> set[int]:
        lines = run("ledger", "list", "--bookie", name, "--state", "closed", "--json").stdout.splitlines()
        return {json.loads(line)["ledger_id"] for line in lines}

    assert [name for name in names if ledger_id in listed(name)] == [bookie]


def test_the_metadata_go_to_a_file_and_into_an_empty_place_and_the_bookies_serve_them(
    octavo: Run, tmp_path: Path
) -> None:
    uri, restored_uri = (f"sqlite:///{tmp_path}/{name}.db" for name in ("metadata", "restored"))
    dump = tmp_path / "cluster.dump"
    quick = ("--port", 0, "--bookie-id", "b1")
    with BookieProcess(tmp_path / "bookie", "--metadata", uri, *quick).wait_ready() as bookie:
        asyncio.run(new_log(uri))
        assert asyncio.run(add_to_log(uri, b"first", b"second")) == [b"first", b"second"]
        kept = asyncio.run(new_ledger(uri, b"kept"))
        written = octavo("cluster", "dump", dump, "--json", uri=uri).json
        assert written["records"] >= 4
        later = asyncio.run(new_ledger(uri, b"later"))
        octavo("cluster", "restore", dump, uri=uri).failed_with_one_line(1, "there is a cluster")
        cut = tmp_path / "cut.dump"
        cut.write_bytes(dump.read_bytes()[:-20])
        octavo("cluster", "restore", cut, uri=restored_uri).failed_with_one_line(1, "cut.dump")
        assert not (tmp_path / "restored.db").exists()
        assert bookie.stop() == 0
    restored = octavo("cluster", "restore", dump, "--json", uri=restored_uri).json
    assert restored["records"] == written["records"]
    assert oct(dump.stat().st_mode & 0o777) == "0o600"
    log = [b"first", b"second"]
    for _ in range(2):
        with BookieProcess(
            tmp_path / "bookie", "--metadata", restored_uri, *quick, "--config", _often(tmp_path)
        ).wait_ready() as bookie:
            assert asyncio.run(entries_of(restored_uri, kept)) == [b"kept"]
            log.append(b"next")
            assert asyncio.run(add_to_log(restored_uri, b"next")) == log
            assert asyncio.run(new_ledger(restored_uri, b"new")) > later + 2**31
            before = bookie.stderr.count("garbage")
            wait_until(lambda: bookie.stderr.count("garbage") > before, "a garbage collection")  # noqa: B023
            assert bookie.stop() == 0
    assert "on hold" in bookie.stderr
    inspected = octavo("bookie", "check", tmp_path / "bookie")
    assert inspected.status == 0, inspected
    held = b"".join(
        octavo("bookie", "inspect", "--ledgers", log).stdout for log in (tmp_path / "bookie/entries").glob("*.log")
    )
    assert f"ledger {later}: 1 entry from 0 to 0".encode() in held
    status = octavo("cluster", "status", "--json", uri=restored_uri)
    assert "on hold" in status.stdout.decode()
    assert octavo("cluster", "release-garbage", "--json", uri=restored_uri).json == {"released": True}
    assert octavo("cluster", "release-garbage", "--json", uri=restored_uri).json == {"released": False}


def test_a_dump_replaces_a_file_only_if_it_is_told_to_and_never_a_device(octavo: Run, tmp_path: Path) -> None:
    uri, restored_uri = (f"sqlite:///{tmp_path}/{name}.db" for name in ("metadata", "restored"))
    assert octavo("cluster", "init", uri=uri).status == 0
    kept, link, device = tmp_path / "kept", tmp_path / "link", tmp_path / "device"
    kept.write_bytes(b"precious")
    link.symlink_to(kept)
    for file in (kept, link):
        octavo("cluster", "dump", file, uri=uri).failed_with_one_line(1, "exists already", "--overwrite")
    assert kept.read_bytes() == b"precious"
    os.mkfifo(device)
    octavo("cluster", "dump", device, "--overwrite", uri=uri).failed_with_one_line(1, "not a regular file")
    octavo("cluster", "dump", tmp_path, "--overwrite", uri=uri).failed_with_one_line(1, "not a regular file")
    octavo("cluster", "dump", tmp_path / "no" / "file", uri=uri).failed_with_one_line(1, "No such file or directory")
    assert device.is_fifo()
    assert octavo("cluster", "dump", link, "--overwrite", uri=uri).status == 0
    assert link.is_symlink()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert octavo("cluster", "restore", kept, uri=restored_uri).status == 0
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]


def test_a_log_goes_on_from_an_older_copy_of_the_metadata_file_that_was_restored_through_a_dump(
    octavo: Run, tmp_path: Path
) -> None:
    """The copy names fewer segments, a segment that was truncated and deleted later, and an older term."""
    uri, copy_uri, restored_uri = (f"sqlite:///{tmp_path}/{name}.db" for name in ("metadata", "copy", "restored"))
    quick = ("--port", 0, "--bookie-id", "b1")
    with BookieProcess(tmp_path / "bookie", "--metadata", uri, *quick).wait_ready() as bookie:
        asyncio.run(new_log(uri))
        asyncio.run(add_to_log(uri, b"a", b"b"))
        asyncio.run(add_to_log(uri, b"c"))
        with (
            closing(sqlite3.connect(tmp_path / "metadata.db")) as live,
            closing(sqlite3.connect(tmp_path / "copy.db")) as copy,
        ):
            live.backup(copy)
        later = asyncio.run(add_to_log(uri, b"d", b"e"))
        assert later == [b"a", b"b", b"c", b"d", b"e"]
        assert octavo("log", "truncate", "orders", "--before", 2, uri=uri).status == 0
        assert bookie.stop() == 0
    assert octavo("cluster", "dump", tmp_path / "dump", uri=copy_uri).status == 0
    assert octavo("cluster", "restore", tmp_path / "dump", uri=restored_uri).status == 0
    with BookieProcess(tmp_path / "bookie", "--metadata", restored_uri, *quick).wait_ready() as bookie:
        assert asyncio.run(add_to_log(restored_uri, b"new")) == [b"a", b"b", b"c", b"new"]
        assert octavo("log", "truncate", "orders", "--before", 3, uri=restored_uri).status == 0
        assert asyncio.run(add_to_log(restored_uri, b"newer")) == [b"new", b"newer"]
        assert bookie.stop() == 0


async def allocate_ids(uri: str, count: int) -> None:
    async with await open_metadata_store(uri) as store:
        for _ in range(count):
            await store.allocate_ledger_id()


def copy_of_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as live, closing(sqlite3.connect(target)) as copy:
        live.backup(copy)


def test_an_older_copy_of_the_metadata_file_costs_no_entry_however_often_the_bookie_starts_on_it(
    octavo: Run, tmp_path: Path
) -> None:
    """The bookie was not restarted between the copy and the loss, so its generation does not show that the copy is
    older; and the copy gives out again the ids of the ledgers that it lacks."""
    uri, older_uri = (f"sqlite:///{tmp_path}/{name}.db" for name in ("metadata", "older"))
    started = ("--port", 0, "--bookie-id", "b1", "--config", _often(tmp_path))
    with BookieProcess(tmp_path / "bookie", "--metadata", uri, *started).wait_ready() as bookie:
        kept = asyncio.run(new_ledger(uri, b"kept"))
        copy_of_database(tmp_path / "metadata.db", tmp_path / "older.db")
        later = asyncio.run(new_ledger(uri, b"later"))
        cookie = tmp_path / "bookie" / "cookie"
        wait_until(
            lambda: json.loads(cookie.read_text().splitlines()[0])["ledger_ids_stop"] > later, "a garbage collection"
        )
        assert bookie.stop() == 0
    for _ in range(2):
        with BookieProcess(tmp_path / "bookie", "--metadata", older_uri, *started).wait_ready() as bookie:
            asyncio.run(allocate_ids(older_uri, later - kept))
            assert asyncio.run(entries_of(older_uri, kept)) == [b"kept"]
            wait_until(lambda: "no garbage collected" in bookie.stderr, "a garbage collection")
            assert bookie.stop() == 0
        assert "older than its directories" in bookie.stderr
    assert "older than its directories" in octavo("cluster", "status", "--json", uri=older_uri).stdout.decode()
    with BookieProcess(tmp_path / "bookie", "--metadata", uri, *started).wait_ready() as bookie:
        assert asyncio.run(entries_of(uri, later)) == [b"later"]
        assert bookie.stop() == 0


def _often(folder: Path) -> Path:
    """Settings with frequent garbage collection."""
    path = folder / "often.toml"
    path.write_text("garbage_seconds = 0.2\n")
    return path


def test_a_hold_keeps_its_reason_and_is_a_warning(run: Run) -> None:
    run("cluster", "hold-garbage", "--reason", "moving disks")
    again = run("cluster", "hold-garbage", "--reason", "another", "--json").json
    assert again["reason"] == "moving disks"
    status = run("cluster", "status")
    assert status.status == 0
    assert b"is healthy, with 1 warning" in status.stdout
    assert b"moving disks" in status.stdout
    assert b"(it was: moving disks)" in run("cluster", "release-garbage").stdout


def test_cookies_show_every_bookie(run: Run) -> None:
    shown = run("cluster", "cookies", "--json").json
    assert [(cookie["bookie_id"], cookie["registered"]) for cookie in shown] == [
        (name, True) for name in bookie_ids(run)
    ]


def test_a_support_bundle_has_what_helps_and_no_secret(cluster: Up, run: Run, tmp_path: Path) -> None:
    asyncio.run(
        new_ledger(cluster.uri, SECRET.encode(), password=SECRET.encode(), custom_metadata={"app": SECRET.encode()})
    )
    settings = tmp_path / "one.toml"
    settings.write_text(f'data_dir = "/d"\nmetadata = "zk://u:{SECRET}@h:1/r?auth={SECRET}"\n# password = "{SECRET}"\n')
    log = cluster.directory / "logs" / "bookie-1.log"
    with log.open("a") as lines:
        lines.write(f"connected with digest:octavo:{SECRET}\n")
    bundle = tmp_path / "bundle.tar.gz"
    bundle.touch()
    run("support-bundle", "--output", bundle).failed_with_one_line(1, "exists already")
    bundle.unlink()
    done = run(
        "support-bundle", "--output", bundle, "--config", settings, OCTAVO_PASSWORD=SECRET,
        OCTAVO_ZOOKEEPER_AUTH=f"digest:u:{SECRET}",
    )  # fmt: skip
    assert done.status == 0, done
    assert oct(bundle.stat().st_mode & 0o777) == "0o600"
    parts = {}
    with tarfile.open(bundle) as archive:
        for member in archive.getmembers():
            stream = archive.extractfile(member)
            assert stream is not None
            parts[member.name.removeprefix("octavo-support/")] = stream.read().decode()
    assert [name for name, text in parts.items() if SECRET in text] == []
    cluster_part = json.loads(parts["cluster.json"])
    assert len(cluster_part["bookies_in_detail"]) == 3
    assert json.loads(parts["ledgers.json"])["ledgers"]["closed"] >= 1
    assert {
        "versions.json",
        "doctor.json",
        "environment.json",
        "settings/one.toml",
        "logs/bookie-1.log",
    } <= parts.keys()
    assert "bookie is ready" in parts["logs/bookie-1.log"]
    for one in cluster_part["bookies_in_detail"]:
        folder = f"bookies/{one['bookie_id']}"
        assert json.loads(parts[f"{folder}/bookie.json"])["settings"]["metadata"].startswith("sqlite:")
        assert "octavo_bookie_state" in parts[f"{folder}/metrics.txt"]
        assert json.loads(parts[f"{folder}/stacks.json"])
    assert 'data_dir = "/d"' in parts["settings/one.toml"]


def test_a_support_bundle_without_a_cluster_says_what_is_missing(octavo: Run, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    done = octavo("support-bundle", "--output", bundle, "--metadata", f"sqlite:///{tmp_path}/none.db")
    assert done.status == 0, done
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
    assert {"octavo-support/versions.json", "octavo-support/cluster.json.missing"} <= {*names}


def test_bench_disk_measures_and_cleans_up(octavo: Run, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    measured = octavo("bench", "disk", tmp_path / "disk", "--duration", 0.1, "--json").json
    assert [write["bytes"] for write in measured["writes"]] == [4096, 65536, 1024 * 1024]
    for write in measured["writes"]:
        assert 0 < write["p50_seconds"] <= write["p99_seconds"] <= write["p999_seconds"] <= write["max_seconds"]
        assert write["bytes_per_second"] == pytest.approx(write["writes_per_second"] * write["bytes"])
    assert os.listdir(tmp_path / "disk") == []
    octavo("bench", "disk", tmp_path / "none").failed_with_one_line(1, "none")


def test_config_check_accepts_the_shipped_settings_and_names_what_is_wrong(octavo: Run, tmp_path: Path) -> None:
    shipped = octavo("config", "check", ROOT / "deploy" / "bookie.toml", "--json").json
    assert shipped["settings"]["data_dir"] == "/var/lib/octavo/one"
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('data_dir = "/d"\nno_such_setting = 1\n')
    octavo("config", "check", wrong).failed_with_one_line(2, "no_such_setting")
    wrong.write_text('data_dir = "/d"\nentry_dirs = ["/d"]\n')
    octavo("config", "check", wrong).failed_with_one_line(1, "two of the bookie's directories are the same")
    wrong.write_text(f'data_dir = "/d"\nmetadata = "zk://u:{SECRET}@h:1/r"\n')
    assert SECRET not in octavo("config", "check", wrong).stdout.decode()
