"""scripts/compare_gateway.py: what it concludes from the rounds, and which processes it watches."""

import subprocess
import sys

from support.tree import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from compare_gateway import LOADS, children, memory_megabytes, table

MEASURED = {
    ("kcat", "messages/s"): {"gateway": [100.0, 400.0, 200.0], "kafka-synced": [50.0, 400.0, 50.0]},
    ("memory", "idle MB"): {"gateway": [60.0, 61.0, 62.0], "kafka-synced": [610.0, 610.0, 610.0]},
}


def test_medians_stand_beside_the_median_of_the_ratios() -> None:
    assert table(MEASURED, ["gateway", "kafka-synced"]).splitlines() == [
        "| load | figure | gateway | kafka-synced | ratio |",
        "|---|---|---|---|---|",
        "| kcat | messages/s | 200.00 | 50.00 | 2.00 |",
        "| memory | idle MB | 61.00 | 610.00 | 0.10 |",
    ]


def test_one_system_has_no_ratio() -> None:
    assert table(MEASURED, ["gateway"]).splitlines()[:3] == [
        "| load | figure | gateway |",
        "|---|---|---|",
        "| kcat | messages/s | 200.00 |",
    ]


def test_children_are_found_and_their_memory_told() -> None:
    command = [sys.executable, "-c", "import subprocess, sys; child = subprocess.Popen(['cat'], stdin=0);"
               "print(child.pid, flush=True); child.wait()"]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert children(process.pid) == (child,)
        assert 0 < memory_megabytes(process.pid, "VmRSS") <= memory_megabytes(process.pid, "VmHWM")


def test_the_loads_of_others_are_among_the_loads() -> None:
    assert {"kcat, 100 B", "perf-test, 1 KiB", "1,000 partitions, 100 B"} <= set(LOADS)
