"""The commands of ``octavo pipeline`` for spark-submit: ``spark-submit [--master ...] pipeline_submit.py verify ...``.

``octavo pipeline script`` prints this file's path.
"""

import sys

from octavo.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["pipeline", *sys.argv[1:]]))
