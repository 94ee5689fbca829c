"""The record of a campaign: one line of JSON for each seed, so that a campaign can be interrupted and resumed.

A line has the seed, the commit of the code that ran it, the failure (null: none), the virtual seconds, and the
counters. Seeds in the record are not run again; the report covers all lines.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from simulation.universe import Outcome


class Record:
    """A campaign's record in a file, used by one process at a time."""

    def __init__(self, path: Path, commit: str) -> None:
        self._path = path
        self._commit = commit

    def outcomes(self) -> Iterator[tuple[str, Outcome]]:
        """The commit and the outcome of every seed in the record. Raises :class:`ValueError` for a damaged line."""
        if not self._path.exists():
            return
        with self._path.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    fields = json.loads(line)
                except ValueError:
                    raise ValueError(f"{self._path}, line {number}: not a record of a seed; remove the line") from None
                outcome = Outcome(
                    seed=fields["seed"],
                    hash=fields["hash"],
                    failure=fields["failure"],
                    virtual_seconds=fields["virtual_seconds"],
                    steps=fields["steps"],
                    counters=Counter(fields["counters"]),
                )
                yield fields["commit"], outcome

    def add(self, outcome: Outcome) -> None:
        """Append an outcome."""
        fields = {
            "seed": outcome.seed,
            "commit": self._commit,
            "hash": outcome.hash,
            "failure": outcome.failure,
            "virtual_seconds": outcome.virtual_seconds,
            "steps": outcome.steps,
            "counters": {name: number for name, number in outcome.counters.items() if number},
        }
        with self._path.open("a") as file:
            file.write(json.dumps(fields) + "\n")
