"""Draw docs/package-log.svg: start a cluster, ingest the sample logs and run ``octavo pipeline loglines --plot``.

draw_package_log.py [OUTPUT]
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from local_cluster import Cluster

SAMPLES = Path(__file__).parents[1] / "sample"
OUTPUT = Path(__file__).parents[2] / "docs" / "package-log.svg"


def pipeline(uri: str, *arguments: object) -> None:
    """Run one command of ``octavo pipeline``. Raises :class:`subprocess.CalledProcessError` if it fails."""
    command = [sys.executable, "-P", "-m", "octavo.cli.main", "pipeline", *map(str, arguments)]
    subprocess.run(command, env={**os.environ, "OCTAVO_METADATA": uri, "PYTHONSAFEPATH": "1"}, check=True)


def main() -> int:
    """Draw the picture. Returns the exit status."""
    output = Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT
    with tempfile.TemporaryDirectory(prefix="octavo-draw-") as folder, Cluster(Path(folder) / "data") as cluster:
        uri = cluster.wait_for("ready")["metadata"]
        for sample in ("dpkg.log", "alternatives-crlf.log"):
            pipeline(uri, "ingest", SAMPLES / sample, "--dataset", "packages", "-A", 3)
        pipeline(uri, "loglines", "--dataset", "packages", "--plot", output)
        cluster.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
