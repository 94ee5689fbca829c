"""Commands of gateways where Octavo is installed without its extra `kafka`."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
sys.modules["kio"] = None
from octavo.cli.main import main
uri, *commands = sys.argv[1:]
for command in commands:
    sys.argv = ["octavo", *command.split(), "--metadata", uri]
    try:
        status = main()
    except SystemExit as ended:
        status = ended.code
    print(status, file=sys.stderr)
"""

GATEWAYS = ["gateway", "group list", "group show billing", "group reset billing --to end", "group delete billing --yes"]
TOPICS = ["topic list", "topic show orders", "topic create orders", "topic alter orders --set retention.ms=1"]


def test_a_command_says_which_extra_it_needs_or_does_without(tmp_path: Path) -> None:
    """Topics are in the metadata store, so commands about them need no package of Kafka's protocol."""
    uri = f"sqlite:///{tmp_path / 'metadata.db'}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, uri, *GATEWAYS, *TOPICS], capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    needs = "octavo: this command needs kio: install Octavo with its extra `kafka` (octavo[kafka])"
    assert lines[: 2 * len(GATEWAYS)] == [needs, "1"] * len(GATEWAYS)
    others = lines[2 * len(GATEWAYS) :]
    assert len(others) == 2 * len(TOPICS)
    assert all("there is no metadata store" in line for line in others[::2])
