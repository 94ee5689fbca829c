"""What each change of a stream's metadata does with what it finds in the store: the table of metadata.stream_changes,
and many clients that change one stream at the same time."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from octavo.metadata.ledger.changes import ReplaceMember
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.stream.changes import (
    FRAGMENTS_BYTES_MAX,
    BeginTakeover,
    ChangeFragment,
    LayToRest,
    OpenTerm,
    PageFirst,
    RenewTerm,
    Rest,
    SealStream,
    StreamChange,
    TermEnd,
    Truncate,
)
from octavo.metadata.stream.encoding import encode_stream, encoded_fragments_bytes
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.protocol.errors import (
    InternalError,
    InvalidArgumentError,
    LedgerClosedError,
    MetadataConflictError,
    TermOverError,
)
from octavo.protocol.ids import TERM_MAX, BookieId, EntryId
from octavo.protocol.places import place
from support.metadata.ledger_metadata import bookie_ids
from support.metadata.stream_metadata import open_stream, stream_fragment

EARLIER = stream_fragment(1, 0, 0, "xyz")
BASE = stream_fragment(3, 0, 10, "abc", 100)
NEW = stream_fragment(3, 20, 30, "abd", 300)
END = TermEnd(place(3, 29), 400)
NEXT = stream_fragment(1, 0, 0, "efg", opened_at_ms=9)
"""Of what opens a term, only ensemble, quorums, key and time count."""

OPEN = open_stream(EARLIER, BASE)
RESTING = OPEN.at_rest(END.last_entry_id, END.length)
OTHER_REST = OPEN.at_rest(place(3, 28), 390)
FOUND = {
    "open": OPEN,
    "open, older fragment repaired": open_stream(stream_fragment(1, 0, 0, "xyw"), BASE),
    "open, truncated": OPEN.truncated(5),
    "open, changed already": OPEN.with_fragment(NEW),
    "open, other last fragment": OPEN.with_fragment(stream_fragment(3, 5, 15, "uvw", 150)),
    "open, base on other bookies": OPEN.with_fragment(replace(BASE, bookies=NEXT.bookies)),
    "in recovery": OPEN.in_recovery(),
    "in recovery, truncated": OPEN.in_recovery().truncated(10),
    "in recovery, other last": OPEN.with_fragment(stream_fragment(3, 5, 15, "uvw", 150)).in_recovery(),
    "at rest, that end": RESTING,
    "at rest, other end": OTHER_REST,
    "at rest, other length": OPEN.at_rest(END.last_entry_id, 401),
    "next term, own": RESTING.with_next_term("me", NEXT),
    "next term, another's": RESTING.with_next_term("she", NEXT),
    "next term, other end": OTHER_REST.with_next_term("she", NEXT),
    "next term, end truncated": RESTING.with_next_term("she", NEXT).truncated(99),
    "next term, own, in recovery": RESTING.with_next_term("me", NEXT).in_recovery(),
    "next term, own, at rest": RESTING.with_next_term("me", NEXT).at_rest(place(4, 0), 401),
    "term after next, own": RESTING.with_next_term("x", NEXT).at_rest(place(4, 0), 401).with_next_term("me", NEXT),
    "earlier term": open_stream(EARLIER),
    "closed, that end": RESTING.closed(),
    "closed, other end": OTHER_REST.closed(),
    "closed in a later term": RESTING.with_next_term("me", NEXT).at_rest(place(4, 0), 401).closed(),
}
"""An owner is the token of one attempt, so "own" is the term that this attempt has opened, whatever its number is."""
CHANGES: dict[str, StreamChange] = {
    "change": ChangeFragment(BASE, NEW),
    "rest": Rest(BASE, END),
    "begin": BeginTakeover(3),
    "open": OpenTerm(BASE, (NEW,), END, "me", NEXT),
    "renew": RenewTerm(BASE, END, "me", NEXT),
    "lay": LayToRest(BASE, (NEW,), END),
    "seal": SealStream(3),
    "trunc": Truncate(10),
}
TABLE = """
                               change    rest      begin     open      renew     lay       seal      trunc
