"""An idempotent producer in every order of events: no batch is lost, doubled or reordered (rules K2, K4 and K5)."""

from collections.abc import Iterable

import pytest
from model.engine.explorer import explore
from model.gateway.world import ProduceWorld
from octavo.gateway.records.appends import Appends
from octavo.gateway.records.batch import BatchHeader
from octavo.gateway.records.producers import WINDOW, Producers, Repeat

TAKEOVERS = ProduceWorld("3 batches, a snapshot, 2 takeovers", ((2, 1, 1),), takeovers=2, snapshots=1, refusals=1)
EPOCHS = ProduceWorld("2 epochs of 2 batches, a takeover", ((1, 2), (1, 1)), takeovers=1, snapshots=1)
WINDOWS = ProduceWorld("6 batches in order, a takeover", ((1,) * (WINDOW + 1),), takeovers=1, in_order=True)


class WithoutEpochs(Producers):
    """Takes each batch for one of the producer's latest epoch."""

    def judge(self, batch: BatchHeader) -> Repeat | None:
        known = dict(self).get(batch.producer_id)
        latest = batch.producer_epoch if known is None else max(known.last.epoch, batch.producer_epoch)
        return super().judge(batch._replace(producer_epoch=latest))


class WindowOfFour(Producers):
    """Remembers one batch too few."""

    window = WINDOW - 1


class BelievesEverySequence(Producers):
    """Takes the first batch of any producer for its first."""

    def __init__(self) -> None:
        super().__init__(forgotten_below=2**63)


class AnswersEarly(Appends):
    """Answers a repeat before the first is durable."""

    def judge(self, batch: BatchHeader) -> Repeat | None:
        repeat = super().judge(batch)
        return None if repeat is None else repeat._replace(is_acknowledged=True)


@pytest.mark.parametrize("world", [TAKEOVERS, EPOCHS, WINDOWS], ids=lambda world: world.name)
def test_nothing_is_lost_doubled_or_reordered_in_any_order(world: ProduceWorld) -> None:
    found = explore(world)
    assert found.violation is None, str(found.violation)
    assert found.exhausted
    assert found.states > 500


CANARIES: Iterable[tuple[str, ProduceWorld, str]] = (
    ("a snapshot that is too old", TAKEOVERS.with_defects(skips_after_snapshot=1), "producers"),
    ("a repeat is answered before the first is durable", TAKEOVERS.with_defects(appends=AnswersEarly), "lost"),
    ("epochs are not compared", EPOCHS.with_defects(producers=WithoutEpochs), "invariant"),
    ("a window of four", WINDOWS.with_defects(producers=WindowOfFour), "refused"),
    ("state is kept of a batch that was refused", TAKEOVERS.with_defects(keeps_what_was_refused=True), "producers"),
    (
        "state is taken from a batch that is not in the log",
        TAKEOVERS.with_defects(snapshot_has_what_is_under_way=True),
        "producers",
    ),
    ("any first sequence is believed", TAKEOVERS.with_defects(producers=BelievesEverySequence), "order"),
    (
        "offsets go on behind what the old leader handed over",
        TAKEOVERS.with_defects(goes_on_behind_what_was_handed_over=True),
        "offsets",
    ),
)


@pytest.mark.parametrize(("world", "promise"), [row[1:] for row in CANARIES], ids=[row[0] for row in CANARIES])
def test_a_defect_breaks_a_promise(world: ProduceWorld, promise: str) -> None:
    found = explore(world)
    assert found.violation is not None
    assert found.violation.what.startswith(promise), str(found.violation)
