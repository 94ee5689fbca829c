"""The settings that `make model` and the tests explore, and how far."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from model.engine import leftovers
from model.engine.explorer import Exploration, explore, walk
from model.engine.sealing import PAYLOADS, metadata
from model.engine.setting import Placement, Setting
from model.engine.world import World
from model.ledgers.bookie import Bookie, BookieState
from model.ledgers.client import Client
from model.ledgers.deferred_writer import DeferredWriter
from model.ledgers.full_copies_writer import FullCopiesWriter
from model.ledgers.machine_recovery import MachineRecovery
from model.ledgers.pipeline_writer import PipelineWriter
from model.ledgers.reference_recovery import ReferenceRecovery
from model.ledgers.reference_writer import ReferenceWriter
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.quorums import Quorums

LARGE: Final = 1_000_000
"""States after which exploration of a setting ends at the depth reached: some minutes and about a gigabyte."""


@dataclass(frozen=True)
class Job:
    """A setting, and how it is explored: exhaustively unless bounds or walks are given."""

    make: Callable[[], Setting]
    quick: bool = False
    """Whether it is part of ``make test``."""
    states_max: int | None = None
    walks: int = 0
    steps_max: int = 0
    longest: bool = False
    """Whether it decides how long a whole run takes: it begins before the others."""

    @property
    def name(self) -> str:
        """The setting's."""
        return self.make().name

    def run(self, seed: int = 0) -> Exploration:
        """Explore. ``seed`` is that of the walks."""
        world = World(self.make())
        if self.walks:
            return walk(world, seed=seed, walks=self.walks, steps_max=self.steps_max)
        return explore(world, states_max=self.states_max)

    def extent(self, exploration: Exploration) -> str:
        """How much of the setting was visited, in words."""
        if exploration.violation is not None:
            return "ended at a violation"
        if exploration.exhausted:
            return "exhausted"
        return f"{exploration.walks} walks" if self.walks else f"all up to depth {exploration.depth}"


def pipeline_writer(ledger: LedgerMetadata, *, bookies: int, entries: int, sends_lac: bool) -> Client:
    """The real machines."""
    return PipelineWriter(ledger, bookies=bookies, entries=entries, sends_lac=sends_lac)


def deferred_writer(ledger: LedgerMetadata, *, bookies: int, entries: int, sends_lac: bool) -> Client:
    """The real machines, with deferred sync; bookies must sync, and count their processes."""
    return DeferredWriter(ledger, bookies=bookies, entries=entries, sends_lac=sends_lac)


def bookkeeping_writer(kept: FullCopies) -> "MakeWriter":
    """The real machines, with full copies."""

    def make(ledger: LedgerMetadata, *, bookies: int, entries: int, sends_lac: bool) -> Client:
        books = replace(ledger, full_copies=kept)
        return FullCopiesWriter(books, bookies=bookies, entries=entries, sends_lac=sends_lac)

    return make


def reference_writer(ledger: LedgerMetadata, *, bookies: int, entries: int, sends_lac: bool) -> Client:
    """The specification, with ensemble changes if there are spares."""
    return ReferenceWriter(ledger, bookies=bookies, entries=entries, sends_lac=sends_lac)


class MakeWriter(Protocol):
    """One of the above."""

    def __call__(self, ledger: LedgerMetadata, *, bookies: int, entries: int, sends_lac: bool) -> Client: ...


def machine_recovery(quorums: Quorums, *, bookies: int, entries: int, reads_ahead: int | None, index: int) -> Client:
    """The real machines."""
    return MachineRecovery(quorums, bookies=bookies, horizon=entries, reads_ahead=reads_ahead, index=index)


def reference_recovery(quorums: Quorums, *, bookies: int, entries: int, reads_ahead: int | None, index: int) -> Client:
    """The specification."""
    return ReferenceRecovery(quorums, bookies=bookies, reads_ahead=reads_ahead or 1, index=index)