open                           write     write     write     conflict  write     conflict  conflict  write
open, older fragment repaired  write     write     write     conflict  write     conflict  conflict  write
open, truncated                write     write     write     conflict  write     conflict  conflict  write
open, changed already          settled   second    write     conflict  second    conflict  conflict  write
open, other last fragment      second    second    write     conflict  second    conflict  conflict  write
open, base on other bookies    second    second    write     conflict  second    conflict  conflict  write
in recovery                    over      over      settled   write     over      write     conflict  write
in recovery, truncated         over      over      settled   write     over      write     conflict  settled
in recovery, other last        over      over      settled   conflict  over      conflict  conflict  write
at rest, that end              over      settled   settled   write     over      settled   write     write
at rest, other end             over      conflict  settled   conflict  over      settled   write     write
at rest, other length          over      conflict  settled   conflict  over      settled   write     write
next term, own                 over      settled   over      settled   settled   over      over      write
next term, another's           over      settled   over      over      over      over      over      write
next term, other end           over      over      over      over      over      over      over      write
next term, end truncated       over      over      over      over      over      over      over      settled
next term, own, in recovery    over      settled   over      over      over      over      over      write
next term, own, at rest        over      settled   over      over      over      over      over      write
term after next, own           over      settled   over      settled   settled   over      over      write
earlier term                   conflict  conflict  conflict  conflict  conflict  conflict  conflict  settled
closed, that end               closed    settled   closed    closed    closed    closed    settled   write
closed, other end              closed    closed    closed    closed    closed    closed    settled   write
closed in a later term         closed    settled   closed    closed    closed    closed    closed    write
"""
OUTCOMES = {
    TermOverError: "over",
    LedgerClosedError: "closed",
    MetadataConflictError: "conflict",
    InternalError: "second",
}


def rows() -> dict[tuple[str, str], str]:
    _, header, *lines, _ = TABLE.split("\n")
    outcomes = {}
    for line in lines:
        found, cells = line[:31].strip(), line[31:].split()
        outcomes.update({(found, change): cell for change, cell in zip(header.split(), cells, strict=True)})
    return outcomes


def outcome(change: StreamChange, found: StreamMetadata) -> str:
    decision = change.decide(found)
    if isinstance(decision, Refuse):
        return OUTCOMES[type(decision.error)]
    return "write" if isinstance(decision, Write) else "settled"


def written(change: StreamChange, found: StreamMetadata) -> StreamMetadata:
    decision = change.decide(found)
    assert isinstance(decision, Write), decision
    return decision.metadata


def test_every_change_has_a_row_for_everything_it_can_find() -> None:
    assert set(rows()) == set(itertools.product(FOUND, CHANGES))


@pytest.mark.parametrize(("found", "change"), rows())
def test_decision_is_as_the_table_says(found: str, change: str) -> None:
    """Rules T1, T2, T5, T8, T9, T10 and T11."""
    assert outcome(CHANGES[change], FOUND[found]) == rows()[found, change]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("found", FOUND)
def test_own_write_whose_answer_was_lost_is_settled(found: str, change: str) -> None:
    """A repair in between leaves another token, and takes nothing away (rule T1)."""
    decision = CHANGES[change].decide(FOUND[found])
    if isinstance(decision, Write):
        stored = decision.metadata
        first, *rest = stored.fragments
        repaired = replace(first, bookies=bookie_ids(*"uvw")) if rest else first
        stored = replace(stored, fragments=(repaired, *rest), writer_token="repair")
        assert isinstance(CHANGES[change].decide(stored), Settled)


@pytest.mark.parametrize("change", CHANGES)
def test_refusals_did_not_happen_and_name_the_stream(change: str) -> None:
    for found in FOUND.values():
        decision = CHANGES[change].decide(found)
        if isinstance(decision, Refuse):
            assert not decision.error.may_have_happened
            assert "stream 7" in decision.error.message


def test_the_refusal_of_a_writer_whose_term_is_over_says_by_whom() -> None:
    begin = BeginTakeover(3, datetime(2026, 5, 4, 12, 30, tzinfo=UTC), "host-2")
    refusal = CHANGES["change"].decide(written(begin, OPEN))
    assert isinstance(refusal, Refuse)
    assert refusal.error.message.endswith(
        "taken over by another client (host-2), which fenced it at 2026-05-04 12:30:00+00:00"
    )


def test_a_takeover_ends_the_term_and_opens_the_next_one_in_one_write() -> None:
    """Rule T5: with the fragments that recovery made of the last one, where the positions go on."""
    opened = written(CHANGES["open"], OPEN.in_recovery(datetime(2026, 5, 4, tzinfo=UTC), "me"))
    first = replace(NEXT, first_entry_id=place(4, 0), first_position=40, length_before=400)
    assert opened.fragments == (EARLIER, BASE, NEW, first)
    assert (opened.state, opened.term, opened.owner) == (StreamState.OPEN, 4, "me")
    assert (opened.last_entry_id, opened.length, opened.end_of_term(3)) == (None, 0, END.last_entry_id)
    assert (opened.fenced_at, opened.fenced_by) == (None, "")


def test_a_takeover_from_rest_drops_the_fragments_of_its_own_recovery() -> None:
    """Rule T8: another client has settled the end without them."""
    assert [fragment.first_position for fragment in written(CHANGES["open"], RESTING).fragments] == [0, 10, 40]


def test_terms_that_a_restore_leaves_out_are_never_given() -> None:
    """Rule T1: a writer of the time after the dump may have had any of them."""
    restored = OPEN.restored(1000)
    assert (restored.term, restored.state, restored.fragments) == (3, StreamState.OPEN, OPEN.fragments)
    opened = written(CHANGES["open"], restored.in_recovery())
    assert (opened.term, opened.last_fragment.first_entry_id, opened.terms_skipped) == (1004, place(1004, 0), 0)
    assert isinstance(CHANGES["open"].decide(opened), Settled)
    assert opened.end_of_term(3) == END.last_entry_id
    assert opened.end_of_term(500) == place(500, 0) - 1
    renewed = written(CHANGES["renew"], restored.restored(1000))
    assert (renewed.term, renewed.next_term) == (2004, 2005)
    resting = RESTING.restored(5)
    assert written(CHANGES["open"], resting).term == 9
    assert RESTING.restored(TERM_MAX).next_term == TERM_MAX + 1
    with pytest.raises(InvalidArgumentError):
        RESTING.restored(TERM_MAX).with_next_term("me", NEXT)


def naming(first: int, last: int, position: int, old_and_new: str) -> ReplaceMember:
    old, new = map(BookieId, old_and_new)
    return ReplaceMember(EntryId(first), last, position, old, new)


@pytest.mark.parametrize(
    ("found", "change", "expected"),
    [
        (OPEN, naming(place(1, 0), place(1, 9), 1, "yn"), "write"),
        (OPEN.truncated(5), naming(place(1, 0), place(1, 9), 1, "yn"), "write"),
        (OPEN.in_recovery(), naming(place(1, 0), place(1, 9), 0, "xn"), "write"),
        (OPEN, naming(place(1, 0), place(1, 9), 0, "wx"), "settled"),
        (OPEN, naming(place(1, 0), place(1, 9), 0, "yn"), "conflict"),
        (OPEN, naming(place(1, 0), place(1, 9), 0, "xy"), "conflict"),
        (OPEN, naming(place(1, 0), place(1, 9), 3, "xn"), "conflict"),
        (OPEN, naming(place(1, 0), place(1, 9), -1, "zn"), "conflict"),
        (OPEN, naming(place(1, 0), place(1, 8), 0, "xn"), "conflict"),
        (OPEN, naming(place(1, 1), place(1, 9), 0, "xn"), "conflict"),
        (
            OPEN.truncated(10),
            naming(place(1, 0), place(1, 9), 0, "xn"),
            "conflict",
        ),
        (OPEN, naming(place(3, 0), place(3, 29), 0, "an"), "conflict"),
        (
            OPEN.in_recovery(),
            naming(place(3, 0), place(3, 29), 0, "an"),
            "conflict",
        ),
        (RESTING, naming(place(3, 0), place(3, 29), 0, "an"), "write"),
        (RESTING.closed(), naming(place(3, 0), place(3, 29), 2, "cn"), "write"),
        (OTHER_REST, naming(place(3, 0), place(3, 29), 0, "an"), "conflict"),
        (
            RESTING.with_next_term("she", NEXT),
            naming(place(3, 0), place(3, 29), 0, "an"),
            "write",
        ),
    ],
)
def test_repair_replaces_members_of_settled_fragments_only(
    found: StreamMetadata, change: ReplaceMember, expected: str
) -> None:
    """Rules C2 and C5: whatever the state, and nothing but that name changes."""
    assert outcome(change, found) == expected
    if expected == "write":
        repaired = written(change, found)
        (at,) = [at for at, one in enumerate(found.fragments) if one.first_entry_id == change.first_entry_id]
        bookies = list(found.fragments[at].bookies)
        bookies[change.position] = change.new
        fragment = replace(found.fragments[at], bookies=tuple(bookies))
        assert repaired == replace(found, fragments=(*found.fragments[:at], fragment, *found.fragments[at + 1 :]))
        assert isinstance(change.decide(repaired), Settled)


def test_members_of_the_last_fragment_are_not_replaced_while_a_writer_may_add_to_it() -> None:
    for stream in (OPEN, OPEN.in_recovery()):
        with pytest.raises(InvalidArgumentError, match="before its term has an end"):
            stream.with_member(place(3, 0), 0, BookieId("n"))
    for first, position in ((place(3, 1), 0), (place(3, 0), 3), (place(3, 0), -1)):
        with pytest.raises(InvalidArgumentError, match="no slot"):
            RESTING.with_member(first, position, BookieId("n"))
    with pytest.raises(InvalidArgumentError, match="distinct"):
        RESTING.with_member(place(3, 0), 0, BookieId("b"))


def test_an_empty_last_fragment_goes() -> None:
    """Rule T5: also the only one of its term, and the only one of the stream."""
    empty = TermEnd(EntryId(place(3, 0) - 1), 100)
    opened = written(OpenTerm(BASE, (), empty, "me", NEXT), OPEN.in_recovery())
    assert [(one.term, one.first_position) for one in opened.fragments] == [(1, 0), (4, 10)]
    assert opened.end_of_term(3) == empty.last_entry_id
    assert opened.end_of_term(1) == place(1, 9)
    new = open_stream()
    opened = written(RenewTerm(new.last_fragment, TermEnd(EntryId(place(1, 0) - 1), 0), "me", NEXT), new)
    assert [(one.term, one.first_position) for one in opened.fragments] == [(2, 0)]


def test_a_renewal_is_possible_at_the_last_place_of_a_term() -> None:
    """Rule T11."""
    last = place(3, 2**35 - 2)
    opened = written(RenewTerm(BASE, TermEnd(last, 500), "me", NEXT), OPEN)
    assert (opened.last_fragment.first_position, opened.end_of_term(3)) == (10 + 2**35 - 1, last)
    assert opened.place_at(10 + 2**35 - 2) == last


def test_times_never_fall() -> None:
    late = open_stream(replace(EARLIER, opened_at_ms=50), replace(BASE, opened_at_ms=50))
    changed = written(ChangeFragment(late.last_fragment, NEW), late)
    assert changed.last_fragment.opened_at_ms == 50
    assert isinstance(ChangeFragment(late.last_fragment, NEW).decide(changed), Settled)
    assert written(RenewTerm(late.last_fragment, END, "me", NEXT), late).last_fragment.opened_at_ms == 50


def test_fragments_beyond_the_limit_need_paging_first_and_an_end_never_does() -> None:
    """Rule U3."""
    fragments = [stream_fragment(1, at, at) for at in range(2)]
    while encoded_fragments_bytes(open_stream(*fragments)) <= FRAGMENTS_BYTES_MAX - 400:
        fragments += [stream_fragment(1, at, at) for at in range(len(fragments), len(fragments) + 2)]
    stream = open_stream(*fragments)
    count = 0
    while encoded_fragments_bytes(stream) <= FRAGMENTS_BYTES_MAX:
        full, at = stream, len(stream.fragments)
        stream = stream.with_fragment(stream_fragment(1, at, at))
        count += 1
    assert 1 <= count <= 4
    last, end = full.last_fragment, TermEnd(full.last_fragment.first_entry_id, 0)
    for change, found in (
        (ChangeFragment(last, stream.last_fragment), full),
        (RenewTerm(last, end, "me", NEXT), full),
        (OpenTerm(last, (), end, "me", NEXT), full.in_recovery()),
    ):
        assert type(change.decide(found)) is PageFirst
        assert isinstance(change.decide(found.truncated(9)), Write)
    assert len(encode_stream(written(Rest(last, end), full))) < 512 * 1024


# --- many clients ----------------------------------------------------------------------------------------------------


@dataclass
class Cell:
    """What a metadata store keeps of one stream, with everything it has ever kept."""

    stored: StreamMetadata
    version: int = 0
    history: list[StreamMetadata] = field(default_factory=list)

    def compare_and_set(self, wanted: StreamMetadata, expected: int) -> bool:
        if expected != self.version:
            return False
        self.stored, self.version = wanted, self.version + 1
        self.history.append(wanted)
        return True


@dataclass
class Client:
    """Reads, decides, writes: one step at a time, on what it has read; some answers are lost."""

    name: str
    random: random.Random
    known: tuple[StreamMetadata, int] | None = None
    change: StreamChange | None = None
    opened: list[int] = field(default_factory=list)
    rested: list[tuple[int, int]] = field(default_factory=list)
    serial: int = 0

    def step(self, cell: Cell) -> None:
        if self.known is None:
            self.known = (cell.stored, cell.version)
            return
        current, version = self.known
        if self.change is None:
            self.change = self._choose(current)
        decision = self.change.decide(current)
        self.known = None
        if isinstance(decision, Write):
            stands = cell.compare_and_set(decision.metadata.written_by(self.name), version)
            if not stands or self.random.random() < 0.3:
                return  # The client reads what stands, and decides again.
        if not isinstance(decision, Refuse):
            self._done(self.change)
        self.change = None

    def _choose(self, seen: StreamMetadata) -> StreamChange:
        """Any change that a client may want after it has read ``seen``."""
        self.serial += 1
        last, owner = seen.last_fragment, f"{self.name}-{self.serial}"
        count = self.random.randrange(4)
        end = TermEnd(EntryId(last.first_entry_id + count - 1), last.length_before + 10 * count)
        if seen.last_entry_id is not None:
            end = TermEnd(seen.last_entry_id, seen.length)
        rolled = replace(
            last,
            first_entry_id=EntryId(last.first_entry_id + 2),
            first_position=last.first_position + 2,
            length_before=last.length_before + 20,
        )
        changes: list[Callable[[], StreamChange]] = [
            lambda: BeginTakeover(seen.term),
            lambda: OpenTerm(last, (), end, owner, NEXT),
            lambda: LayToRest(last, (), end),
            lambda: Truncate(self.random.randrange(last.first_position + 3)),
        ]
        repaired = self.random.choice(seen.fragments)
        if (repaired_last := seen.last_id_of(repaired)) is not None:
            at, new = self.random.randrange(3), BookieId(f"new-{owner}")
            changes.append(lambda: ReplaceMember(repaired.first_entry_id, repaired_last, at, repaired.bookies[at], new))
        if seen.owner.startswith(f"{self.name}-"):
            changes += [
                lambda: ChangeFragment(last, rolled),
                lambda: Rest(last, end),
                lambda: RenewTerm(last, end, owner, NEXT),
            ]
        return self.random.choice(changes)()

    def _done(self, change: StreamChange) -> None:
        if isinstance(change, OpenTerm | RenewTerm):
            self.opened.append(change.base.term + 1)
        if isinstance(change, Rest):
            self.rested.append((change.base.term, change.end.last_entry_id))


@pytest.mark.parametrize("seed", range(60))
def test_many_clients_change_one_stream(seed: int) -> None:
    """Rules T1, T8 and C2: a term has one opener; an end, once written, stands; no state comes twice; nothing falls;
    repair changes names of settled fragments only."""
    chance = random.Random(seed)
    cell = Cell(open_stream())
    cell.history.append(cell.stored)
    clients = [Client(name, chance) for name in "klmn"]
    for _ in range(600):
        chance.choice(clients).step(cell)
    opened = [term for client in clients for term in client.opened]
    assert len(opened) == len(set(opened)), "two clients believe that they opened one term"
    assert cell.stored.term > 3, "the clients got nowhere"
    ends: dict[int, int] = {}
    places: dict[int, int] = {}
    order = list(StreamState)
    repairs = 0
    for before, after in itertools.pairwise(cell.history):
        assert (before.term, order.index(before.state)) <= (after.term, order.index(after.state))
        assert after.term - before.term in (0, 1)
        assert (before.owner == after.owner) == (before.term == after.term)
        assert before.start <= after.start
        kept = {fragment.first_entry_id: fragment for fragment in after.fragments}
        for fragment in before.fragments:
            same = kept.get(fragment.first_entry_id, fragment)
            assert replace(same, bookies=fragment.bookies) == fragment
            if before.last_id_of(fragment) is None and same != fragment:
                assert after.writer_token == before.owner.split("-")[0], "repair changed a fragment of a writer"
            repairs += same != fragment
    assert repairs > 3
    for stream in cell.history:
        for term in range(1, stream.term + 1):
            end = stream.end_of_term(term)
            if end is not None:
                assert ends.setdefault(term, end) == end, "a term has two ends"
        for position in range(stream.start, stream.last_fragment.first_position):
            found = stream.place_at(position)
            assert found is not None
            assert places.setdefault(position, found) == found, "a position has two places"
    assert all(ends.get(term, end) == end for client in clients for term, end in client.rested)
