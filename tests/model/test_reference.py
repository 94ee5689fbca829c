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


def outcomes(
    writer: MakeWriter, sizes: tuple[int, int, int], *, entries: int, recoveries: int, breaks: int
) -> set[Outcome]:
    setting = live("outcomes", sizes, writer=writer, entries=entries, recoveries=recoveries, breaks=breaks)()
    world = Outcomes(setting)
    world.endings = set()
    found = explore(world)
    assert found.exhausted, str(found.violation)
    return world.endings


@pytest.mark.parametrize(
    ("sizes", "entries", "recoveries", "breaks"),
    [((2, 2, 1), 2, 1, 0), ((2, 2, 2), 1, 1, 1), ((3, 3, 2), 2, 0, 1), ((3, 2, 2), 1, 1, 0), ((2, 2, 1), 1, 2, 0)],
)
def test_pipeline_leads_to_what_the_reference_leads_to(
    sizes: tuple[int, int, int], entries: int, recoveries: int, breaks: int
) -> None:
    reference = outcomes(reference_writer, sizes, entries=entries, recoveries=recoveries, breaks=breaks)
    assert outcomes(pipeline_writer, sizes, entries=entries, recoveries=recoveries, breaks=breaks) == reference
    assert len(reference) > 1 or recoveries == 0, "the setting lets things end in more than one way"
