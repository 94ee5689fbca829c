"""The record of a campaign: one line of JSON for each seed, so that a campaign can be interrupted and resumed.

A line has the seed, the settings of the plan (none: as the seed draws it), the other options (such as the only faults
that strike), the commit of the code that ran it, the failure (null: none), the virtual seconds, and the counters. Seeds
in the record are not run again; the report covers all lines. All lines have the same settings and options: a record of
others is refused.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from simulation.universe import Outcome


class Record:
    """A campaign's record in a file, used by one process at a time."""

    def __init__(self, path: Path, commit: str, settings: Mapping[str, int], options: Sequence[str] = ()) -> None:
        """``settings``: field of the plan -> value; ``options``: those of the command besides. Both are the same for
        every seed."""
        self._path = path
        self._commit = commit
        self._settings = dict(settings)
        self._options = list(options)

    def outcomes(self) -> Iterator[tuple[str, Outcome]]:
        """The commit and the outcome of every seed in the record. Raises :class:`ValueError` for a damaged line and for
        one of a campaign with other settings."""
        if not self._path.exists():
            return
        with self._path.open() as lines:
            for number, line in enumerate(lines, 1):
                try:
                    fields = json.loads(line)
                except ValueError:
                    raise ValueError(f"{self._path}, line {number}: not a record of a seed; remove the line") from None
                settings, options = fields.get("settings", {}), fields.get("options", [])
                if (settings, sorted(options)) != (self._settings, sorted(self._options)):
                    raise ValueError(
                        f"{self._path}, line {number}: of a campaign with {_words(settings, options)}, not with "
                        f"{_words(self._settings, self._options)}; give another file"
                    )
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
            "settings": self._settings,
            "options": self._options,
            "commit": self._commit,
            "hash": outcome.hash,
            "failure": outcome.failure,
            "virtual_seconds": outcome.virtual_seconds,
            "steps": outcome.steps,
            "counters": {name: number for name, number in outcome.counters.items() if number},
        }
        with self._path.open("a") as file:
            file.write(json.dumps(fields) + "\n")


def _words(settings: Mapping[str, int], options: Sequence[str]) -> str:
    words = [*(f"--set {name}={value}" for name, value in sorted(settings.items())), *sorted(options)]
    return " ".join(words) or "no settings"
