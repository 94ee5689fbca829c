"""Canaries: known defects, put back on purpose, in this harness only. A simulator that does not find them is blind.

Each canary is a patch of the code under test that breaks one rule of PROTOCOL.md in the way in which real systems have
broken it. The ordinary checkers under ordinary settings must find it; the same seeds pass without it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Canary:
    """A defect. ``patches`` gives what to replace: owner, attribute, and what makes the replacement of the original."""

    text: str
    rule: str
    """The rule of PROTOCOL.md that it breaks."""
    patches: Callable[[], list[tuple[Any, str, Any]]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The code under test has the defect inside the block."""
        replaced = []
        try:
            for owner, name, replacement in self.patches():
                # From the owner's own dictionary: a class method or static method must come back as it was.
                replaced.append((owner, name, vars(owner)[name]))
                setattr(owner, name, replacement)
            yield
        finally:
            for owner, name, original in reversed(replaced):
                setattr(owner, name, original)


CANARIES: dict[str, Canary] = {}
