"""Shows repair to operators and takes their wishes: the work behind ``octavo repair``.

Everything goes through the documents of repair (:mod:`octavo.repair.base.documents`); no command talks to the auditor.
The functions raise :class:`RepairRefusedError` with one sentence for people.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from octavo.metadata.cluster.repair_states import (
    DEPARTED,
    DOCUMENT,
    BookieCondition,
    Condition,
    RepairStates,
    decode_states,
    encode_states,
)
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.garbage_hold import GarbageHold, read_hold
from octavo.metadata.updates.paging import members_of, parts_of
from octavo.protocol.errors import InvalidArgumentError, MetadataConflictError, NoSuchLedgerError, OctavoError
from octavo.protocol.ids import BookieId, LedgerId, is_bookie_id
from octavo.protocol.light_dataclass import dataclass
from octavo.repair.base.documents import (
    AUDITOR_LOCK,
    BLOCKED_PREFIX,
    CHECKS,
    CHECKS_MAX,
    SUMMARY,
    Check,
    Summary,
    decode_blocked,
    decode_checks,
    decode_summary,
    encode_checks,
)
from octavo.repair.base.planning import Blocked, BlockedClass
from octavo.repair.base.read_metadata import each_ledger
from octavo.repair.base.settled import named_in_settled

ATTEMPTS_MAX: Final = 100
"""Conflicts over a document before a command gives up: the auditor changes it at most a few times per second."""

HOLD_SECONDS_MAX: Final = 7 * 86_400
"""Longest hold: copies must not stay short of a copy for ever because a release was forgotten."""

NAMED_MAX: Final = 10
"""Ledgers with a bookie that is to leave which a command names."""

UNFINISHED_MAX: Final = 1024
"""Unfinished ledgers that :func:`find_unfinished` returns: a command shows some of them and their number."""


class RepairRefusedError(OctavoError):
    """A command of an operator cannot be carried out."""


# --- conditions ---------------------------------------------------------------------------------------------------


async def read_states(store: MetadataStore) -> RepairStates:
    """The conditions of the bookies."""
    found = await store.read_document(DOCUMENT)
    return decode_states(None if found is None else found.value)


async def change_states(store: MetadataStore, change: Callable[[RepairStates], RepairStates]) -> RepairStates:
    """Change the conditions by compare-and-set; returns them as they are stored then. ``change`` may be called several
    times and may raise."""
    return await change_document(store, DOCUMENT, decode_states, encode_states, change)


async def change_document[T](
    store: MetadataStore,
    name: str,
    decode: Callable[[bytes | None], T],
    encode: Callable[[T], bytes | None],
    change: Callable[[T], T],
) -> T:
    """Change a document by compare-and-set; returns its value then. ``encode`` returns None for a value that is stored
    as no document at all. ``change`` may be called several times and may raise."""
    for _ in range(ATTEMPTS_MAX):
        found = await store.read_document(name)
        before = decode(None if found is None else found.value)
        after = change(before)
        if after == before:
            return after
        with contextlib.suppress(MetadataConflictError):
            value, version = encode(after), None if found is None else found.version
            if value is not None:
                await store.put_document(name, value, version)
            elif version is not None:
                await store.delete_document(name, version)
            return after
    raise RepairRefusedError(f"document {name} changed {ATTEMPTS_MAX} times meanwhile; try again")


async def check_known(store: MetadataStore, name: str) -> BookieId:
    """The id of a bookie that the cluster knows. Raises :class:`RepairRefusedError`."""
    if is_bookie_id(name):
        bookie_id = BookieId(name)
        if bookie_id in await store.list_bookies() or await store.read_cookie(bookie_id) is not None:
            return bookie_id
    raise RepairRefusedError(f"the cluster does not know a bookie {name}; `octavo bookies` lists those that it knows")


async def hold(store: MetadataStore, name: str, *, seconds: float, reason: str, now_ms: int) -> BookieCondition:
    """Keep a bookie from being declared lost for ``seconds``, at most :data:`HOLD_SECONDS_MAX`."""
    bookie_id = await check_known(store, name)
    if not 0 < seconds <= HOLD_SECONDS_MAX:
        raise RepairRefusedError(f"a bookie is held for at most {HOLD_SECONDS_MAX // 86_400} days")
    try:
        held = BookieCondition(Condition.HELD, now_ms, now_ms + int(seconds * 1000), reason)
    except InvalidArgumentError as error:
        raise RepairRefusedError(error.message) from error

    def change(states: RepairStates) -> RepairStates:
        condition = states.condition_of(bookie_id)
        if condition in {Condition.LOST, Condition.DRAINING, Condition.RETIRED}:
            raise RepairRefusedError(f"bookie {name} is {condition.value}; it cannot be held")
        return states.with_bookie(bookie_id, held)

    await change_states(store, change)
    return held


async def release(store: MetadataStore, name: str, *, now_ms: int) -> None:
    """End a hold: the bookie counts as missing from now on, if it is not there."""
    bookie_id = await check_known(store, name)
    there = bookie_id in await store.list_bookies()

    def change(states: RepairStates) -> RepairStates:
        if states.condition_of(bookie_id) is not Condition.HELD:
            raise RepairRefusedError(f"bookie {name} is not held")
        return states.with_bookie(bookie_id, None if there else BookieCondition(Condition.MISSING, now_ms))

    await change_states(store, change)


async def drain(store: MetadataStore, name: str, *, now_ms: int) -> Condition | None:
    """Have everything moved off a bookie, which serves on. Does nothing if that is under way. Returns the bookie's
    condition: draining, or lost, in which case its copies are made again anyway."""
    bookie_id = await check_known(store, name)

    def change(states: RepairStates) -> RepairStates:
        condition = states.condition_of(bookie_id)
        if condition is Condition.RETIRED:
            raise RepairRefusedError(f"bookie {name} is retired")
        if condition in {Condition.DRAINING, Condition.LOST}:
            return states
        return states.with_bookie(bookie_id, BookieCondition(Condition.DRAINING, now_ms))

    return (await change_states(store, change)).condition_of(bookie_id)


async def undrain(store: MetadataStore, name: str) -> None:
    """End a drain. What was moved stays where it is."""
    bookie_id = await check_known(store, name)

    def change(states: RepairStates) -> RepairStates:
        if states.condition_of(bookie_id) is not Condition.DRAINING:
            raise RepairRefusedError(f"bookie {name} is not being drained")
        return states.with_bookie(bookie_id, None)

    await change_states(store, change)


async def pause(store: MetadataStore) -> None:
    """Plan nothing in the whole cluster until :func:`resume`."""
    await change_states(store, lambda states: replace(states, paused=True))


async def resume(store: MetadataStore, *, override_brake: bool = False) -> RepairStates:
    """Plan again; with ``override_brake`` also although half of the bookies are missing (rule A2)."""

    def change(states: RepairStates) -> RepairStates:
        if override_brake and not states.brake:
            raise RepairRefusedError("the brake is not on")
        return replace(states, paused=False, brake_overridden=states.brake_overridden or override_brake)

    return await change_states(store, change)


async def marked_as_retired(store: MetadataStore, name: str) -> bool:
    """Whether a bookie is marked as retired. The retirement is final once it has no cookie any more (rule O5)."""
    return is_bookie_id(name) and (await read_states(store)).condition_of(BookieId(name)) is Condition.RETIRED


async def ledgers_naming(store: MetadataStore, bookie_id: BookieId, *, count: int) -> AsyncIterator[LedgerId]:
    """The first ledgers with the bookie in any fragment. Reads all ledgers; raises :class:`MetadataError` for one whose
    metadata cannot be understood: it may name the bookie."""
    found = 0
    async with contextlib.aclosing(each_ledger(store)) as ledgers:
        async for metadata in ledgers:
            if bookie_id in await _members(store, metadata):
                yield metadata.ledger_id
                found += 1
                if found >= count:
                    return


async def _members(store: MetadataStore, metadata: EitherMetadata) -> frozenset[BookieId]:
    try:
        return await members_of(store, metadata)
    except NoSuchLedgerError:
        return frozenset()  # deleted just now


async def _names_in_settled(store: MetadataStore, metadata: EitherMetadata, bookies: frozenset[BookieId]) -> bool:
    """Whether a settled range names one of the bookies."""
    try:
        async with contextlib.aclosing(parts_of(store, metadata)) as parts:
            async for part in parts:
                if any(named_in_settled(part, name) for name in bookies & part.members):
                    return True
    except NoSuchLedgerError:
        pass  # deleted just now
    return False


# --- status -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RepairStatus:
    """The state of repair in one moment."""

    auditor: str | None
    states: RepairStates
    summary: Summary | None
    """None if there never was anything to do."""
    blocked: tuple[Blocked, ...]
    hold: GarbageHold | None = None
    """Why the metadata may be older than the data; until an operator ends it, no doubt ends (rule D5)."""

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is known to be queued, copied or blocked, and no bookie is in doubt. Whether every ledger is
        whole is known after :func:`find_unfinished`."""
        doubtful = self.states.in_condition(Condition.DOUBTFUL)
        return (self.summary is None or self.summary.is_quiet) and not self.blocked and not doubtful

    @property
    def is_stuck(self) -> bool:
        """Whether something is blocked, and nothing else is under way."""
        summary = self.summary
        under_way = summary is not None and (summary.queued or summary.copying)
        return bool(self.blocked) and not under_way

    def count(self, kind: BlockedClass) -> int:
        """Blocked ledgers of a class: those that the auditor counts, and those that bookies report of themselves."""
        counted = 0 if self.summary is None else self.summary.blocked_counts.get(kind.value, 0)
        own = {} if self.summary is None else {one.ledger_id for one in self.summary.blocked}
        return counted + sum(1 for one in self.blocked if one.kind is kind and one.ledger_id not in own)


