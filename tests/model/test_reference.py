"""What the real machines may lead to is what the specifications may lead to."""

import pytest
from model.exchange import metadata_text
from model.explorer import explore
from model.settings import MakeWriter, live, pipeline_writer, reference_writer
from model.states import State
from model.world import World

type Outcome = tuple[str, int]
"""How the ledger ended, and the last entry that the writer's caller was told is acknowledged."""


class Outcomes(World):
    """A world that remembers how it ends."""

    def stuck(self, state: State) -> str | None:
        self.endings.add((metadata_text(self.metadata[state[0]]), self.clients[state[2][0]].acknowledged))
        return super().stuck(state)

    endings: set[Outcome]


def outcomes(writer: MakeWriter, sizes: tuple[int, int, int], **setting: int) -> set[Outcome]:
    world = Outcomes(live("outcomes", sizes, writer=writer, **setting)())
    world.endings = set()
    found = explore(world)
    assert found.exhausted, str(found.violation)
    return world.endings


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [
        ((2, 2, 1), {"entries": 2, "recoveries": 1}),
        ((2, 2, 1), {"entries": 1, "recoveries": 2}),
        ((3, 2, 2), {"entries": 1, "recoveries": 1}),
        ((3, 3, 2), {"entries": 2, "recoveries": 0, "spares": 1, "breaks": 1}),
        ((2, 2, 2), {"entries": 1, "recoveries": 1, "spares": 1, "breaks": 1}),
    ],
)
def test_writer_leads_to_what_the_reference_leads_to(sizes: tuple[int, int, int], setting: dict[str, int]) -> None:
    reference = outcomes(reference_writer, sizes, **setting)
    found = outcomes(pipeline_writer, sizes, **setting)
    assert found <= reference
    assert found == reference or "spares" in setting, "only to change the ensemble for nothing is left out"
    assert len(reference) > 1, "the setting lets things end in more than one way"
