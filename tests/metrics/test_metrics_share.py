"""The measurement of what counting costs runs on the code as it is."""

import os
import re
import subprocess
import sys

from support.tree import ROOT
from support.waiting import WAIT_SECONDS

LINE = re.compile(r" *(?P<load>\S.*?)  -?[\d.]+% \(.*\) of (?P<time>[\d.]+) us: -?[\d.]+ us for each add; 1 pairs")


def test_the_share_of_counting_is_told_for_every_load() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "measure" / "metrics_share.py"), "--seconds", "0"]
    # Spark's tests keep their workers from importing out of the working folder; a script lives beside its modules.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=3 * WAIT_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = {
        match["load"]: float(match["time"]) for line in done.stdout.splitlines() if (match := LINE.fullmatch(line))
    }
    assert set(found) == {"100 B", "1 KiB", "lone"}
    assert found["lone"] > found["1 KiB"] > 0