async def read_status(store: MetadataStore) -> RepairStatus:
    """Read what the documents say."""
    holder = await store.read_lock(AUDITOR_LOCK)
    found = await store.read_document(SUMMARY)
    summary = None if found is None else decode_summary(found.value)
    blocked = {one.ledger_id: one for one in (() if summary is None else summary.blocked)}
    async for name in store.list_documents(BLOCKED_PREFIX):
        document = await store.read_document(name)
        if document is not None:
            for one in decode_blocked(document.value, name):
                blocked.setdefault(one.ledger_id, one)
    return RepairStatus(
        None if holder is None else holder.holder,
        await read_states(store),
        summary,
        tuple(blocked[ledger_id] for ledger_id in sorted(blocked)),
        await read_hold(store),
    )


def status_fields(
    status: RepairStatus, facts: Mapping[str, Mapping[str, Any]], *, now_ms: int, blocked_max: int | None
) -> dict[str, Any]:
    """The status as ``--json`` shows it. ``facts``: what each registered bookie says of itself, by bookie."""
    summary = status.summary
    auditor = facts.get(status.auditor or "", {})
    round_at_ms = auditor.get("repair_round_at_ms", None if summary is None else summary.round_at_ms)
    ledgers = auditor.get("repair_ledgers", 0 if summary is None else summary.ledgers)
    queued, copying = (0, 0) if summary is None else (summary.queued, summary.copying)
    counts = {kind.value: status.count(kind) for kind in BlockedClass}
    rate = 0.0 if summary is None else summary.ledgers_per_second
    since_ms = None if summary is None else summary.queued_since_ms
    return {
        "auditor": status.auditor,
        "paused": status.states.paused,
        "brake": status.states.brake,
        "last_round_seconds_ago": None if round_at_ms is None else max(now_ms - round_at_ms, 0) / 1000,
        "bookies": [
            _bookie_fields(name, status, facts.get(name))
            for name in sorted({*facts, *status.states.bookies, *(() if summary is None else summary.bookies)})
        ],
        "ledgers": {
            "whole": max(ledgers - queued - copying - sum(counts.values()), 0), "queued": queued, "copying": copying,
            "short": counts["short"], "open": counts["open"], "divergent": counts["divergent"],
            "no_target": counts["no_target"],
        },
        "entries_copied": 0 if summary is None else summary.entries_copied,
        "bytes_copied": 0 if summary is None else summary.bytes_copied,
        "bytes_per_second": 0.0 if summary is None else round(summary.bytes_per_second, 1),
        "ledgers_per_second": round(rate, 2),
        "seconds_left": round((queued + copying) / rate, 1) if rate and queued + copying else None,
        "oldest_queued_seconds": None if since_ms is None else max(now_ms - since_ms, 0) / 1000,
        "blocked": [blocked_fields(one) for one in status.blocked[:blocked_max]],
    }  # fmt: skip


