"""What a dead writer can leave behind: every placement of its entries, fences and LACs.

The writer has written one or two entries with E = Qw = 3 and Qa = 2, possibly with an ensemble change before, between
or after them, and died at any moment. An earlier recovery may have fenced some bookies and died too. Every entry that
can have been acknowledged is assumed to have been, which demands most of the recovery.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from model.engine.exchange import Add, Message
from model.engine.renaming import bookie_id, bookie_index
from model.engine.sealing import metadata, sealed, sealed_lac
from model.engine.setting import Placement
from model.ledgers.bookie import BookieState
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.protocol.quorums import Quorums

QUORUMS = Quorums(3, 3, 2)
BOOKIES = 4
ENTRIES_MAX = 2

type History = tuple[tuple[int, str], ...]
"""Fragments by first id and bookies."""

HISTORIES: tuple[History, ...] = (
    ((0, "abc"),),
    ((0, "abc"), (1, "abd")),
    ((0, "abc"), (2, "abd")),
)
"""A change before the first entry replaces the only fragment, and is like none."""


def placements(
    entries: int,
    *,
    histories: Sequence[History] = HISTORIES,
    fences: bool = False,
    explicit_lacs: bool = False,
    late_adds: bool = False,
    replaced_are_asked: bool = True,
) -> Iterator[Placement]:
    """Every one of these entries, after each of ``histories``.

    ``fences``: also those with bookies fenced before, or the metadata IN_RECOVERY; ``explicit_lacs``: also those with
    explicit LACs; ``late_adds``: every entry not placed on a bookie is still on its way there. Unless
    ``replaced_are_asked``, which takes a change of the ensemble to come, bookies outside the last ensemble hold what
    they were to hold, and nothing else: no client asks them.
    """
    for history in histories:
        ledger = metadata(QUORUMS, *history)
        for holdings in product(range(1 << entries), repeat=BOOKIES):
            acknowledged = _acknowledged(ledger, holdings, entries)
            if not _possible(ledger, holdings, acknowledged):
                continue
            if not (replaced_are_asked or _others_hold_their_share(ledger, holdings, entries)):
                continue
            for sealed_with in range(-1, min(acknowledged, entries - 2) + 1):
                written = (sealed(0, -1), sealed(1, sealed_with))[:entries]
                late = _late(ledger, holdings, written) if late_adds else ()
                bare = Placement(ledger, _bookies(holdings, written), late, acknowledged)
                yield from _with_fences_and_lacs(bare, fences=fences, explicit_lacs=explicit_lacs)


def _write_set(ledger: LedgerMetadata, entry_id: int) -> list[int]:
    fragment = next(part for part in reversed(ledger.fragments) if part.first_entry_id <= entry_id)
    return [bookie_index(name) for name in fragment.bookies]


def _acknowledged(ledger: LedgerMetadata, holdings: tuple[int, ...], entries: int) -> int:
    """The last entry that may have been acknowledged: all up to it on Qa bookies of their write sets."""
    for entry_id in range(entries):
        if sum(holdings[at] >> entry_id & 1 for at in _write_set(ledger, entry_id)) < QUORUMS.ack_quorum:
            return entry_id - 1
    return entries - 1


def _possible(ledger: LedgerMetadata, holdings: tuple[int, ...], acknowledged: int) -> bool:
    """Whether a writer can leave this: the last fragment starts after the LAC, and bookies hold what they were sent."""
    if ledger.last_fragment.first_entry_id - 1 > acknowledged:
        return False
    return all(
        any(bookie_id(at) in part.bookies for part in ledger.fragments if part.first_entry_id <= entry_id)
        for at in range(BOOKIES)
        for entry_id in range(ENTRIES_MAX)
        if holdings[at] >> entry_id & 1
    )


def _others_hold_their_share(ledger: LedgerMetadata, holdings: tuple[int, ...], entries: int) -> bool:
    """Whether every bookie outside the last ensemble holds exactly the entries of whose write sets it is."""
    return all(
        (at in _write_set(ledger, entry_id)) == bool(holdings[at] >> entry_id & 1)
        for at in range(BOOKIES)
        if bookie_id(at) not in ledger.last_fragment.bookies
        for entry_id in range(entries)
    )


def _bookies(holdings: tuple[int, ...], entries: tuple[bytes, ...]) -> tuple[BookieState, ...]:
    return tuple(
        BookieState(held=tuple(entry for entry_id, entry in enumerate(entries) if held >> entry_id & 1))
        for held in holdings
    )


def _late(ledger: LedgerMetadata, holdings: tuple[int, ...], entries: tuple[bytes, ...]) -> tuple[Message, ...]:
    """Adds still on their way to bookies that should hold them and do not."""
    return tuple(
        Message(None, at, None, Add((entry,), recovery=False))
        for entry_id, entry in enumerate(entries)
        for at in _write_set(ledger, entry_id)
        if not holdings[at] >> entry_id & 1
    )


def _with_fences_and_lacs(bare: Placement, *, fences: bool, explicit_lacs: bool) -> Iterator[Placement]:
    """The placement with every set of fenced members, and every explicit LAC that a member may hold."""
    members = [bookie_index(name) for name in bare.metadata.last_fragment.bookies]
    lacs = [None, *map(sealed_lac, range(bare.acknowledged + 1))] if explicit_lacs else [None]
    for fenced in product((False, True) if fences else (False,), repeat=len(members)):
        for told in product(lacs, repeat=len(members)):
            bookies = list(bare.bookies)
            for at, is_fenced, lac in zip(members, fenced, told, strict=True):
                bookies[at] = replace(bookies[at], fenced=is_fenced, explicit_lac=lac)
            placement = replace(bare, bookies=tuple(bookies))
            if not any(fenced):
                yield placement
            if fences:
                yield replace(placement, metadata=bare.metadata.in_recovery())