class MakeRecovery(Protocol):
    """One of the above."""

    def __call__(
        self, quorums: Quorums, *, bookies: int, entries: int, reads_ahead: int | None, index: int
    ) -> Client: ...


def live(
    what: str,
    sizes: tuple[int, int, int],
    *,
    writer: MakeWriter = pipeline_writer,
    kept: FullCopies | None = None,
    recovery: MakeRecovery = machine_recovery,
    spares: int = 0,
    entries: int,
    recoveries: int,
    reads_ahead: int | None = None,
    sends_lac: bool = False,
    syncs: bool = False,
    **budget: int,
) -> Callable[[], Setting]:
    """A live writer, and recoveries that begin at any moment."""
    quorums = Quorums(*sizes)
    bookies = quorums.ensemble_size + spares
    books = replace(metadata(quorums), full_copies=kept)

    def clients(placement: Placement) -> Sequence[Client]:
        return [
            writer(placement.metadata, bookies=bookies, entries=entries, sends_lac=sends_lac),
            *(
                recovery(quorums, bookies=bookies, entries=entries, reads_ahead=reads_ahead, index=1 + at)
                for at in range(recoveries)
            ),
        ]

    return lambda: Setting(
        f"E={sizes[0]} Qw={sizes[1]} Qa={sizes[2]}, {what}",
        quorums,
        bookies,
        lambda: [Placement(books, (BookieState(),) * bookies)],
        clients,
        PAYLOADS,
        budget={name.replace("_", " "): times for name, times in budget.items()},
        bookie=Bookie(syncs=syncs, counts_boots=writer is deferred_writer),
        interchangeable_clients=((0,), tuple(range(1, 1 + recoveries))),
        symmetric=not quorums.striped,
    )


def deferred(what: str, sizes: tuple[int, int, int], **given: Any) -> Callable[[], Setting]:
    """The same with a writer that defers syncs: bookies sync for themselves."""
    return live(what, sizes, writer=deferred_writer, syncs=True, **given)


def full_copies(kept: FullCopies, what: str, sizes: tuple[int, int, int], **given: Any) -> Callable[[], Setting]:
    """The same with a writer with full copies."""
    return live(f"{kept.value}: {what}", sizes, writer=bookkeeping_writer(kept), kept=kept, **given)


def left_behind(
    what: str,
    *,
    recovery: MakeRecovery = machine_recovery,
    entries: int,
    recoveries: int,
    reads_ahead: int | None = None,
    histories: Sequence[leftovers.History] = leftovers.HISTORIES,
    fences: bool = False,
    explicit_lacs: bool = False,
    late_adds: bool = False,
    **budget: int,
) -> Callable[[], Setting]:
    """Recoveries after a dead writer: of everything that it can leave behind (:mod:`model.engine.leftovers`)."""

    def clients(_: Placement) -> Sequence[Client]:
        return [
            recovery(leftovers.QUORUMS, bookies=leftovers.BOOKIES, entries=entries, reads_ahead=reads_ahead, index=at)
            for at in range(recoveries)
        ]

    return lambda: Setting(
        f"E=3 Qw=3 Qa=2, {what}",
        leftovers.QUORUMS,
        leftovers.BOOKIES,
        lambda: leftovers.placements(
            entries,
            histories=histories,
            fences=fences,
            explicit_lacs=explicit_lacs,
            late_adds=late_adds,
            replaced_are_asked=bool(budget),
        ),
        clients,
        PAYLOADS[:entries],
        budget=budget,
        interchangeable_clients=(tuple(range(recoveries)),),
    )


