"""Which bookie makes the copies of a ledger again, and what cannot be done at present. Pure; chance is an argument.

Theory of operation
-------------------

:func:`plan_ledger` looks at one ledger and gives at most one job: a *target* takes the place of one leaving bookie in
every settled range in which it can. A ledger with two leaving bookies gets the second job when the first is done, so
that repair makes one change of a ledger's metadata at a time. Lost and retired bookies come before draining ones, which
still serve (rule A5). The target is chosen as a writer chooses a spare: another rack and another host where possible,
more free space preferred; never a member of the ensemble, and never a bookie with a condition of its own (in doubt,
held, missing).

What cannot be planned has a class and a reason (rule A10):

=============  =====================================================================================================
class          meaning
=============  =====================================================================================================
``no_target``  no writable bookie can take the place
``open``       the leaving bookie is in the last fragment of a ledger that is not CLOSED (rule C2): the writer replaces
               it, or the ledger is recovered once it is abandoned (rules O2 and O3)
``short``      some entry has no sound copy on any bookie that answers (rule C4); only a target finds this out
``divergent``  two bookies hold different entries under one id (rule C6); only a target finds this out
=============  =====================================================================================================
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from octavo.client.choose.locations import Location
from octavo.client.choose.placement import Chance, place_replacements
from octavo.metadata.cluster.registration import BookieRegistration
from octavo.metadata.cluster.repair_states import Condition, RepairStates
from octavo.metadata.ledger.stored import SettledRange, StoredKind, StoredLedger
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.settled import ranges_of_member

JOBS_MAX: Final = 1024
"""Most jobs of one target's plan: a plan stays far below the limit of a document, and an auditor that fails takes
little knowledge with it."""

RANKS: Final = {Condition.LOST: 0, Condition.RETIRED: 0, Condition.DRAINING: 2}
"""Order in which the copies of leaving bookies are made again (rule A5); holes and checks have rank 1."""

SELF_RANK: Final = 1


class Why(enum.Enum):
    """Why a job was planned."""

    LOST = "lost"
    DRAINING = "draining"
    HOLE = "hole"
    """A member lacks ids that it should hold."""
    CHECK = "check"
    """An operator asked that every member read its copies back."""
    BALANCE = "balance"
    """A full bookie gives up a ledger to an emptier one (rule A14). A version that does not know it cannot read the
    plan, so only bookies that say that they know it are planned for."""


class BlockedClass(enum.Enum):
    """Why something cannot be repaired at present. See the module."""

    SHORT = "short"
    OPEN = "open"
    DIVERGENT = "divergent"
    NO_TARGET = "no_target"


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work of a target."""

    ledger_id: LedgerId
    old: BookieId | None
    """The bookie whose place the target takes; None: the target completes its own copies."""
    why: Why


@dataclass(frozen=True, slots=True)
class Blocked:
    """Something that cannot be repaired at present (rule A10)."""

    ledger_id: LedgerId
    first: int
    last: int | None
    """None: up to the end of the ledger, which is not known."""
    kind: BlockedClass
    bookies: tuple[BookieId, ...]
    """The bookies on which it depends: waited for, leaving, or at odds with each other."""
    reason: str


@dataclass(frozen=True, slots=True)
class Planned:
    """A job, and the bookie that is to do it."""

    target: BookieId
    job: Job


def plan_ledger(
    metadata: StoredLedger,
    states: RepairStates,
    registrations: Mapping[BookieId, BookieRegistration],
    *,
    full: Collection[BookieId],
    locations: Mapping[BookieId, Location],
    rng: Chance,
) -> Planned | Blocked | None:
    """The next step for the leaving bookies that a ledger names; None: nothing.

    ``full``: targets whose plans have no room. ``locations``: where bookies are that are not registered, as far as
    that is known. Raises :class:`TargetsFullError` when only full targets could do it.
    """
    blocked: Blocked | None = None
    for old in _leaving_members(metadata, states):
        ranges = ranges_of_member(metadata, old)
        if not ranges:
            blocked = blocked or _open(metadata, old)
            continue
        avoid = frozenset(states.bookies) | frozenset(full)
        target = _target(metadata, ranges, old, registrations, avoid=avoid, locations=locations, rng=rng)
        if target is not None:
            why = Why.DRAINING if states.condition_of(old) is Condition.DRAINING else Why.LOST
            return Planned(target, Job(metadata.ledger_id, old, why))
        if (
            full
            and _target(
                metadata, ranges, old, registrations, avoid=frozenset(states.bookies), locations=locations, rng=rng
            )
            is not None
        ):
            raise TargetsFullError
        blocked = Blocked(
            metadata.ledger_id, ranges[0].first, ranges[-1].last, BlockedClass.NO_TARGET, (old,),
            f"no writable bookie can take the place of {old}; start more bookies",
        )  # fmt: skip
    return blocked


class TargetsFullError(Exception):
    """Every bookie that could do the work has a full plan: it is planned later."""


def _leaving_members(metadata: StoredLedger, states: RepairStates) -> list[BookieId]:
    leaving = [(RANKS[states.bookies[name].condition], name) for name in metadata.members & states.leaving]
    return [name for _, name in sorted(leaving)]


_REPLACED_OTHERWISE: Final = {
    StoredKind.LEDGER: "the ledger is recovered",
    StoredKind.STREAM: "the next takeover chooses others",
}
"""What ends the membership of a bookie in the last fragment when its writer does not."""


def _open(metadata: StoredLedger, old: BookieId) -> Blocked:
    reason = (
        f"the {metadata.kind.value} is {metadata.state.value}, and {old} is in its last fragment: its writer replaces "
        f"the bookie, or {_REPLACED_OTHERWISE[metadata.kind]}"
    )
    return Blocked(
        metadata.ledger_id, metadata.last_fragment.first_entry_id, None, BlockedClass.OPEN, (old,), reason
    )  # fmt: skip


def _target(
    metadata: StoredLedger,
    ranges: Sequence[SettledRange],
    old: BookieId,
    registrations: Mapping[BookieId, BookieRegistration],
    *,
    avoid: frozenset[BookieId],
    locations: Mapping[BookieId, Location],
    rng: Chance,
) -> BookieId | None:
    """A bookie that can take the place in all ranges, or else in the one with the most entries."""
    largest = max(ranges, key=lambda settled: settled.last - settled.first)
    position = largest.bookies.index(old)
    elsewhere = {name for settled in ranges for name in settled.bookies}
    for members in (elsewhere, frozenset[BookieId]()):
        try:
            return place_replacements(
                registrations.values(), metadata.quorums_at(largest.first), largest.bookies, [position],
                rng=rng, avoid=avoid | members, locations=locations,
            )[position]  # fmt: skip
        except NotEnoughBookiesError:
            continue
    return None


def is_at_margin(metadata: StoredLedger, unavailable: Collection[BookieId]) -> bool:
    """Whether, in some write set of the last fragment, one more loss would block a recovery for ever: no more than
    Qw - Qa + 1 members are left (rule O3)."""
    quorums = metadata.quorums_at(metadata.last_fragment.first_entry_id)
    bookies = metadata.last_fragment.bookies
    for residue in range(quorums.ensemble_size):
        live = sum(1 for position in quorums.write_set(residue) if bookies[position] not in unavailable)
        if live <= quorums.write_quorum - quorums.ack_quorum + 1:
            return True
    return False
