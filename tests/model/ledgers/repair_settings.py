"""The settings of the model in which repair takes part, and its rules broken on purpose (rules C2 to C6, D1 to D3)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from model.engine.exchange import Add, Message
from model.engine.sealing import PAYLOADS, length_up_to, metadata, sealed
from model.engine.setting import Placement, Setting
from model.ledgers.bookie import Bookie, BookieState
from model.ledgers.broken_bookies import TakesAddsWhenSure
from model.ledgers.canaries import Canary
from model.ledgers.client import Client
from model.ledgers.machine_recovery import MachineRecovery
from model.ledgers.pipeline_writer import PipelineWriter
from model.ledgers.repair_target import (
    CopiesForAnotherPosition,
    CountsWhatRots,
    EndsDoubtOfOpenFragments,
    NamesBeforeItStores,
    Refill,
    RepairsTheLastFragment,
    RepairTarget,
    SealsCopiesAgain,
    SkipsWhatOneDenies,
)
from model.ledgers.settings import LARGE, Job
from octavo.metadata.ledger.model import LedgerMetadata, LedgerState
from octavo.protocol.ids import EntryId
from octavo.protocol.quorums import Quorums

TWO, THREE, STRIPED = Quorums(2, 2, 2), Quorums(3, 3, 2), Quorums(3, 2, 2)
A, B, C, D, E = range(5)
ENTRIES = (sealed(0, -1), sealed(1, 0))


def closed(ledger: LedgerMetadata, last: int) -> LedgerMetadata:
    """The same ledger, closed with this last entry; -1: empty."""
    return replace(
        ledger,
        state=LedgerState.CLOSED,
        last_entry_id=None if last < 0 else EntryId(last),
        length=length_up_to(last),
    )


def holding(ids: str, *, damaged: str = "") -> BookieState:
    """A bookie that holds these entries, some of them damaged."""
    return BookieState(held=tuple(ENTRIES[int(one)] for one in ids), damaged=frozenset(map(int, damaged)))


WIPED = BookieState(in_doubt=True)


def setting(
    name: str, ledger: LedgerMetadata, quorums: Quorums, bookies: Sequence[BookieState], clients: Sequence[Client],
    *, acknowledged: int, late: Sequence[Message] = (), bookie: type[Bookie] = Bookie, written: int | None = None,
    lost: int = 0, reduced: bool = False, budget: Mapping[str, int] | None = None,
) -> Setting:  # fmt: skip
    """``late``: messages of a dead writer that are still under way. ``lost``: copies lost before."""
    return Setting(
        name,
        quorums,
        len(bookies),
        lambda: [Placement(ledger, tuple(bookies), tuple(late), acknowledged)],
        lambda _: [client.copy() for client in clients],
        PAYLOADS[: acknowledged + 1 if written is None else written],
        budget=dict(budget or {}),
        lost=lost,
        bookie=bookie(syncs=False),
        interchangeable_clients=tuple((at,) for at in range(len(clients))),
        symmetric=False,
        reduced=reduced,
    )


def recovery(quorums: Quorums, *, bookies: int, entries: int, index: int) -> Client:
    """A client that recovers the ledger."""
    return MachineRecovery(quorums, bookies=bookies, horizon=entries, reads_ahead=1, index=index)


# --- places -----------------------------------------------------------------------------------------------------------


def earlier_fragment(kind: type[RepairTarget] = RepairTarget, **budget: int) -> Setting:
    """Entry 0 on a and b, the ensemble changed to a and c before entry 1; d takes b's place during a recovery."""
    return setting(
        f"repair: an earlier fragment during a recovery{_faults(budget)}", metadata(TWO, (0, "ab"), (1, "ac")), TWO,
        [holding("0"), holding("0"), holding(""), holding("")],
        [kind(old=B, me=D), recovery(TWO, bookies=4, entries=1, index=1)], acknowledged=0, budget=budget,
    )  # fmt: skip


def two_targets(kind: type[RepairTarget] = RepairTarget, *, crashes: bool = False, **budget: int) -> Setting:
    """d and e both want b's place in a closed ledger of two fragments; a lacks entry 0, which c holds."""
    ledger = closed(metadata(THREE, (0, "abc"), (1, "acb")), 1)
    return setting(
        f"repair: 2 targets for one place{', either crashes' if crashes else ''}{_faults(budget)}", ledger, THREE,
        [holding("1"), holding("01"), holding("01"), holding(""), holding("")],
        [kind(old=B, me=me, index=at, crashes=crashes) for at, me in enumerate((D, E))], acknowledged=1, budget=budget,
    )  # fmt: skip


def last_fragment(kind: type[RepairTarget] = RepairTarget) -> Setting:
    """b, which holds two acknowledged entries of the last fragment, is to be replaced by c, which copies the first: no
    target can know where an open fragment ends."""
    return setting(
        "repair: the last fragment of an open ledger", metadata(TWO, (0, "ab")), TWO,
        [holding("01"), holding("01"), holding("")],
        [kind(old=B, me=C), recovery(TWO, bookies=3, entries=2, index=1)], acknowledged=1,
    )  # fmt: skip


