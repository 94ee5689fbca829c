"""What the real machines may lead to is what the specifications may lead to.

Changes of the ensemble of (3, 3, 2) go as far as one entry in ``make test``, and as far as two in smaller ensembles;
``make soak`` sets ``OCTAVO_LARGE_REFERENCE``, and they go as far as two there as well.
"""

import os
from typing import Any

import pytest
from model.engine.exchange import metadata_text
from model.engine.explorer import explore
from model.engine.states import State
from model.engine.world import World
from model.ledgers.settings import live, reference_recovery, reference_writer

type Outcome = tuple[str, int]
"""How the ledger ended, and the last entry acknowledged to the writer's caller."""


class Outcomes(World):
    """A world that remembers how it ends."""

    def stuck(self, state: State) -> str | None:
        self.endings.add((metadata_text(self.metadata[state[0]]), self.clients[state[2][0]].acknowledged))
        return super().stuck(state)

    endings: set[Outcome]


def outcomes(sizes: tuple[int, int, int], setting: dict[str, Any], *, specified: bool) -> set[Outcome]:
    """Every way in which a setting can end, with the real machines or with the specifications."""
    if specified:
        make = live("specified", sizes, writer=reference_writer, recovery=reference_recovery, **setting)
    else:
        make = live("real", sizes, **setting)
    world = Outcomes(make())
    world.endings = set()
    found = explore(world)
    assert found.exhausted, str(found.violation)
    return world.endings


ENTRIES_CHANGED = 2 if os.environ.get("OCTAVO_LARGE_REFERENCE") else 1


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [
        ((2, 2, 1), {"entries": 2, "recoveries": 1}),
        ((2, 2, 1), {"entries": 1, "recoveries": 2}),
        ((2, 1, 1), {"entries": 2, "recoveries": 1}),
        ((3, 3, 2), {"entries": ENTRIES_CHANGED, "recoveries": 0, "spares": 1, "breaks": 1}),
        ((3, 2, 2), {"entries": 2, "recoveries": 0, "spares": 1, "breaks": 1}),
        ((2, 2, 1), {"entries": 2, "recoveries": 0, "spares": 1, "breaks": 1}),
        ((2, 2, 2), {"entries": 1, "recoveries": 1, "spares": 1, "breaks": 1}),
    ],
)
def test_machines_lead_to_what_the_specifications_lead_to(sizes: tuple[int, int, int], setting: dict[str, Any]) -> None:
    specified, found = outcomes(sizes, setting, specified=True), outcomes(sizes, setting, specified=False)
    assert found <= specified
    assert found == specified or "spares" in setting, "only to change the ensemble for nothing is left out"
    assert len(found) > 1, "the setting lets things end in more than one way"
