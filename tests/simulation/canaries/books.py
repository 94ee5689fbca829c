"""Canaries in logs with full copies."""

from typing import Any

from octavo.client.recover.takeover import Takeover
from octavo.client.write.copies.full_copies import FullCopiesPipeline
from octavo.client.write.pipeline import Pipeline
from octavo.metadata.ledger.debts import NO_DEBT
from simulation.engine.patches import Patch, patch


def takeovers_owe_nothing() -> list[Patch]:
    @patch(Takeover, "on_asked")
    def on_asked(original: Any, self: Any, debts: Any) -> None:
        original(self, tuple((first, NO_DEBT) for first, _ in debts))

    return [on_asked]


def required_copies_are_not_waited_for() -> list[Patch]:
    @patch(Pipeline, "debt")
    def debt(_original: Any, _self: Any) -> Any:
        return NO_DEBT

    return [Patch(FullCopiesPipeline, "is_full", property(lambda _self: True)), debt]
