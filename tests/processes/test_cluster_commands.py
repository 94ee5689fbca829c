"""Commands for operators, on a real cluster: status, test, doctor, dump and restore, support bundle, bench disk."""

import json
import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes import BookieProcess, Up, octavo, wait_until
from support.tree import ROOT

SECRET = "s3cr3t-of-this-test"


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data") as up:
        yield up.wait_ready()


def bookie_ids(cluster: Up) -> list[str]:
    return [bookie["bookie_id"] for bookie in cluster.run("bookies", "--json").json]


def test_status_and_test_succeed_on_a_healthy_cluster_and_leave_nothing(cluster: Up) -> None:
    before = cluster.run("ledger", "list").stdout
    status = cluster.run("cluster", "status", "--json").json
    assert (status["healthy"], status["findings"]) == (True, [])
    tested = cluster.run("cluster", "test", "--json").json
    names = bookie_ids(cluster)
    assert [result["bookies"] for result in tested] == [*([name] for name in names), names]
    assert [result["error"] for result in tested] == [None] * 4
    one = cluster.run("cluster", "test", "--bookie", names[1], "--json").json
    assert [result["bookies"] for result in one] == [[names[1]]]
    cluster.run("cluster", "test", "--bookie", "no-such").failed_with_one_line(1, "no-such is not registered")
    assert cluster.run("ledger", "list").stdout == before


def test_doctor_finds_nothing_wrong_and_checks_what_it_says(cluster: Up, tmp_path: Path) -> None:
    settings = tmp_path / "one.toml"
    settings.write_text(
        f'data_dir = "{tmp_path / "one"}"\nmetadata = "{cluster.uri}"\ndisk_read_only_bytes = 268435456\n'
    )
    findings = {found["check"]: found for found in cluster.run("doctor", "--config", settings, "--json").json}
    for name in bookie_ids(cluster):
        assert findings[f"bookie {name}"]["result"] == "ok"
        assert findings[f"clock of {name}"]["result"] == "ok"
    assert findings["largest document"]["result"] == "ok"
    assert findings["settings"]["result"] == "ok"
    assert re.search(r"4 KiB in [0-9.]+ ms", findings["sync"]["detail"])
    assert list(tmp_path.iterdir()) == [settings]


def test_doctor_names_what_fails(tmp_path: Path) -> None:
    settings = tmp_path / "one.toml"
    settings.write_text(f'data_dir = "{tmp_path}"\ndisk_warn_bytes = 1\n')
    done = octavo("doctor", "--config", settings, "--metadata", f"sqlite:///{tmp_path}/none.db", "--json")
    assert done.status == 1
    failed = {found["check"]: found["detail"] for found in json.loads(done.stdout) if found["result"] == "failed"}
    assert "must not decrease" in failed["settings"]
    assert "none.db" in failed["metadata"]


def test_ledgers_are_listed_by_bookie_and_counted_in_an_entry_log(cluster: Up) -> None:
    names = bookie_ids(cluster)
    ledger_id = cluster.run("ledger", "append", "-E", 1, "-W", 1, "-A", 1, "--json", stdin=b"x\n" * 10).json[
        "ledger_id"
    ]
    (bookie,) = cluster.run("ledger", "show", ledger_id, "--json").json["fragments"][0]["bookies"]

    def listed(name: str) -> set[int]:
        lines = cluster.run("ledger", "list", "--bookie", name, "--state", "closed", "--json").stdout.splitlines()
        return {json.loads(line)["ledger_id"] for line in lines}

    assert [name for name in names if ledger_id in listed(name)] == [bookie]


def test_the_metadata_go_to_a_file_and_into_an_empty_place_and_the_bookies_serve_them(tmp_path: Path) -> None:
    uri, restored_uri = (f"sqlite:///{tmp_path}/{name}.db" for name in ("metadata", "restored"))
    dump = tmp_path / "cluster.dump"
    quick = ("--port", 0, "--bookie-id", "b1")
    one = ("-E", 1, "-W", 1, "-A", 1)
    with BookieProcess(tmp_path / "bookie", "--metadata", uri, *quick).wait_ready() as bookie:
        octavo("log", "create", "orders", *one, "--metadata", uri)
        octavo("log", "append", "orders", "--metadata", uri, stdin=b"first\nsecond\n")
        kept = octavo("ledger", "append", *one, "--json", "--metadata", uri, stdin=b"kept\n").json["ledger_id"]
        written = octavo("cluster", "dump", dump, "--json", "--metadata", uri).json
        assert written["records"] >= 4
        later = octavo("ledger", "append", *one, "--json", "--metadata", uri, stdin=b"later\n").json["ledger_id"]
        octavo("cluster", "restore", dump, "--metadata", uri).failed_with_one_line(1, "there is a cluster")
        cut = tmp_path / "cut.dump"
        cut.write_bytes(dump.read_bytes()[:-20])
        octavo("cluster", "restore", cut, "--metadata", restored_uri).failed_with_one_line(1, "cut.dump")
        assert not (tmp_path / "restored.db").exists()
        assert bookie.stop() == 0
    restored = octavo("cluster", "restore", dump, "--json", "--metadata", restored_uri).json
    assert restored["records"] == written["records"]
    assert oct(dump.stat().st_mode & 0o777) == "0o600"
    for _ in range(2):  # the first start after a restore does not believe the metadata anyway
        with BookieProcess(
            tmp_path / "bookie", "--metadata", restored_uri, *quick, "--config", _often(tmp_path)
        ).wait_ready() as bookie:
            assert octavo("ledger", "read", kept, "--metadata", restored_uri).stdout == b"kept\n"
            assert octavo("log", "read", "orders", "--metadata", restored_uri).stdout == b"first\nsecond\n"
            octavo("log", "append", "orders", "--metadata", restored_uri, stdin=b"third\n")
            created = octavo("ledger", "append", *one, "--json", "--metadata", restored_uri, stdin=b"new\n").json
            assert created["ledger_id"] > later + 2**31
            wait_until(lambda: "garbage collection" in bookie.stderr, "a garbage collection")
            assert bookie.stop() == 0
    assert "on hold" in bookie.stderr
    inspected = octavo("bookie", "check", tmp_path / "bookie")
    assert inspected.status == 0, inspected
    held = b"".join(
        octavo("bookie", "inspect", "--ledgers", log).stdout for log in (tmp_path / "bookie/entries").glob("*.log")
    )
    assert f"ledger {later}: 1 entries from 0 to 0".encode() in held
    status = octavo("cluster", "status", "--json", "--metadata", restored_uri)
    assert "on hold" in status.stdout.decode()
    assert octavo("cluster", "release-garbage", "--json", "--metadata", restored_uri).json == {"released": True}
    assert octavo("cluster", "release-garbage", "--json", "--metadata", restored_uri).json == {"released": False}


