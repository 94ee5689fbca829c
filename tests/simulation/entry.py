"""The entry point of the processes in which tests run the simulator (``tests/support/commands/simulator.py``)."""

import sys

import simulate


def main() -> int:
    """Run ``scripts/simulate.py`` with the arguments of this process, or the program that follows ``-c``."""
    if sys.argv[1:2] == ["-c"]:
        exec(sys.argv[2], {"__name__": "__main__"})
        return 0
    return simulate.main()
