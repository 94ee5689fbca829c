"""docs/model.md shows a trace; it is the one that the model finds."""

from model.canaries import CANARIES
from model.explorer import explore
from model.world import World
from support.tree import ROOT


def test_trace_in_the_document_is_the_one_that_is_found() -> None:
    canary = next(canary for canary in CANARIES if canary.name == "recovery reads that do not fence")
    violation = explore(World(canary.broken)).violation
    assert f"```\n{violation}\n```" in (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
