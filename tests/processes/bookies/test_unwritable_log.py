"""A bookie whose own log cannot be written goes on, obeys, and ends when its disk fails (rule B11)."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands.processes import OCTAVO, BookieProcess, environment, octavo
from support.disks import failing_disk

ONE = ("-E", 1, "-W", 1, "-A", 1)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where a bookie may be started whose standard error is on a full disk."""
    (tmp_path / "bookie.stderr").symlink_to("/dev/full")
    return tmp_path / "bookie"


def test_a_bookie_whose_log_cannot_be_written_serves_and_obeys(directory: Path) -> None:
    uri = f"sqlite:///{directory.parent}/metadata.db"
    for _ in range(2):
        with BookieProcess(directory, "--port", 0, "--metadata", uri).wait_ready() as bookie:
            appended = octavo("ledger", "append", *ONE, "--json", "--metadata", uri, stdin=b"kept\n").json
            bookie.process.send_signal(signal.SIGHUP)
            for switch in ("on", "off"):
                assert octavo("bookie", "read-only", directory, switch).status == 0
            read = octavo("ledger", "read", appended["ledger_id"], "--metadata", uri)
            assert read.stdout == b"kept\n"
            assert bookie.stop() == 0


def test_a_bookie_whose_disk_fails_ends_although_its_log_cannot_be_written(directory: Path) -> None:
    """It lived on, refused everything, and said that it is healthy."""
    uri, trigger = f"sqlite:///{directory.parent}/metadata.db", directory.parent / "trigger"
    command = (sys.executable, "-P", str(Path(failing_disk.__file__)), str(trigger))
    with BookieProcess(directory, "--port", 0, "--metadata", uri, command=command).wait_ready() as bookie:
        octavo("ledger", "append", *ONE, "--metadata", uri, stdin=b"kept\n")
        trigger.write_text("sync")
        # It waits for the bookie to come back.
        append = [*OCTAVO, "ledger", "append", *map(str, ONE), "--metadata", uri]
        with subprocess.Popen(append, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()) as client:
            assert client.stdin is not None
            client.stdin.write(b"not kept\n")
            client.stdin.close()
            assert bookie.wait() == 1
            client.kill()