JOBS: tuple[Job, ...] = (
    Job(
        live(
            "writer of 2 entries and a LAC; 1 break, 1 lost metadata answer",
            (3, 3, 2),
            entries=2,
            recoveries=0,
            sends_lac=True,
            breaks=1,
            lost_settlements=1,
        ),
        quick=True,
    ),
    Job(
        live("writer of 1 entry, 1 spare; 2 breaks", (3, 3, 2), spares=1, entries=1, recoveries=0, breaks=2),
        quick=True,
    ),
    Job(live("writer of 1 entry, 1 recovery", (3, 3, 2), entries=1, recoveries=1), quick=True),
    Job(
        live(
            "writer of 1 entry, 1 spare, 1 recovery; 1 break",
            (2, 2, 2),
            spares=1,
            entries=1,
            recoveries=1,
            breaks=1,
        ),
        quick=True,
    ),
    Job(live("writer of 1 entry, 2 recoveries", (2, 2, 1), entries=1, recoveries=2), quick=True),
    Job(
        deferred(
            "deferred writer of 2 entries; 2 power cuts",
            (1, 1, 1),
            entries=2,
            recoveries=0,
            power_cuts=2,
        ),
        quick=True,
    ),
    Job(
        deferred(
            "deferred writer of 1 entry; 2 power cuts",
            (2, 2, 1),
            entries=1,
            recoveries=0,
            power_cuts=2,
        ),
        quick=True,
    ),
    Job(
        deferred(
            "deferred writer of 1 entry, 1 recovery; 2 power cuts",
            (1, 1, 1),
            entries=1,
            recoveries=1,
            power_cuts=2,
        ),
        quick=True,
    ),
    Job(
        deferred(
            "deferred writer of 1 entry, 1 spare; 1 break",
            (2, 2, 2),
            spares=1,
            entries=1,
            recoveries=0,
            breaks=1,
        ),
        quick=True,
    ),
    Job(
        deferred(
            "deferred writer of 1 entry, 1 recovery; 1 power cut",
            (2, 2, 1),
            entries=1,
            recoveries=1,
            power_cuts=1,
        )
    ),
    Job(
        deferred(
            "deferred writer of 2 entries, 1 recovery; 1 power cut",
            (1, 1, 1),
            entries=2,
            recoveries=1,
            power_cuts=1,
        )
    ),
    Job(
        deferred(
            "deferred writer of 1 entry; 3 power cuts",
            (3, 3, 2),
            entries=1,
            recoveries=0,
            power_cuts=3,
        )
    ),
    Job(
        deferred(
            "deferred writer of 1 entry, 1 spare; 1 break",
            (3, 3, 2),
            spares=1,
            entries=1,
            recoveries=0,
            breaks=1,
        ),
        quick=True,
    ),
    Job(
        deferred(
            "deferred writer of 1 entry, 1 recovery; 1 power cut",
            (3, 3, 2),
            entries=1,
            recoveries=1,
            power_cuts=1,
        ),
        states_max=LARGE,
    ),
    Job(
        deferred(
            "deferred writer of 1 entry, 1 spare; 1 power cut, 1 break",
            (2, 2, 2),
            spares=1,
            entries=1,
            recoveries=0,
            power_cuts=1,
            breaks=1,
        ),
        states_max=LARGE,
    ),
    Job(
        full_copies(
            FullCopies.REQUIRED,
            "writer of 1 entry, 1 spare; 2 breaks",
            (2, 2, 1),
            spares=1,
            entries=1,
            recoveries=0,
            breaks=2,
        ),
        quick=True,
    ),
    Job(
        full_copies(
            FullCopies.REQUIRED,
            "writer of 2 entries, 1 spare; 1 break",
            (2, 2, 1),
            spares=1,
            entries=2,
            recoveries=0,
            breaks=1,
        ),
        quick=True,
    ),
    Job(
        full_copies(
            FullCopies.REQUIRED,
            "writer of 1 entry, 1 spare, 1 recovery; 1 break",
            (2, 2, 1),
            spares=1,
            entries=1,
            recoveries=1,
            breaks=1,
        ),
        quick=True,
    ),
    Job(
        full_copies(
            FullCopies.RECORDED,
            "writer of 2 entries, 1 spare; 1 break",
            (2, 2, 1),
            spares=1,
            entries=2,
            recoveries=0,
            breaks=1,
        ),
        quick=True,
    ),
    Job(
        full_copies(
            FullCopies.REQUIRED,
            "writer of 1 entry, 1 spare, 1 recovery; 1 break",
            (3, 3, 2),
            spares=1,
            entries=1,
            recoveries=1,
            breaks=1,
        ),
    ),
    Job(
        left_behind("1 recovery after a writer of 1 entry, late adds", entries=1, recoveries=1, late_adds=True),
        quick=True,
    ),
    Job(
        live(
            "writer of 1 entry, 1 spare, 1 recovery; 1 break",
            (3, 3, 2),
            spares=1,
            entries=1,
            recoveries=1,
            breaks=1,
        )
    ),
    Job(
        live(
            "specification: writer of 1 entry, 1 spare, 1 recovery; 1 break",
            (3, 3, 2),
            writer=reference_writer,
            recovery=reference_recovery,
            spares=1,
            entries=1,
            recoveries=1,
            breaks=1,
        )
    ),
    Job(left_behind("1 recovery after a writer of 2 entries, late adds", entries=2, recoveries=1, late_adds=True)),
    Job(
        left_behind(
            "1 recovery after a writer of 2 entries, fences, LACs",
            entries=2,
            recoveries=1,
            fences=True,
            explicit_lacs=True,
        )
    ),
    Job(left_behind("2 recoveries after a writer of 1 entry", entries=1, recoveries=2), quick=True),
    *(
        Job(
            left_behind(
                f"2 recoveries after a writer of 2 entries, fences, LACs; {history}",
                entries=2,
                recoveries=2,
                histories=[leftovers.HISTORIES[number]],
                fences=True,
                explicit_lacs=True,
            ),
            longest=number < 2,
        )
        for number, history in enumerate(("1 fragment", "fragments at 0 and 1", "fragments at 0 and 2"))
    ),
    Job(
        left_behind(
            "specification: 2 recoveries after a writer of 2 entries",
            recovery=reference_recovery,
            entries=2,
            recoveries=2,
        )
    ),
    Job(
        live(
            "writer of 1 entry, 1 spare, 2 recoveries; 1 break",
            (2, 2, 1),
            spares=1,
            entries=1,
            recoveries=2,
            breaks=1,
        ),
        states_max=LARGE,
    ),
    Job(
        live(
            "writer of 2 entries, 1 spare, 1 recovery; 1 break",
            (2, 2, 2),
            spares=1,
            entries=2,
            recoveries=1,
            breaks=1,
        ),
        states_max=LARGE,
    ),
    Job(
        live(
            "writer of 1 entry, 1 recovery; 1 power cut, 1 break",
            (2, 2, 1),
            entries=1,
            recoveries=1,
            syncs=True,
            power_cuts=1,
            breaks=1,
        ),
        states_max=LARGE,
    ),
    Job(live("writer of 1 entry, 1 recovery; 1 wipe", (2, 2, 2), entries=1, recoveries=1, wipes=1)),
    Job(
        live("writer of 2 entries, 1 recovery; 1 truncated answer", (2, 2, 1), entries=2, recoveries=1, cuts=1),
        states_max=LARGE,
    ),
    Job(live("writer of 1 entry, 1 recovery", (4, 3, 2), entries=1, recoveries=1), states_max=LARGE),
    Job(
        live(
            "writer of 2 entries, 1 spare, 2 recoveries; 1 break",
            (4, 3, 2),
            spares=1,
            entries=2,
            recoveries=2,
            breaks=1,
        ),
        states_max=LARGE,
    ),
    Job(
        live(
            "writer of 3 entries, 2 spares, 2 recoveries; 3 breaks, 1 lost metadata answer",
            (4, 3, 2),
            spares=2,
            entries=3,
            recoveries=2,
            sends_lac=True,
            breaks=3,
            lost_settlements=1,
        ),
        walks=3000,
        steps_max=500,
    ),
    Job(
        live(
            "writer of 4 entries, 2 spares, 1 recovery; 3 breaks, 2 truncated answers",
            (3, 3, 2),
            spares=2,
            entries=4,
            recoveries=1,
            breaks=3,
            cuts=2,
        ),
        walks=3000,
        steps_max=500,
    ),
)
