"""Rules broken on purpose, one at a time: each must be found (docs/rules.md, canaries).

A canary is a setting and the same setting with one rule broken, in the harness only: a bookie, a writer or a recovery
with one method changed. The broken one must break a promise, the other one must be exhausted without; so the
promises, the faults and the bounds of the setting are all shown to be sharp enough for that rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from model.engine.sealing import PAYLOADS, metadata, sealed
from model.engine.setting import Placement, Setting
from model.ledgers.bookie import Bookie, BookieState
from model.ledgers.broken_bookies import (
    AnswersBeforeItFences,
    AnswersBeforeTheSync,
    DeniesWhatIsDamaged,
    DeniesWhatItLost,
    ForgetsItsFence,
    LetsQueuedAddsThrough,
    ShowsEverything,
    TrustsWhatReplayFinds,
)
from model.ledgers.broken_clients import (
    AcknowledgesWhileChanging,
    CommitsEarly,
    CountsReplacedBookies,
    CoversOneShort,
    ReadsWithoutFence,
    SealsAgain,
    SealsLacsItself,
    StartsAtTheLac,
    TakesTruncatedForAbsent,
)
from model.ledgers.client import Client
from model.ledgers.deferred_writer import (
    AcknowledgesWhatIsAccepted,
    DeferredWriter,
    ForcesAcrossRestarts,
    TakesOverWhatAReplacedBookieHad,
    writer_with,
)
from model.ledgers.full_copies_writer import (
    ChangesBeforeTheCopy,
    CountsFromTheLac,
    FullCopiesWriter,
    OwesWhatTheReplacedLacks,
)
from model.ledgers.machine_recovery import MachineRecovery
from model.ledgers.pipeline_writer import PipelineWriter
from octavo.client.write.deferred.pipeline import DeferredPipeline
from octavo.metadata.ledger.debts import FullCopies
from octavo.protocol.quorums import Quorums


@dataclass(frozen=True)
class Canary:
    """One broken rule."""

    name: str
    """As the list of canaries in docs/rules.md has it."""
    promise: str
    """What must be found broken: a violation begins with it."""
    make: Callable[[bool], Setting]
    """The setting; True: with the rule broken."""

    @property
    def healthy(self) -> Setting:
        """The setting with every rule kept."""
        return self.make(False)

    @property
    def broken(self) -> Setting:
        """The setting with the rule broken."""
        return self.make(True)


ONE, TWO_ACK_ONE, TWO, THREE = Quorums(1, 1, 1), Quorums(2, 2, 1), Quorums(2, 2, 2), Quorums(3, 3, 2)


def bookies(
    kind: type[Bookie], quorums: Quorums, *, entries: int = 1, recovers: bool, **budget: int
) -> Callable[[bool], Setting]:
    """A writer, maybe a recovery, and bookies of a kind when the rule is broken."""
    syncs = bool({"power_cuts", "kills"} & set(budget))

    def make(broken: bool) -> Setting:
        def clients(placement: Placement) -> Sequence[Client]:
            writer = PipelineWriter(placement.metadata, bookies=quorums.ensemble_size, entries=entries)
            recovery = MachineRecovery(
                quorums, bookies=quorums.ensemble_size, horizon=entries, reads_at_once=True, index=1
            )
            return [writer, recovery] if recovers else [writer]

        return Setting(
            f"bookies, {kind.__name__}",
            quorums,
            quorums.ensemble_size,
            lambda: [Placement(metadata(quorums), (BookieState(),) * quorums.ensemble_size)],
            clients,
            PAYLOADS,
            budget={name.replace("_", " "): times for name, times in budget.items()},
            bookie=(kind if broken else Bookie)(syncs=syncs),
            interchangeable_clients=((0,), (1,)) if recovers else ((0,),),
        )

    return make


def writers(
    kind: type[PipelineWriter], quorums: Quorums, *, spares: int, entries: int, recovers: bool, breaks: int
) -> Callable[[bool], Setting]:
    """A writer, of a kind when the rule is broken, maybe with spares, and maybe a recovery."""
    count = quorums.ensemble_size + spares

    def make(broken: bool) -> Setting:
        def clients(placement: Placement) -> Sequence[Client]:
            writer = (kind if broken else PipelineWriter)(placement.metadata, bookies=count, entries=entries)
            recovery = MachineRecovery(quorums, bookies=count, horizon=entries, index=1)
            return [writer, recovery] if recovers else [writer]

        return Setting(
            f"writers, {kind.__name__}",
            quorums,
            count,
            lambda: [Placement(metadata(quorums), (BookieState(),) * count)],
            clients,
            PAYLOADS,
            budget={"breaks": breaks},
            interchangeable_clients=((0,), (1,)) if recovers else ((0,),),
        )

    return make


def recoveries(
    kind: type[MachineRecovery],
    quorums: Quorums,
    holdings: Sequence[Sequence[int]],
    *,
    history: Sequence[tuple[int, str]] = (),
    acknowledged: int,
    count: int = 1,
    bookie: type[Bookie] = Bookie,
    **budget: int,
) -> Callable[[bool], Setting]:
    """Recoveries, of a kind when the rule is broken, after a writer that has left these ids on each bookie."""

    horizon = 1 + max(entry_id for ids in holdings for entry_id in ids)

    def make(broken: bool) -> Setting:
        placement = Placement(
            metadata(quorums, *history),
            tuple(BookieState(held=tuple(sealed(entry_id, -1) for entry_id in ids)) for ids in holdings),
            acknowledged=acknowledged,
        )
        recovery = kind if broken else MachineRecovery
        return Setting(
            f"recoveries, {kind.__name__}",
            quorums,
            len(holdings),
            lambda: [placement],
            lambda _: [recovery(quorums, bookies=len(holdings), horizon=horizon, index=at) for at in range(count)],
            PAYLOADS,
            budget=budget,
            bookie=(bookie if broken else Bookie)(syncs=False),
            interchangeable_clients=(tuple(range(count)),),
        )

    return make


def live(kind: type[MachineRecovery], quorums: Quorums) -> Callable[[bool], Setting]:
    """A recovery, of a kind when the rule is broken, while the writer is at work."""

    def make(broken: bool) -> Setting:
        count = quorums.ensemble_size

        def clients(placement: Placement) -> Sequence[Client]:
            writer = PipelineWriter(placement.metadata, bookies=count, entries=1)
            return [
                writer,
                (kind if broken else MachineRecovery)(quorums, bookies=count, horizon=1, reads_at_once=True, index=1),
            ]

        return Setting(
            f"live, {kind.__name__}",
            quorums,
            count,
            lambda: [Placement(metadata(quorums), (BookieState(),) * count)],
            clients,
            PAYLOADS,
            interchangeable_clients=((0,), (1,)),
        )

    return make


def deferred(
    kind: type[DeferredPipeline], quorums: Quorums, *, spares: int = 0, **budget: int
) -> Callable[[bool], Setting]:
    """A writer with deferred sync, whose pipeline is of a kind when the rule is broken."""
    count = quorums.ensemble_size + spares

    def make(broken: bool) -> Setting:
        writer = writer_with(kind) if broken else DeferredWriter
        return Setting(
            f"deferred, {kind.__name__}",
            quorums,
            count,
            lambda: [Placement(metadata(quorums), (BookieState(),) * count)],
            lambda placement: [writer(placement.metadata, bookies=count, entries=1)],
            PAYLOADS,
            budget={name.replace("_", " "): times for name, times in budget.items()},
            bookie=Bookie(syncs=True, counts_boots=True),
        )

    return make


def full_copies(
    kind: type[FullCopiesWriter], quorums: Quorums, *, kept: FullCopies, entries: int, breaks: int
) -> Callable[[bool], Setting]:
    """A writer with full copies, and a spare; of a kind when the rule is broken."""
    count = quorums.ensemble_size + 1
    books = replace(metadata(quorums), full_copies=kept)

    def make(broken: bool) -> Setting:
        writer = kind if broken else FullCopiesWriter
        return Setting(
            f"full copies, {kind.__name__}",
            quorums,
            count,
            lambda: [Placement(books, (BookieState(),) * count)],
            lambda placement: [writer(placement.metadata, bookies=count, entries=entries)],
            PAYLOADS,
            budget={"breaks": breaks},
        )

    return make


CANARIES = (
    Canary(
        "recovery reads that do not fence",
        "I2, I7",
        live(ReadsWithoutFence, THREE),
    ),
    Canary(
        "recovery starting below the last fragment",
        "I6",
        recoveries(StartsAtTheLac, TWO, [(0,), (0,), ()], history=((0, "ab"), (1, "ac")), acknowledged=0),
    ),
    Canary(
        'a wiped bookie answering "absent"',
        "I2, I7",
        recoveries(MachineRecovery, TWO, [(0,), (0,)], acknowledged=0, bookie=DeniesWhatItLost, wipes=1),
    ),
    Canary(
        'corruption answered as "absent"',
        "I2, I7",
        recoveries(MachineRecovery, TWO, [(0,), (0,)], acknowledged=0, bookie=DeniesWhatIsDamaged, damages=1),
    ),
    Canary(
        'a truncated answer taken as "absent"',
        "I2, I7",
        recoveries(TakesTruncatedForAbsent, TWO, [(0, 1), (0, 1)], acknowledged=1, cuts=1),
    ),
    Canary(
        "acknowledging before the sync", "I1", bookies(AnswersBeforeTheSync, TWO_ACK_ONE, recovers=False, power_cuts=1)
    ),
    Canary(
        "acknowledging during an ensemble change",
        "I1",
        writers(AcknowledgesWhileChanging, TWO, spares=1, entries=2, recovers=False, breaks=1),
    ),
    Canary(
        "re-sealing on resend", "I3", writers(SealsAgain, TWO_ACK_ONE, spares=0, entries=2, recovers=False, breaks=1)
    ),
    Canary(
        "a recoverer publishing a LAC of its own",
        "I3",
        recoveries(SealsLacsItself, TWO, [(0, 1), (0,), ()], acknowledged=0, breaks=1),
    ),
    Canary(
        "coverage off by one for Qw > Qa", "I2, I7", recoveries(CoversOneShort, THREE, [(0,), (0,), ()], acknowledged=0)
    ),
    Canary(
        "confirmations of a replaced bookie still counted",
        "I1",
        writers(CountsReplacedBookies, TWO, spares=1, entries=2, recovers=False, breaks=1),
    ),
    Canary(
        "committing recovery's ensemble changes early",
        "I1",
        recoveries(CommitsEarly, TWO, [(0,), (0,), ()], acknowledged=0, count=2, breaks=1),
    ),
    Canary("a fence not made durable", "I2, I7", bookies(ForgetsItsFence, ONE, recovers=True, power_cuts=1)),
    Canary(
        "a fencing lookup computed before the fence", "I2, I7", bookies(AnswersBeforeItFences, THREE, recovers=True)
    ),
    Canary("adds queued behind a fence let through", "I2, I7", bookies(LetsQueuedAddsThrough, ONE, recovers=True)),
    Canary(
        "unsynced replayed data trusted",
        "I1",
        bookies(TrustsWhatReplayFinds, TWO_ACK_ONE, recovers=False, kills=1, breaks=1),
    ),
    Canary("a force counted for another process", "I1", deferred(ForcesAcrossRestarts, TWO_ACK_ONE, power_cuts=1)),
    Canary("the LAC moved for what is only accepted", "I1", deferred(AcknowledgesWhatIsAccepted, TWO_ACK_ONE)),
    Canary(
        "what a replaced bookie had accepted taken for its successor's",
        "I1",
        deferred(TakesOverWhatAReplacedBookieHad, TWO, spares=1, breaks=1),
    ),
    Canary(
        "the LAFR counted from the LAC",
        "I9",
        full_copies(CountsFromTheLac, TWO_ACK_ONE, kept=FullCopies.REQUIRED, entries=1, breaks=1),
    ),
    Canary(
        "an ensemble changed before the joiner has the copies",
        "I1",
        full_copies(ChangesBeforeTheCopy, TWO_ACK_ONE, kept=FullCopies.REQUIRED, entries=2, breaks=1),
    ),
    Canary(
        "only what the replaced bookie lacks owed",
        "I9",
        full_copies(OwesWhatTheReplacedLacks, TWO_ACK_ONE, kept=FullCopies.RECORDED, entries=2, breaks=1),
    ),
    Canary("ordinary reads above the LAC", "I3", bookies(ShowsEverything, TWO, entries=2, recovers=False)),
)
