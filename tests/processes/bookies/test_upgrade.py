"""A rolling upgrade under load, and back: bookies and clients of two releases in one cluster.

The old release is the wheel of this tree. The new one is the same wheel with the next version number, so what is proved
is that processes of two releases work together, and that the rules of an upgrade hold. That formats of earlier versions
can be read is proved by the golden files.

`make soak` runs the long form: the old release is the wheel of an earlier commit, on both metadata stores, all bookies
go up and back several times before the upgrade is finalized, and with old, mixed and new bookies clients of both
releases write, read and delete what either has written.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from octavo.metadata import open_metadata_store
from support.commands.installed import archived_tree, make_environment, unpack_wheel
from support.commands.processes import BookieProcess, environment, free_neighbours
from support.metadata.zookeeper import new_cluster_uri
from support.tree import ROOT
from support.waiting import WAIT_SECONDS, wait_until

LEASE_SECONDS = "2"
"""A bookie that was killed registers again only when its old registration has expired."""

LONG_ROUNDS = int(os.environ.get("OCTAVO_UPGRADE_ROUNDS", "0"))
"""How often the long form takes all bookies to the new release and back, before the upgrade that stays; 0: short form,
on the embedded store alone."""

EARLIER_COMMIT = os.environ.get("OCTAVO_UPGRADE_FROM", "")
"""The commit of this repository that is the old release; empty: the tree as it is."""


class Releases(NamedTuple):
    """The `octavo` of two releases."""

    old: Path
    new: Path


@pytest.fixture(scope="module")
def releases(module_folder: Path) -> Releases:
    old = unpack_wheel(module_folder / "old-wheel", tree=old_tree(module_folder))
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(old)], check=True)  # once for both
    new = module_folder / "new-wheel"
    if EARLIER_COMMIT:
        unpack_wheel(new)
    else:
        shutil.copytree(old, new)
    version = new / "octavo" / "_version.py"
    text = version.read_text()
    assert '__version__ = "0.1.0"' in text
    version.write_text(text.replace('"0.1.0"', '"0.2.0"').replace('RELEASES = ("0.1",)', 'RELEASES = ("0.1", "0.2")'))
    return Releases(
        *(make_environment(module_folder / name, wheel, python=Path(sys.base_prefix)) for name, wheel in
          [("old", old), ("new", new)])
    )  # fmt: skip


def old_tree(folder: Path) -> Path:
    """The sources of the old release."""
    if not EARLIER_COMMIT:
        return ROOT
    return archived_tree(folder / "old-tree", EARLIER_COMMIT)


class Running:
    """Three bookies, each run by whichever release, and clients of either."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder = folder
        self.uri = uri
        self.base_port = free_neighbours(3)
        self.bookies: dict[int, BookieProcess] = {}

    def start(self, number: int, command: Path) -> None:
        directory = self.folder / f"bookie-{number}"
        options = ("--metadata", self.uri, "--port", self.base_port + number, "--bookie-id", f"b{number}")
        bookie = BookieProcess(directory, *options, command=(str(command),), OCTAVO_BOOKIE_LEASE_SECONDS=LEASE_SECONDS)
        self.bookies[number] = bookie.wait_ready()

    def stop(self, number: int, how: int = signal.SIGTERM) -> None:
        bookie = self.bookies.pop(number)
        status = bookie.stop(how)
        assert status == (0 if how == signal.SIGTERM else -how), bookie.stderr
        bookie.__exit__()

    def exchange(self, number: int, command: Path, how: int = signal.SIGTERM, *, meanwhile: Callable[[], None]) -> None:
        """Stop a bookie, and let the other release run it; ``meanwhile`` happens without it, and again with it."""
        self.stop(number, how)
        meanwhile()
        self.start(number, command)
        meanwhile()

    def ledgers(self) -> int:
        """How many ledgers there are."""

        async def count() -> int:
            async with await open_metadata_store(self.uri) as store:
                return len([ledger_id async for ledger_id in store.list_ledgers()])

        return asyncio.run(count())

    def exchange_ledgers(self, releases: Releases) -> None:
        """A client of each release writes a ledger, which clients of both read, and the other release deletes."""
        for writer, other in [(releases.old, releases.new), (releases.new, releases.old)]:
            lines = f"written by {writer}\n".encode() * 100
            ledger = self.json(writer, "ledger", "append", stdin=lines)["ledger_id"]
            for reader in (writer, other):
                assert self.run(reader, "ledger", "read", ledger).stdout == lines
                assert self.json(reader, "ledger", "show", ledger)["last_entry_id"] == 99
            assert self.run(other, "ledger", "delete", ledger).returncode == 0
            assert "does not exist" in self.refused(writer, "ledger", "read", ledger)

    def close(self) -> None:
        for bookie in self.bookies.values():
            bookie.__exit__()

    def run(self, command: Path, *arguments: object, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            [str(command), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=environment(OCTAVO_METADATA=self.uri),
            timeout=WAIT_SECONDS,
            check=False,
        )

    def json(self, command: Path, *arguments: object, stdin: bytes = b"") -> Any:
        done = self.run(command, *arguments, "--json", stdin=stdin)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def refused(self, command: Path, *arguments: object) -> str:
        """The one line with which a command fails."""
        done = self.run(command, *arguments)
        lines = done.stderr.decode().splitlines()
        assert (done.returncode, len(lines)) == (1, 1), done
        return lines[0]


@pytest.fixture(params=["sqlite", "zookeeper"] if LONG_ROUNDS else ["sqlite"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    uri = f"sqlite:///{tmp_path}/metadata.db" if request.param == "sqlite" else new_cluster_uri()
    running = Running(tmp_path, uri)
    yield running
    running.close()


def test_bookies_are_upgraded_one_by_one_under_load_and_back_until_the_upgrade_is_finalized(
    cluster: Running, releases: Releases
) -> None:
    old, new = releases
    for number, command in enumerate([old, old, new]):
        cluster.start(number, command)
    kept = cluster.json(old, "ledger", "append", stdin=b"kept\n" * 100)["ledger_id"]
    cluster.json(old, "log", "create", "orders")
    load = subprocess.Popen(
        [str(old), "log", "append", "orders", "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(OCTAVO_METADATA=cluster.uri),
    )
    assert load.stdin is not None
    lines = 0

    def add_lines() -> None:
        nonlocal lines
        assert load.stdin is not None
        assert load.poll() is None, load.communicate()
        load.stdin.write(b"".join(b"line %d\n" % number for number in range(lines, lines + 500)))
        load.stdin.flush()
        lines += 500

    add_lines()
    wait_until(lambda: cluster.ledgers() == 2, "the first segment of the log")
    for number in range(LONG_ROUNDS):
        cluster.exchange_ledgers(releases)
        for command in (new, old):
            for bookie in range(3):
                how = signal.SIGKILL if (number + bookie) % 2 else signal.SIGTERM
                cluster.exchange(bookie, command, how, meanwhile=add_lines)
            cluster.exchange_ledgers(releases)
    # Back to the old release, as nothing has been finalized.
    cluster.exchange(2, old, meanwhile=add_lines)
    for number, how in [(0, signal.SIGTERM), (1, signal.SIGKILL), (2, signal.SIGTERM)]:
        cluster.exchange(number, new, how, meanwhile=add_lines)
        if number == 0:
            assert "b1 (0.1)" in cluster.refused(new, "cluster", "finalize", "0.2")
    _, errors = load.communicate(timeout=WAIT_SECONDS)
    assert load.returncode == 0, errors
    expected = b"".join(b"line %d\n" % number for number in range(lines))
    assert cluster.run(new, "log", "read", "orders").stdout == expected
    assert cluster.run(new, "ledger", "read", kept).stdout == b"kept\n" * 100
    assert "does not know a release 0.2" in cluster.refused(old, "cluster", "finalize", "0.2")
    status = cluster.json(new, "cluster", "status")
    assert any("octavo cluster finalize 0.2" in finding["text"] for finding in status["findings"])
    assert cluster.json(new, "cluster", "finalize", "0.2") == {"release": "0.2", "before": "0.1", "changed": True}
    assert "cannot go back" in cluster.refused(new, "cluster", "finalize", "0.1")
    status = cluster.json(new, "cluster", "status")
    assert (status["release"], status["health"], status["findings"]) == ("0.2", "is healthy", [])
    cluster.stop(2)
    refused = subprocess.run(
        [str(old), "bookie", "--data-dir", str(cluster.folder / "bookie-2"), "--metadata", cluster.uri, "--port", "0"],
        capture_output=True,
        env=environment(),
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert refused.returncode == 78, refused
    assert re.search(r"finalized at release 0\.2, whose formats release 0\.1 does not", refused.stderr.decode())
    assert cluster.run(old, "log", "read", "orders").stdout == expected