def rotten_copy(kind: type[RepairTarget] = RepairTarget) -> Setting:
    """d, which is to take b's place, has a copy from earlier that has rotted."""
    return setting(
        "repair: a target with a rotten copy", closed(metadata(TWO, (0, "ab")), 0), TWO,
        [holding("0"), holding("0"), holding(""), holding("0", damaged="0")],
        [kind(old=B, me=D)], acknowledged=0,
    )  # fmt: skip


def striped(kind: type[RepairTarget] = RepairTarget) -> Setting:
    """Entry 0 is on a and b, entry 1 on b and c; d takes b's place."""
    return setting(
        "repair: a striped ledger", closed(metadata(STRIPED, (0, "abc")), 1), STRIPED,
        [holding("0"), holding("01"), holding("1"), holding("")],
        [kind(old=B, me=D)], acknowledged=1,
    )  # fmt: skip


# --- doubt ------------------------------------------------------------------------------------------------------------


def wiped_while_open(kind: type[Refill] = Refill, *, state: LedgerState = LedgerState.OPEN, breaks: int = 0) -> Setting:
    """Entry 0 was acknowledged by a and b; b has lost it, and c may get it late or never. b works off its doubt during
    a recovery."""
    ledger = replace(metadata(THREE), state=state)
    return setting(
        f"repair: a wiped bookie and a recovery, ledger {state.name}{'; 1 break' if breaks else ''}", ledger, THREE,
        [holding("0"), WIPED, holding("")],
        [kind(me=B), recovery(THREE, bookies=3, entries=1, index=1)], acknowledged=0,
        late=[Message(None, C, None, Add((ENTRIES[0],), recovery=False))], lost=1, reduced=not breaks,
        budget={"breaks": breaks},
    )  # fmt: skip


def wiped_when_closed(bookie: type[Bookie] = Bookie, *, entries: int = 0) -> Setting:
    """The ledger was fenced on a and b and closed; its writer does not know, and c was cut off with it. b has lost its
    fence with everything else."""
    ledger = closed(metadata(THREE), entries - 1)
    ids = "01"[:entries]
    fenced = replace(holding(ids), fenced=True)
    writer = PipelineWriter(metadata(THREE), bookies=3, entries=1, sends_lac=False)
    clients: list[Client] = [writer, Refill(me=B, index=1)] if not entries else [Refill(me=B)]
    return setting(
        f"repair: a wiped bookie, ledger CLOSED with {entries} entries" + (", its writer alive" if not entries else ""),
        ledger, THREE, [fenced, WIPED, holding(ids)], clients, acknowledged=entries - 1, bookie=bookie,
        written=max(entries, 1), lost=1,
    )  # fmt: skip


def wiped_with_a_live_writer() -> Setting:
    """b has lost everything when the writer begins; it works off its doubt while the ledger is written and closed."""
    writer = PipelineWriter(metadata(THREE), bookies=3, entries=1, sends_lac=False)
    clients = [writer, Refill(me=B, index=1), recovery(THREE, bookies=3, entries=1, index=2)]
    return setting(
        "repair: a wiped bookie, a writer of 1 entry, 1 recovery", metadata(THREE), THREE,
        [holding(""), WIPED, holding("")], clients, acknowledged=-1, written=1,
    )  # fmt: skip


def _faults(budget: dict[str, int]) -> str:
    return "".join(f"; {times} {name.removesuffix('s')}" for name, times in budget.items())


REPAIR_JOBS = (
    Job(earlier_fragment, quick=True),
    Job(two_targets, quick=True),
    Job(partial(two_targets, crashes=True), quick=True),
    Job(last_fragment, quick=True),
    Job(rotten_copy, quick=True),
    Job(striped, quick=True),
    Job(wiped_while_open, quick=True),
    Job(partial(wiped_while_open, state=LedgerState.IN_RECOVERY), quick=True),
    Job(wiped_when_closed, quick=True),
    Job(partial(wiped_when_closed, entries=2), quick=True),
    Job(partial(earlier_fragment, breaks=1)),
    Job(partial(two_targets, crashes=True, wipes=1)),
    Job(partial(wiped_while_open, breaks=1), states_max=LARGE),
    Job(wiped_with_a_live_writer, states_max=LARGE),
)


def _targets(make: Callable[..., Setting], kind: type) -> Callable[[bool], Setting]:
    return lambda broken: make(kind) if broken else make()


REPAIR_CANARIES = (
    Canary("repair: a name before its copies are stored", "N1", _targets(earlier_fragment, NamesBeforeItStores)),
    Canary("repair: an id that one source denies left out", "N1", _targets(two_targets, SkipsWhatOneDenies)),
    Canary("repair: the last fragment of an open ledger", "I1", _targets(last_fragment, RepairsTheLastFragment)),
    Canary("repair: a rotten copy counted unread", "N1", _targets(rotten_copy, CountsWhatRots)),
    Canary("repair: the entries of another position", "N1", _targets(striped, CopiesForAnotherPosition)),
    Canary("repair: copies sealed again", "I3", _targets(two_targets, SealsCopiesAgain)),
    Canary("repair: doubt ended for an open fragment", "I2", _targets(wiped_while_open, EndsDoubtOfOpenFragments)),
    Canary("repair: the floor lifted when doubt ends", "I2, I7", _targets(wiped_when_closed, TakesAddsWhenSure)),
)
