"""The baseline of docs/performance.md runs, and does what it is compared for."""

import subprocess
import sys
from pathlib import Path

from support.commands.processes import stop_process
from support.tree import ROOT
from support.waiting import WAIT_SECONDS

sys.path.insert(0, str(ROOT / "scripts"))

from compare_yardstick import YARDSTICK, Case, free_ports, measure_yardstick_case, wait_listening


def test_the_yardstick_is_measured_with_every_entry_on_two_of_three_journals(tmp_path: Path) -> None:
    entries = 2_000
    assert measure_yardstick_case(tmp_path, Case("small", entries, 100, 50, latency=False)) > 0
    journals = sorted(tmp_path.glob("journal-*"))
    assert len(journals) == 3
    # The third may still have been writing the last frames when it was stopped.
    assert sum(journal.stat().st_size >= entries * 100 for journal in journals) >= 2


def test_the_yardstick_goes_on_without_one_of_three_bookies(tmp_path: Path) -> None:
    ports = free_ports(3)
    bookies = [subprocess.Popen([sys.executable, YARDSTICK, "bookie", str(port), tmp_path]) for port in ports]
    try:
        for port in ports:
            wait_listening(port)
        stop_process(bookies[0].pid)  # the kernel still accepts its connections
        command = [sys.executable, str(YARDSTICK), "client", ",".join(map(str, ports))]
        sizes = ["--entries", "100", "--entry-bytes", "10", "--in-flight", "1"]
        subprocess.run([*command, *sizes], check=True, stdout=subprocess.DEVNULL, timeout=WAIT_SECONDS)
    finally:
        for bookie in bookies:
            bookie.kill()
            bookie.wait()
