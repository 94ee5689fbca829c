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
held        held until its end, then -      held until its end, then missing, since then
lost        in doubt: doubtful; else -      lost
draining    draining                        draining: its copies are being moved anyway
doubtful    in doubt: doubtful; else -      missing, since now
retired     retired                         retired
==========  ==============================  ====================================================================

``since`` is kept while the condition lasts, in the document and so across auditors (rule A1).

A bookie that has been missing for the grace time is *probed*: the auditor says hello at the address in its cookie. One
that answers is only cut off from the metadata store, and serves (rule M2). One that does not is declared lost by
:func:`declare_lost`, unless the brake is on.

**The brake** (rule A2). When half or more of the bookies that are neither lost nor retired are missing at once, the
likely cause is a network or the metadata store, and copying everything everywhere would make it worse: no
bookie is declared lost until the bookies are back or an operator overrides the brake.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

from octavo.metadata.repair_states import BookieCondition, Condition, RepairStates
from octavo.protocol.ids import BookieId


@dataclass(frozen=True, slots=True)
class Observed:
    """What the auditor sees of the bookies in one moment."""

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


def observe(states: RepairStates, observed: Observed, *, now_ms: int, lost_ms: int) -> Step:
    """Move every bookie along the table of the module; ``lost_ms`` is the grace time."""
    changed = states
    for name in sorted({*states.bookies, *observed.known, *observed.registered}):
        before = states.bookies.get(name)
        after = _next(name, before, observed, now_ms)
        if after != before:
            changed = changed.with_bookie(name, after)
    changed = _with_brake(changed, observed)
    if changed.brake and not changed.brake_overridden:
        return Step(changed, ())
    late = [
        name
        for name, entry in sorted(changed.bookies.items())
        if entry.condition is Condition.MISSING and now_ms - entry.since_ms >= lost_ms
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


def _next(name: BookieId, before: BookieCondition | None, observed: Observed, now_ms: int) -> BookieCondition | None:
    condition = None if before is None else before.condition
    if condition in {Condition.RETIRED, Condition.DRAINING}:
        return before
    held_until_ms = None if before is None else before.until_ms
    if held_until_ms is not None and now_ms < held_until_ms:
        return before
    if name in observed.registered:
        return _present(name, before, observed, now_ms)
    if name not in observed.known:
        return None  # the cluster has forgotten it
    if before is not None and condition in {Condition.MISSING, Condition.LOST}:
        # An auditor whose clock was ahead may have written it: the grace time must not wait for that clock.
        return before if before.since_ms <= now_ms else replace(before, since_ms=now_ms)
    return BookieCondition(Condition.MISSING, now_ms if held_until_ms is None else held_until_ms)


def _present(name: BookieId, before: BookieCondition | None, observed: Observed, now_ms: int) -> BookieCondition | None:
    known_doubtful = before is not None and before.condition is Condition.DOUBTFUL
    if name in observed.in_doubt:
        return before if known_doubtful else BookieCondition(Condition.DOUBTFUL, now_ms)
    return before if known_doubtful and name in observed.silent else None
