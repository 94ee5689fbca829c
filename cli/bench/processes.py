"""Processor time and memory of the processes that a benchmark keeps busy: its own, and the bookies of ``octavo up``.

Bookies of a cluster that does not run on this machine, or not under ``octavo up``, cannot be seen: a benchmark then has
figures for its own process only.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.cli.running_cluster import observe
from octavo.cli.session import CommandError, Session, directory_of_cluster

CLIENT = "client"
"""The name of the benchmark's own process."""

_PROCESS_CLOCK = 2
"""The kind of a process's clock that counts processor time, in the lowest bits of a Linux clock id (CPUCLOCK_SCHED)."""


class Processes:
    """This process, and the bookies whose process ids are known, by name."""

    def __init__(self, bookies: Mapping[str, int]) -> None:
        self._ids = {CLIENT: os.getpid(), **bookies}

    @classmethod
    def of(cls, session: Session) -> "Processes":
        """This process, and the cluster's bookies if ``octavo up`` runs them on this machine."""
        directory = directory_of_cluster(session.metadata_uri)
        found = () if directory is None else observe(directory).bookies
        return cls({bookie["name"]: bookie["pid"] for bookie in found if bookie["pid"] is not None})

    @property
    def sees_bookies(self) -> bool:
        """Whether there is any bookie among them."""
        return len(self._ids) > 1

    def processor_seconds(self) -> dict[str, float]:
        """The processor time that each has used since it began. Raises :class:`CommandError` when one has ended."""
        return {name: self._ask(name, _processor_seconds) for name in self._ids}

    def anonymous_bytes(self) -> dict[str, int]:
        """The memory of each that is not a copy of a file. Raises :class:`CommandError` when one has ended."""
        return {name: int(self._ask(name, _anonymous_bytes)) for name in self._ids}

    def _ask(self, name: str, measure: Any) -> float:
        try:
            return float(measure(self._ids[name]))
        except OSError as error:
            raise CommandError(f"{name}, process {self._ids[name]}, ended while it was measured") from error


def _processor_seconds(process_id: int) -> float:
    # `/proc/ID/stat` counts in hundredths of a second: too coarse for what an idle process uses.
    return time.clock_gettime((~process_id << 3) | _PROCESS_CLOCK)


def _anonymous_bytes(process_id: int) -> int:
    for line in Path(f"/proc/{process_id}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(process_id)  # it has ended, and only its parent knows it still


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """How much each figure has grown between two looks."""
    return {name: after[name] - earlier for name, earlier in before.items()}


def processor_per_entry(spent: Mapping[str, float], entries: int) -> dict[str, float | None]:
    """Microseconds of processor time for one entry: of each process, and ``total`` of all; that is None where the
    bookies cannot be seen."""
    each = {name: round(1e6 * seconds / max(1, entries), 2) for name, seconds in spent.items()}
    return {**each, "total": round(sum(each.values()), 2) if len(each) > 1 else None}


def share_of_a_core(spent: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The share of a core that each process has used in this time; 1 is a whole core."""
    return {name: round(used / seconds, 5) for name, used in spent.items()}


def in_words(figures: Mapping[str, float | None], unit: str, *, scale: float = 1.0, digits: int = 1) -> str:
    """The figures of processes for a line of output."""
    return ", ".join(
        f"{name} {value * scale:,.{digits}f} {unit}" for name, value in figures.items() if value is not None
    )