def _often(folder: Path) -> Path:
    """Settings with frequent garbage collection."""
    path = folder / "often.toml"
    path.write_text("garbage_seconds = 0.2\n")
    return path


def test_a_hold_keeps_its_reason_and_is_a_warning(cluster: Up) -> None:
    cluster.run("cluster", "hold-garbage", "--reason", "moving disks")
    again = cluster.run("cluster", "hold-garbage", "--reason", "another", "--json").json
    assert again["reason"] == "moving disks"
    status = cluster.run("cluster", "status")
    assert status.status == 0
    assert b"is healthy, with 1 warnings" in status.stdout
    assert b"moving disks" in status.stdout
    assert b"(it was: moving disks)" in cluster.run("cluster", "release-garbage").stdout


def test_cookies_show_every_bookie(cluster: Up) -> None:
    shown = cluster.run("cluster", "cookies", "--json").json
    assert [(cookie["bookie_id"], cookie["registered"]) for cookie in shown] == [
        (name, True) for name in bookie_ids(cluster)
    ]


def test_a_support_bundle_has_what_helps_and_no_secret(cluster: Up, tmp_path: Path) -> None:
    cluster.run("ledger", "append", "--custom", f"app={SECRET}", stdin=SECRET.encode(), OCTAVO_PASSWORD=SECRET)
    settings = tmp_path / "one.toml"
    settings.write_text(f'data_dir = "/d"\nmetadata = "zk://u:{SECRET}@h:1/r?auth={SECRET}"\n# password = "{SECRET}"\n')
    log = cluster.directory / "logs" / "bookie-1.log"
    with log.open("a") as lines:
        lines.write(f"connected with digest:octavo:{SECRET}\n")
    bundle = tmp_path / "bundle.tar.gz"
    done = cluster.run(
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
    assert json.loads(parts["ledgers.json"])["ledgers"]["CLOSED"] >= 1
    assert {
        "versions.json",
        "doctor.json",
        "environment.json",
        "settings/one.toml",
        "logs/bookie-1.log",
    } <= parts.keys()
    assert "bookie is ready" in parts["logs/bookie-1.log"]
    assert 'data_dir = "/d"' in parts["settings/one.toml"]


def test_a_support_bundle_without_a_cluster_says_what_is_missing(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.gz"
    done = octavo("support-bundle", "--output", bundle, "--metadata", f"sqlite:///{tmp_path}/none.db")
    assert done.status == 0, done
    with tarfile.open(bundle) as archive:
        names = archive.getnames()
    assert {"octavo-support/versions.json", "octavo-support/cluster.json.missing"} <= {*names}


def test_bench_disk_measures_and_cleans_up(tmp_path: Path) -> None:
    measured = octavo("bench", "disk", tmp_path, "--duration", 0.1, "--json").json
    assert [write["bytes"] for write in measured["writes"]] == [4096, 65536, 1024 * 1024]
    for write in measured["writes"]:
        assert 0 < write["p50_seconds"] <= write["p99_seconds"] <= write["p999_seconds"] <= write["max_seconds"]
        assert write["bytes_per_second"] == pytest.approx(write["writes_per_second"] * write["bytes"])
    assert os.listdir(tmp_path) == []
    octavo("bench", "disk", tmp_path / "none").failed_with_one_line(1, "none")


def test_config_check_accepts_the_shipped_settings_and_names_what_is_wrong(tmp_path: Path) -> None:
    shipped = octavo("config", "check", ROOT / "deploy" / "bookie.toml", "--json").json
    assert shipped["settings"]["data_dir"] == "/var/lib/octavo/one"
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('data_dir = "/d"\nno_such_setting = 1\n')
    octavo("config", "check", wrong).failed_with_one_line(2, "no_such_setting")
    wrong.write_text('data_dir = "/d"\nentry_dirs = ["/d"]\n')
    octavo("config", "check", wrong).failed_with_one_line(1, "two of the bookie's directories are the same")
    wrong.write_text(f'data_dir = "/d"\nmetadata = "zk://u:{SECRET}@h:1/r"\n')
    assert SECRET not in octavo("config", "check", wrong).stdout.decode()