def blocked_fields(blocked: Blocked) -> dict[str, Any]:
    """Something blocked, as ``--json`` shows it."""
    return {
        "ledger_id": int(blocked.ledger_id),
        "first_entry": blocked.first,
        "last_entry": blocked.last,
        "class": blocked.kind.value,
        "bookies": list(blocked.bookies),
        "reason": blocked.reason,
    }


def _bookie_fields(name: str, status: RepairStatus, facts: Mapping[str, Any] | None) -> dict[str, Any]:
    entry = status.states.bookies.get(BookieId(name))
    figures = None if status.summary is None else status.summary.bookies.get(BookieId(name))
    return {
        "bookie_id": name,
        "state": "ordinary" if entry is None else entry.condition.value,
        "since": None if entry is None else entry.since_ms / 1000,
        "until": None if entry is None or entry.until_ms is None else entry.until_ms / 1000,
        "reason": "" if entry is None else entry.reason,
        "ledgers": None if figures is None else figures.ledgers,
        "ledgers_at_margin": None if figures is None else figures.ledgers_at_margin,
        "in_doubt": None if facts is None else bool(facts.get("in_doubt", False)),
        "unsure_ledgers": None if facts is None else facts.get("unsure_ledgers", 0),
    }


# --- waiting ------------------------------------------------------------------------------------------------------


