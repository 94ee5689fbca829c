"""How the auditor changes the conditions of bookies. Pure.

Theory of operation
-------------------

The auditor observes which bookies are registered, which have a cookie, and which say that they are in doubt.
:func:`observe` moves every bookie along this table; ``-`` is the ordinary condition, which the document does not name.

==========  ==============================  ====================================================================
condition   registered                      not registered
==========  ==============================  ====================================================================
\\-          in doubt: doubtful; else -      missing, since now
missing     in doubt: doubtful; else -      missing; after the grace time: to be probed, see below
held        held for its time, then -       held for its time, then missing, since now
lost        in doubt: doubtful; else -      lost
draining    draining                        draining: its copies are being moved anyway
doubtful    in doubt: doubtful; else -      missing, since now
retired     retired                         retired
==========  ==============================  ====================================================================

``since`` is kept while the condition lasts, in the document and so across auditors (rule A1). It is for people, and
tells one missing from the next. How long a condition has lasted is counted (:mod:`octavo.repair.base.waits`, rule A13):
no clock's time of day ends a hold or the grace time.

A bookie that has been missing for the grace time is *probed*: the auditor says hello at the address in its cookie. One
that answers is only cut off from the metadata store, and serves (rule M2). One that does not is declared lost by
:func:`declare_lost`, unless the brake is on.

**The brake** (rule A2). When half or more of the bookies that are neither lost nor retired are missing at once, the
likely cause is a network or the metadata store, and copying everything everywhere would make it worse: no
bookie is declared lost until the bookies are back or an operator overrides the brake.
"""

from collections.abc import Collection
from dataclasses import replace

from octavo.metadata.cluster.repair_states import BookieCondition, Condition, RepairStates
from octavo.protocol.ids import BookieId
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.waits import Waits


@dataclass(frozen=True, slots=True)
class Observed:
    """The bookies as the auditor sees them in one moment."""

    registered: frozenset[BookieId]
    known: frozenset[BookieId]
    """Bookies with a cookie or a registration."""
    in_doubt: frozenset[BookieId] = frozenset()
    """Registered bookies that say so."""
    silent: frozenset[BookieId] = frozenset()
    """Registered bookies that did not say whether they are in doubt: their condition stays as it is."""


@dataclass(frozen=True, slots=True)
class Step:
    """The result of :func:`observe`."""

    states: RepairStates
    to_probe: tuple[BookieId, ...]
    """Missing for longer than the grace time: probe them, then :func:`declare_lost`. Empty while the brake is on."""


def observe(states: RepairStates, observed: Observed, *, waits: Waits, now_ms: int, lost_ms: int) -> Step:
    """Move every bookie along the table of the module; ``lost_ms`` is the grace time. ``now_ms`` is noted, and nothing
    depends on it."""
    changed = states
    for name in sorted({*states.bookies, *observed.known, *observed.registered}):
        before = states.bookies.get(name)
        after = _next(name, before, observed, waits, now_ms)
        if after != before:
            changed = changed.with_bookie(name, after)
    changed = _with_brake(changed, observed)
    if changed.brake and not changed.brake_overridden:
        return Step(changed, ())
    late = [
        name
        for name, entry in sorted(changed.bookies.items())
        if entry.condition is Condition.MISSING and waits.elapsed_ms(name, entry) >= lost_ms
    ]
    return Step(changed, tuple(late))


def declare_lost(
    states: RepairStates, silent: Collection[BookieId], observed: Observed, *, now_ms: int
) -> RepairStates:
    """Declare those bookies lost that answered no hello and are still missing; none while the brake is on (rule A2)."""
    if states.brake and not states.brake_overridden:
        return states
    for name in sorted(silent):
        entry = states.bookies.get(name)
        if entry is not None and entry.condition is Condition.MISSING and name not in observed.registered:
            reason = "missing for too long, and it answers no hello"
            states = states.with_bookie(name, BookieCondition(Condition.LOST, now_ms, reason=reason))
    return states


def brake_is_due(states: RepairStates, observed: Observed) -> bool:
    """Whether half or more of the bookies that count are missing at once (rule A2)."""
    gone = states.in_condition(Condition.LOST, Condition.RETIRED)
    counted = [name for name in observed.known | observed.registered if name not in gone]
    missing = [name for name in counted if name not in observed.registered]
    return bool(missing) and 2 * len(missing) >= len(counted)


def _with_brake(states: RepairStates, observed: Observed) -> RepairStates:
    due = brake_is_due(states, observed)
    # An override ends with the emergency for which it was given.
    return replace(states, brake=due, brake_overridden=states.brake_overridden and due)


def _next(
    name: BookieId, before: BookieCondition | None, observed: Observed, waits: Waits, now_ms: int
) -> BookieCondition | None:
    condition = None if before is None else before.condition
    if condition in {Condition.RETIRED, Condition.DRAINING}:
        return before
    if before is not None and before.until_ms is not None:
        # Both times are the operator's: together they say how long the hold lasts.
        if waits.elapsed_ms(name, before) < before.until_ms - before.since_ms:
            return before
        before = condition = None
    if name in observed.registered:
        return _present(name, before, observed, now_ms)
    if name not in observed.known:
        return None  # the cluster has forgotten it
    if condition in {Condition.MISSING, Condition.LOST}:
        return before
    return BookieCondition(Condition.MISSING, now_ms)


def _present(name: BookieId, before: BookieCondition | None, observed: Observed, now_ms: int) -> BookieCondition | None:
    known_doubtful = before is not None and before.condition is Condition.DOUBTFUL
    if name in observed.in_doubt:
        return before if known_doubtful else BookieCondition(Condition.DOUBTFUL, now_ms)
    return before if known_doubtful and name in observed.silent else None
