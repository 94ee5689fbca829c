"""Checks the promises of a stream from outside: rules I1 to I7 for each term, and N2 to N5, which are about terms.

As in :mod:`model.ledgers.promises`, everything is computed from scratch in every state. A reader is a predicate:
whatever LAC of whatever bookie it may have met, with metadata of whatever term, what it is shown must be part of the
stream. It may have any version of the metadata that was ever stored: a version decides nothing but whom a reader asks,
which is every bookie here; the term that it follows, which is every term here; the ends of terms and the places of
positions, which no change of the metadata may move (:meth:`StreamPromises.named`).

* I9: what lacks copies is owed, where books are kept of them;
* N2: a term has one opener;
* N3: the bytes at a position never change, and an acknowledged position is in every later version of the metadata;
* N4: nothing above the end of its term, or above its LAC, is readable;
* N5: the start, the term, and the positions of places never go back;
* T3: a client that takes a term over reads nothing of a later one, and withdraws when it learns of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from model.engine.exchange import id_text
from model.engine.renaming import BOOKIE_NAMES, bookie_index
from model.ledgers.bookie import BookieState
from model.ledgers.client import Client
from model.ledgers.promises import Promises, holds_durably
from model.streams.writer import StreamWriter, payload_of
from octavo.client.read.terms import confirmed_in
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, StreamState, position_in
from octavo.protocol.entries import CHECKSUM, header_of
from octavo.protocol.places import offset_of, place, term_of


class StreamPromises(Promises):
    """The promises of one stream."""

    def broken(self, metadata: Any, bookies: Sequence[BookieState], clients: Sequence[Client], lost: int) -> str | None:
        assert isinstance(metadata, StreamMetadata)
        writers = [one for client in clients if (one := getattr(client, "writing", None)) is not None]
        acknowledged = {writer.term: writer.acknowledged for writer in writers}
        for writer in writers:
            acknowledged.update(writer.ended_terms)
        before = max(client.acknowledged_before for client in clients)
        if before >= 0:
            acknowledged.setdefault(term_of(before), before)
        astray = next((text for client in clients if (text := getattr(client, "astray", None)) is not None), None)
        return (
            (astray and f"T3: {astray}")
            or _openers(metadata, writers)
            or _one_value(bookies)
            or _confirmed(bookies, acknowledged)
            or _ends(metadata, writers, acknowledged)
            or _positions(metadata, writers)
            or _lengths(metadata, bookies)
            or self._copies(metadata, bookies, acknowledged, lost)
            or self._full(metadata, bookies, lost)
            or self._shown(metadata, bookies, acknowledged)
        )

    def named(self, before: Any, after: Any, bookies: Sequence[BookieState], lost: int) -> str | None:
        """What a change of the metadata takes back: N2, N3 and N5; and what it owes and must not: I9."""
        assert isinstance(before, StreamMetadata)
        assert isinstance(after, StreamMetadata)
        if after.term < before.term or after.start < before.start:
            return f"N5: the term goes from {before.term} to {after.term}, the start to {after.start}"
        if after.term == before.term and after.owner != before.owner:
            return f"N2: term {after.term} gets another owner"
        if after.term == before.term and before.has_end and after.last_entry_id != before.last_entry_id:
            return f"N3: term {after.term} gets another end"
        if (owing := _owes_what_is_required(before, after)) is not None:
            return owing
        for position in range(64):
            known = before.place_at(position)
            if known is None:
                return None
            if after.place_at(position) != known:
                return f"N3: position {position} moves from {id_text(known)}"
        raise AssertionError("settings have few entries")

    def readable(self, term: int, last_add_confirmed: int) -> int | None:
        """Up to which place of a term a reader goes that has met this LAC (rule V1)."""
        return confirmed_in(term, last_add_confirmed)

    def _shown(
        self, metadata: StreamMetadata, bookies: Sequence[BookieState], acknowledged: Mapping[int, int]
    ) -> str | None:
        lacs = set(_lacs(bookies))
        for term in range(1, metadata.term + 1):
            bounds = [bound for lac in lacs if (bound := self.readable(term, lac)) is not None]
            end = metadata.end_of_term(term)
            limit = acknowledged.get(term, place(term, 0) - 1) if end is None else end
            for at, bookie in enumerate(bookies):
                for sealed in bookie.held:
                    entry_id = header_of(sealed).entry_id
                    if term_of(entry_id) == term and limit < entry_id <= max(bounds, default=-1):
                        name = BOOKIE_NAMES[at]
                        return f"N4: a reader of term {term} is shown {id_text(entry_id)} by bookie {name}"
        return None

    def _copies(
        self, metadata: StreamMetadata, bookies: Sequence[BookieState], acknowledged: Mapping[int, int], lost: int
    ) -> str | None:
        for fragment in metadata.fragments:
            end = metadata.last_id_of(fragment)
            settled = end is not None
            last = acknowledged.get(fragment.term, fragment.first_entry_id - 1) if end is None else end
            for entry_id in range(fragment.first_entry_id, last + 1):
                write_set = _write_set(fragment, entry_id)
                holders = [at for at in write_set if holds_durably(bookies[at], entry_id)]
                if len(holders) + lost < fragment.ack_quorum:
                    what = "I5: the settled" if settled else "I1: the acknowledged"
                    names = [BOOKIE_NAMES[at] for at in holders]
                    return f"{what} entry {id_text(entry_id)} is durable on {names} of its write set"
        return None

    def _full(self, metadata: StreamMetadata, bookies: Sequence[BookieState], lost: int) -> str | None:
        """Where books are kept, entries of settled fragments are durable on Qw bookies, or owed. All clients here know
        debts, so each of these fragments has one recorded; without it, it would owe everything."""
        if metadata.full_copies is None:
            return None
        for fragment in metadata.fragments:
            end = metadata.last_id_of(fragment)
            for entry_id in range(fragment.first_entry_id, fragment.first_entry_id if end is None else end + 1):
                if fragment.debt is None:
                    return f"I9: what is owed of the fragment from {id_text(fragment.first_entry_id)} is not recorded"
                owed = fragment.debt.first <= entry_id <= fragment.debt.last
                holders = [at for at in _write_set(fragment, entry_id) if holds_durably(bookies[at], entry_id)]
                if len(holders) + lost < fragment.write_quorum and not owed:
                    names = [BOOKIE_NAMES[at] for at in holders]
                    return f"I9: entry {id_text(entry_id)} is durable on {names} only, and is not owed"
        return None


def _owes_what_is_required(before: StreamMetadata, after: StreamMetadata) -> str | None:
    """Where copies are required, the changes of a writer settle nothing that lacks any: only its own change an open
    term, and its beginning settles nothing."""
    if before.full_copies is not FullCopies.REQUIRED or before.state is not StreamState.OPEN:
        return None
    known = {fragment.first_entry_id for fragment, _ in before.debts}
    for fragment, debt in after.debts:
        if fragment.first_entry_id not in known:
            return f"I9: all copies are required, and a writer's change owes {id_text(debt.first)}"
    return None


def _openers(metadata: StreamMetadata, writers: Sequence[StreamWriter]) -> str | None:
    terms = [writer.term for writer in writers]
    if len(set(terms)) != len(terms):
        return f"N2: two writers have a term of {sorted(terms)}"
    for writer in writers:
        if writer.term > metadata.term or (writer.term == metadata.term and writer.owner != metadata.owner):
            return f"N2: {writer.name} does not own it"
    return None


def _one_value(bookies: Sequence[BookieState]) -> str | None:
    seen: dict[int, bytes] = {}
    writer_of: dict[int, int] = {}
    for at, bookie in enumerate(bookies):
        for sealed in bookie.held:
            header = header_of(sealed)
            entry_id = header.entry_id
            if entry_id in bookie.damaged:
                continue
            if seen.setdefault(entry_id, sealed) != sealed:
                return f"N3: bookie {BOOKIE_NAMES[at]} holds other bytes at {id_text(entry_id)} than another one"
            payload = sealed[-CHECKSUM.size - header.payload_bytes : -CHECKSUM.size]
            writer = payload[0] - ord("A")
            if payload != payload_of(writer, offset_of(entry_id)):
                return f"I4: bookie {BOOKIE_NAMES[at]} holds another payload at {id_text(entry_id)} than was written"
            if writer_of.setdefault(term_of(entry_id), writer) != writer:
                return f"N2: two writers have written in term {term_of(entry_id)}"
    return None


def _lacs(bookies: Sequence[BookieState]) -> Iterator[int]:
    for bookie in bookies:
        held = [sealed for sealed in bookie.held if header_of(sealed).entry_id not in bookie.damaged]
        for sealed in (*held, *([bookie.explicit_lac] if bookie.explicit_lac is not None else [])):
            yield header_of(sealed).last_add_confirmed_plus_one - 1


def _confirmed(bookies: Sequence[BookieState], acknowledged: Mapping[int, int]) -> str | None:
    """Only the writer of a term makes its LACs (rule W2)."""
    for lac in _lacs(bookies):
        term = term_of(lac + 1)
        if lac > acknowledged.get(term, place(term, 0) - 1):
            return f"W2: a bookie knows the LAC {id_text(lac)}, which was not acknowledged"
    return None


def _ends(metadata: StreamMetadata, writers: Sequence[StreamWriter], acknowledged: Mapping[int, int]) -> str | None:
    for term, last in acknowledged.items():
        end = metadata.end_of_term(term)
        if end is not None and last > end:
            return f"I7: term {term} ends at {id_text(end)}, but {id_text(last)} was acknowledged"
    for writer in writers:
        if writer.found_fenced and metadata.term == writer.term and metadata.state is StreamState.OPEN:
            return f"T2: {writer.name} has been fenced, and no takeover of its term has begun"
        end = metadata.end_of_term(writer.term)
        if writer.ended_at is not None and end != writer.ended_at:
            return f"I2: {writer.name} was told the end {id_text(writer.ended_at)}; it is another one"
        first = writer.did_not_happen_from
        if end is not None and first is not None and end >= first:
            return f"W6: {writer.name} was told that {id_text(first)} did not happen, but it is in the stream"
    return None


def _positions(metadata: StreamMetadata, writers: Sequence[StreamWriter]) -> str | None:
    """Each acknowledged entry has the position that its writer named, in these metadata: N3."""
    for writer in writers:
        parts = [part for part in metadata.fragments if part.term == writer.term]
        for entry_id in range(writer.first_entry_id, writer.acknowledged + 1):
            part = next((part for part in reversed(parts) if part.first_entry_id <= entry_id), None)
            if part is None:
                return f"N3: {id_text(entry_id)} was acknowledged, and no fragment has it"
            if position_in(part, entry_id) != writer.first_position + entry_id - writer.first_entry_id:
                return f"N3: {id_text(entry_id)} was acknowledged at another position"
    return None


def _lengths(metadata: StreamMetadata, bookies: Sequence[BookieState]) -> str | None:
    """The lengths are the payload bytes of all positions before (rule I2), as far as their entries still exist."""
    headers = [header_of(sealed) for bookie in bookies for sealed in bookie.held]
    sizes: dict[int, int] = {header.entry_id: header.payload_bytes for header in headers}
    length = 0
    for fragment in metadata.fragments:
        if fragment.length_before != length:
            return f"I2: the fragment from {id_text(fragment.first_entry_id)} has a wrong length before it"
        last = metadata.last_id_of(fragment)
        if last is None:
            return None
        places = range(fragment.first_entry_id, last + 1)
        if not sizes.keys() >= set(places):
            return None
        length += sum(sizes[entry_id] for entry_id in places)
    return None if metadata.length == length else f"I2: the stream ends with length {metadata.length}; it is {length}"


def _write_set(fragment: StreamFragment, entry_id: int) -> list[int]:
    size = len(fragment.bookies)
    return [bookie_index(fragment.bookies[(entry_id + offset) % size]) for offset in range(fragment.write_quorum)]