async def find_unfinished(store: MetadataStore, states: RepairStates) -> list[LedgerId]:
    """The first ledgers with a lost, draining or retired bookie in a settled range, at most ``UNFINISHED_MAX``. Reads
    all ledgers, and raises as :func:`ledgers_naming`."""
    departed = states.in_condition(*(DEPARTED - {Condition.DOUBTFUL}))
    found: list[LedgerId] = []
    async with contextlib.aclosing(each_ledger(store)) as ledgers:
        async for metadata in ledgers:
            if await _names_in_settled(store, metadata, departed):
                found.append(metadata.ledger_id)
                if len(found) >= UNFINISHED_MAX:
                    break
    return found


# --- checks -------------------------------------------------------------------------------------------------------


async def ask_for_checks(store: MetadataStore, ledger_ids: Sequence[LedgerId], *, now_ms: int) -> None:
    """Have the members of these ledgers check their copies. Raises :class:`RepairRefusedError` when too many wait."""
    new = [Check(ledger_id, now_ms) for ledger_id in dict.fromkeys(ledger_ids)]

    def add(checks: tuple[Check, ...]) -> tuple[Check, ...]:
        kept = tuple(check for check in checks if check.ledger_id not in ledger_ids)
        if len(kept) + len(new) > CHECKS_MAX:
            raise RepairRefusedError(
                f"{len(kept)} checks are under way, and {CHECKS_MAX} are the limit; try again later"
            )
        return (*kept, *new)

    await _change_checks(store, add)


async def take_checked(store: MetadataStore, ledger_ids: Collection[LedgerId]) -> dict[LedgerId, bool]:
    """Results of checks that have ended, by ledger: whether it is short. They are removed from the document."""
    found = await store.read_document(CHECKS)
    checks = decode_checks(None if found is None else found.value)
    done = {one.ledger_id: one.short for one in checks if one.ledger_id in ledger_ids and one.short is not None}
    if done:
        await _change_checks(store, lambda now: tuple(one for one in now if one.ledger_id not in done))
    return done


async def forget_checks(store: MetadataStore, ledger_ids: Collection[LedgerId]) -> None:
    """The results of these checks are not wanted any more."""
    await _change_checks(store, lambda now: tuple(one for one in now if one.ledger_id not in ledger_ids))


async def _change_checks(store: MetadataStore, change: Callable[[tuple[Check, ...]], tuple[Check, ...]]) -> None:
    await change_document(
        store, CHECKS, decode_checks, lambda checks: encode_checks(checks) if checks else None, change
    )
