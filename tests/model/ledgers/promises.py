"""Checks rules I1 to I7, I9 and N1 from outside: from the metadata, what bookies hold, and what clients report to
callers.

Every check is computed from scratch in every state, and by other means than the machines use, so that it does not
repeat their mistakes.
"""

from collections.abc import Sequence
from itertools import pairwise

from model.engine.renaming import BOOKIE_NAMES, bookie_index
from model.ledgers.bookie import Bookie, BookieState
from model.ledgers.client import Client
from octavo.metadata.ledger.model import LedgerMetadata, LedgerState
from octavo.protocol.entries import CHECKSUM, header_of
from octavo.protocol.ids import EntryId
from octavo.protocol.quorums import Quorums


class Promises:
    """The promises of one ledger whose entry ``i`` has the payload ``payloads[i]``."""

    def __init__(self, quorums: Quorums, payloads: tuple[bytes, ...], bookie: Bookie) -> None:
        self._ensemble_size = quorums.ensemble_size
        self._write_quorum = quorums.write_quorum
        self._ack_quorum = quorums.ack_quorum
        self._payloads = payloads
        self._bookie = bookie

    def broken(
        self,
        metadata: LedgerMetadata,
        bookies: Sequence[BookieState],
        clients: Sequence[Client],
        lost: int,
    ) -> str | None:
        """The first broken promise in words, or None. ``lost``: copies that faults have taken so far, each of which
        may have been of any entry.
        """
        acknowledged = max(max(client.acknowledged, client.acknowledged_before) for client in clients)
        return (
            self._fragments(metadata)
            or self._one_value(bookies)
            or self._confirmed(metadata, bookies, acknowledged)
            or self._readers(metadata, bookies, acknowledged)
            or self._replicated(metadata, bookies, acknowledged, lost)
            or self._owed(metadata, bookies, lost)
            or (self._end(metadata, clients, acknowledged) if metadata.state is LedgerState.CLOSED else None)
        )

    def named(
        self, before: LedgerMetadata, after: LedgerMetadata, bookies: Sequence[BookieState], lost: int
    ) -> str | None:
        """What a bookie lacks that repair names in a settled range (rule N1), in words, or None. ``lost``: copies that
        faults have taken so far; those of the bookie may be among them."""
        earlier = {fragment.first_entry_id: fragment for fragment in before.fragments}
        stops = [fragment.first_entry_id for fragment in after.fragments[1:]]
        stops.append(EntryId(0 if after.last_entry_id is None else after.last_entry_id + 1))
        for fragment, stop in zip(after.fragments, stops, strict=True):
            known = earlier.get(fragment.first_entry_id)
            if known is None or (known is before.last_fragment and before.state is not LedgerState.CLOSED):
                continue
            for position, (old, new) in enumerate(zip(known.bookies, fragment.bookies, strict=True)):
                share = [
                    entry_id
                    for entry_id in range(fragment.first_entry_id, stop)
                    if (position - entry_id) % self._ensemble_size < self._write_quorum
                ]
                lacking = [one for one in share if not holds_durably(bookies[bookie_index(new)], one)]
                if old != new and len(lacking) > lost:
                    return f"N1: bookie {new} takes the place of {old} and lacks {lacking}"
        return None

    def _fragments(self, metadata: LedgerMetadata) -> str | None:
        firsts = [fragment.first_entry_id for fragment in metadata.fragments]
        if firsts[0] != 0 or any(low >= high for low, high in pairwise(firsts)):
            return f"I6: fragments start at {firsts}"
        for fragment in metadata.fragments:
            if len(set(fragment.bookies)) != self._ensemble_size:
                return f"I6: the ensemble {fragment.bookies} is not {self._ensemble_size} distinct bookies"
        return None

    def _one_value(self, bookies: Sequence[BookieState]) -> str | None:
        seen: dict[int, tuple[int, bytes]] = {}
        for at, bookie in enumerate(bookies):
            for sealed in bookie.held:
                header = header_of(sealed)
                entry_id = header.entry_id
                if entry_id in bookie.damaged:
                    continue
                other, bytes_there = seen.setdefault(entry_id, (at, sealed))
                if bytes_there != sealed:
                    both = f"{BOOKIE_NAMES[other]} and {BOOKIE_NAMES[at]}"
                    return f"I3: bookies {both} hold different bytes for entry {entry_id}"
                if sealed[-CHECKSUM.size - header.payload_bytes : -CHECKSUM.size] != self._payloads[entry_id]:
                    return f"I4: bookie {BOOKIE_NAMES[at]} holds another payload at entry {entry_id} than was written"
        return None

    def _confirmed(self, metadata: LedgerMetadata, bookies: Sequence[BookieState], acknowledged: int) -> str | None:
        """Only the writer makes LACs (rule W2)."""
        for at, bookie in enumerate(bookies):
            known = _last_add_confirmed(bookie)
            if known > acknowledged:
                return f"W2: bookie {BOOKIE_NAMES[at]} knows LAC {known}; acknowledged is {_up_to(acknowledged)}"
        first = metadata.last_fragment.first_entry_id
        if metadata.state is not LedgerState.CLOSED and first - 1 > acknowledged:
            return f"R3: the last fragment starts at {first}; acknowledged is {_up_to(acknowledged)}"
        return None

    def _readers(self, metadata: LedgerMetadata, bookies: Sequence[BookieState], acknowledged: int) -> str | None:
        """What an ordinary read shows is acknowledged, or below the end of a closed ledger."""
        end = acknowledged
        if metadata.state is LedgerState.CLOSED:
            end = max(end, -1 if metadata.last_entry_id is None else metadata.last_entry_id)
        for at, bookie in enumerate(bookies):
            shown = [
                header_of(sealed).entry_id for sealed in self._bookie.readable(bookie, _last_add_confirmed(bookie))
            ]
            if shown and max(shown) > end:
                name = BOOKIE_NAMES[at]
                return f"I3: bookie {name} shows entry {max(shown)} to readers; acknowledged is {_up_to(acknowledged)}"
        return None

    def _replicated(
        self, metadata: LedgerMetadata, bookies: Sequence[BookieState], acknowledged: int, lost: int
    ) -> str | None:
        """Acknowledged entries, and those of a closed ledger, are durable on Qa bookies of their write sets."""
        closed = metadata.state is LedgerState.CLOSED
        last = acknowledged
        if closed:
            last = -1 if metadata.last_entry_id is None else metadata.last_entry_id
        for entry_id in range(last + 1):
            ensemble = next(part for part in reversed(metadata.fragments) if part.first_entry_id <= entry_id).bookies
            write_set = [
                bookie_index(ensemble[(entry_id + offset) % self._ensemble_size])
                for offset in range(self._write_quorum)
            ]
            holders = [at for at in write_set if holds_durably(bookies[at], entry_id)]
            if len(holders) + lost < self._ack_quorum:
                return (
                    f"{'I5' if closed else 'I1'}: entry {entry_id} is "
                    f"{'part of the closed ledger' if closed else 'acknowledged'} and durable on "
                    f"{[BOOKIE_NAMES[at] for at in holders]} of its write set {[BOOKIE_NAMES[at] for at in write_set]}"
                )
        return None

    def _owed(self, metadata: LedgerMetadata, bookies: Sequence[BookieState], lost: int) -> str | None:
        """Where books are kept, entries of settled fragments are durable on Qw bookies, or owed."""
        if metadata.full_copies is None:
            return None
        stops: list[int] = [fragment.first_entry_id for fragment in metadata.fragments[1:]]
        if metadata.state is LedgerState.CLOSED:
            stops.append(0 if metadata.last_entry_id is None else metadata.last_entry_id + 1)
        for fragment, stop in zip(metadata.fragments, stops, strict=False):
            for entry_id in range(fragment.first_entry_id, stop):
                holders = [
                    name
                    for offset in range(self._write_quorum)
                    if holds_durably(
                        bookies[bookie_index(name := fragment.bookies[(entry_id + offset) % self._ensemble_size])],
                        entry_id,
                    )
                ]
                owed = fragment.debt is None or fragment.debt.first <= entry_id <= fragment.debt.last
                if len(holders) + lost < self._write_quorum and not owed:
                    return f"I9: entry {entry_id} is durable on {holders} only, and is not owed"
        return None

    def _end(self, metadata: LedgerMetadata, clients: Sequence[Client], acknowledged: int) -> str | None:
        end = -1 if metadata.last_entry_id is None else metadata.last_entry_id
        if acknowledged > end:
            return f"I2, I7: closed {_at(end)}, but {_up_to(acknowledged)} was acknowledged"
        if end >= len(self._payloads):
            return f"I4: closed {_at(end)}, but {len(self._payloads)} entries were written"
        length = sum(map(len, self._payloads[: end + 1]))
        if metadata.length != length:
            return f"I2: closed {_at(end)} with length {metadata.length}; it is {length}"
        for client in clients:
            # Repair may have replaced members since (rule C2); the end is final.
            if client.settled is not None and _ended(client.settled) != _ended(metadata):
                return f"I2: a client was told another end: {client.settled.last_entry_id}, {client.settled.length}"
            first = client.did_not_happen_from
            if first is not None and end >= first:
                return f"W6: closed {_at(end)}, but a caller was told that entry {first} did not happen"
        return None


def _ended(metadata: LedgerMetadata) -> tuple[LedgerState, int | None, int]:
    return metadata.state, metadata.last_entry_id, metadata.length


def _last_add_confirmed(bookie: BookieState) -> int:
    """The highest LAC that the bookie's intact entries and its explicit LAC vouch for; -1 for none."""
    known = [header_of(sealed) for sealed in bookie.held if header_of(sealed).entry_id not in bookie.damaged]
    if bookie.explicit_lac is not None:
        known.append(header_of(bookie.explicit_lac))
    return max((header.last_add_confirmed_plus_one - 1 for header in known), default=-1)


def holds_durably(bookie: BookieState, entry_id: int) -> bool:
    return entry_id not in bookie.damaged | bookie.unsynced and bookie.entry(entry_id) is not None


def _up_to(entry_id: int) -> str:
    return "nothing" if entry_id < 0 else f"up to entry {entry_id}"


def _at(entry_id: int) -> str:
    return "empty" if entry_id < 0 else f"at entry {entry_id}"
