"""Taking a stream over: what is asked and written, in which order, and who wins (rules T2 to T6, T8 and T10)."""

import random
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from octavo.client.recover.ledger_recovery import LedgerRecovery
from octavo.client.recover.takeover import PAUSE_TAKEOVERS, Phase, Takeover, pause_seconds
from octavo.client.write.ensemble_changes import Commit
from octavo.metadata.ledger.debts import NO_DEBT, Debt, FullCopies
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.stream.changes import LayToRest, Rest, StreamChange, TermEnd
from octavo.metadata.stream.model import StreamFragment, StreamKey, StreamMetadata, StreamState
from octavo.protocol.entries import Digest, Sealer, derive_secrets
from octavo.protocol.errors import (
    InternalError,
    LedgerClosedError,
    MetadataConflictError,
    OctavoError,
    TermOverError,
)
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.places import last_place, place
from octavo.protocol.quorums import Quorums

LEDGER = LedgerId(7)
SEALER = Sealer(LEDGER, Digest.CRC32C, derive_secrets(b"", LEDGER))
ABC = (BookieId("a"), BookieId("b"), BookieId("c"))
ABD = (BookieId("a"), BookieId("b"), BookieId("d"))
THREE = Quorums(3, 3, 2)


def stream() -> StreamMetadata:
    """Term 1 is open, on a, b and c."""
    return StreamMetadata(
        ledger_id=LEDGER,
        owner="first writer",
        fragments=(
            StreamFragment(
                first_entry_id=place(1, 0), first_position=0, bookies=ABC, write_quorum=3, ack_quorum=2, opened_at_ms=5
            ),
        ),
        keys=(StreamKey(Digest.CRC32C, b"v", b"s"),),
        created_at=datetime(2024, 2, 29, tzinfo=UTC),
    )


def entry(entry_id: int, length_before: int, sealed_at_ms: int = 0) -> bytes:
    """An entry of one byte."""
    lac = EntryId(place(entry_id >> 35, 0) - 1)
    return SEALER.seal(
        EntryId(entry_id), [b"x"], last_add_confirmed=lac, length=length_before, sealed_at_ms=sealed_at_ms
    )[0]


class Store:
    """The metadata store: every change decided at once."""

    def __init__(self, current: StreamMetadata) -> None:
        self.current = current

    def settle(self, change: StreamChange) -> OctavoError | None:
        """Make the change; the refusal, if it is one."""
        decision = change.decide(self.current)
        if isinstance(decision, Refuse):
            return decision.error
        if isinstance(decision, Write):
            self.current = decision.metadata
        else:
            assert isinstance(decision, Settled)
        return None


def begun(store: Store, owner: str, *, wants_time: bool = False) -> Takeover:
    """A takeover that has begun: to recover, unless the stream is at rest."""
    takeover = Takeover(owner, wants_time=wants_time)
    begin(takeover, store)
    return takeover


def begin(takeover: Takeover, store: Store) -> None:
    change = takeover.begin(store.current)
    if change is not None:
        assert store.settle(change) is None
        takeover.on_begun(store.current)


def recover(takeover: Takeover, held: dict[int, bytes]) -> None:
    """Every bookie of the fragment answers, and has these entries."""
    recovery = takeover.recovery
    assert recovery is not None
    size = len(takeover.base.bookies)
    for position in range(size):
        recovery.on_fenced(position, None)
    for position in range(size):
        while (wanted := recovery.wanted_read(position)) is not None:
            first, last = wanted
            recovery.on_read(position, first, last, {one: held[one] for one in held if first <= one <= last})
    if taken := recovery.take_recovered():
        recovery.on_written_back(recovery.last_recovered, sum(map(len, taken)))
    takeover.poll()
    takeover.check_invariants()


def test_a_takeover_fences_after_its_first_change_and_sends_after_its_last() -> None:
    store = Store(stream())
    takeover = Takeover("mine")
    change = takeover.begin(store.current)
    assert change is not None
    assert (change.term, takeover.recovery, takeover.phase) == (1, None, Phase.BEGINNING)
    store.settle(change)
    takeover.on_begun(store.current)
    assert takeover.recovery is not None
    assert takeover.end is None
    recover(takeover, {place(1, 0): entry(place(1, 0), 0)})
    assert takeover.phase is Phase.ENDED
    assert takeover.end == TermEnd(place(1, 0), 1)
    opening = takeover.open_term(ABD, 9)
    assert takeover.opened is None
    assert store.settle(opening) is None
    assert takeover.opened is None, "that it stands is not known yet (rule T6)"
    takeover.on_opened(store.current)
    takeover.check_invariants()
    assert takeover.opened is store.current
    assert (store.current.term, store.current.owner, store.current.state) == (2, "mine", StreamState.OPEN)
    last = store.current.last_fragment
    assert (last.first_entry_id, last.first_position, last.bookies) == (place(2, 0), 1, ABD)
    assert (last.length_before, last.opened_at_ms) == (1, 9)


def test_an_empty_term_ends_below_its_first_place() -> None:
    store = Store(stream())
    takeover = begun(store, "mine")
    recover(takeover, {})
    assert takeover.end == TermEnd(EntryId(place(1, 0) - 1), 0)
    store.settle(takeover.open_term(ABC, 9))
    takeover.on_opened(store.current)
    assert [part.first_entry_id for part in store.current.fragments] == [place(2, 0)]


def test_changes_of_the_ensemble_stay_with_the_takeover_until_the_end_is_written() -> None:
    store = Store(stream())
    takeover = begun(store, "mine")
    takeover.on_ensemble_changed(Commit(place(1, 0), (ABC[1], ABC[0], ABD[2]), 0), 8)
    takeover.on_ensemble_changed(Commit(place(1, 0), ABD, 0), 8)
    takeover.on_ensemble_changed(Commit(place(1, 1), (ABC[0], ABD[2], ABC[2]), 1), 8)
    before = store.current
    assert [part.first_entry_id for part in takeover.copy().ended_fragments] == [place(1, 0), place(1, 1)]
    recover(takeover, {place(1, 0): entry(place(1, 0), 0), place(1, 1): entry(place(1, 1), 1)})
    assert store.current is before
    store.settle(takeover.open_term(ABD, 9))
    takeover.on_opened(store.current)
    parts = [(part.first_entry_id, part.first_position, part.bookies) for part in store.current.fragments]
    assert parts == [
        (place(1, 0), 0, ABD),
        (place(1, 1), 1, (ABC[0], ABD[2], ABC[2])),
        (place(2, 0), 2, ABD),
    ]
    assert [part.length_before for part in store.current.fragments] == [0, 1, 2]


def test_what_the_members_lack_is_recorded_with_the_end() -> None:
    """Rule G5: of the fragment that was found, and of the fragments that writing back has made of it."""
    store = Store(replace(stream(), full_copies=FullCopies.RECORDED))
    takeover = begun(store, "mine")
    assert takeover.ended_fragments == (takeover.base,)
    takeover.on_ensemble_changed(Commit(place(1, 1), ABD, 1), 8)
    recover(takeover, {place(1, at): entry(place(1, at), at) for at in range(3)})
    assert [one.first_entry_id for one in takeover.ended_fragments] == [place(1, 0), place(1, 1)]
    owed = Debt(place(1, 1), place(1, 2))
    takeover.on_asked(((place(1, 0), NO_DEBT), (place(1, 1), owed)))
    assert takeover.copy().lay_to_rest().end.debts == ((place(1, 0), NO_DEBT), (place(1, 1), owed))
    store.settle(takeover.open_term(ABC, 9))
    assert [one.debt for one in store.current.fragments] == [NO_DEBT, owed, None]
    assert store.current.debts == ((store.current.fragments[1], owed),)


def test_a_fragment_that_writing_back_has_replaced_is_not_asked() -> None:
    store = Store(stream())
    takeover = begun(store, "mine")
    takeover.on_ensemble_changed(Commit(place(1, 0), ABD, 0), 8)
    assert [one.bookies for one in takeover.ended_fragments] == [ABD]


def test_what_was_asked_is_forgotten_after_a_conflict() -> None:
    store = Store(replace(stream(), full_copies=FullCopies.RECORDED))
    takeover = begun(store, "mine")
    recover(takeover, {place(1, 0): entry(place(1, 0), 0)})
    takeover.on_asked(((place(1, 0), NO_DEBT),))
    fragment = replace(store.current.last_fragment, bookies=ABD)
    store.current = replace(store.current, fragments=(fragment,))
    refusal = store.settle(takeover.open_term(ABC, 9))
    assert refusal is not None
    takeover.on_refused(refusal)
    begin = takeover.begin(store.current)
    assert begin is not None
    store.settle(begin)
    takeover.on_begun(store.current)
    recover(takeover, {place(1, 0): entry(place(1, 0), 0)})
    assert takeover.open_term(ABC, 9).end.debts == (), "other bookies are members now"


# --- the time of the last entry (rules P10 and U7) ------------------------------------------------------------------


def test_the_next_term_begins_no_earlier_than_the_last_entry_was_sealed() -> None:
    """The old writer's clock was ahead, which the recovery learns from the entry at the LAC, with no request more."""
    store = Store(stream())
    takeover = begun(store, "mine", wants_time=True)
    recovery = takeover.recovery
    assert recovery is not None
    for position in range(3):
        recovery.on_fenced(position, place(1, 0), {place(1, 0): 1})
    recover(takeover, {place(1, 0): entry(place(1, 0), 0, 500)})
    assert recovery.last_sealed_at_ms == 500
    assert takeover.unread_entry is None
    store.settle(takeover.open_term(ABC, 9))
    assert store.current.last_fragment.opened_at_ms == 500


def test_a_client_whose_own_clock_is_ahead_notes_its_own() -> None:
    store = Store(stream())
    takeover = begun(store, "mine", wants_time=True)
    recover(takeover, {place(1, 0): entry(place(1, 0), 0, 500)})
    store.settle(takeover.open_term(ABC, 501))
    assert store.current.last_fragment.opened_at_ms == 501


def test_what_lies_before_an_empty_fragment_was_sealed_before_that_was_noted_as_begun() -> None:
    store = Store(stream())
    takeover = begun(store, "mine", wants_time=True)
    recover(takeover, {})
    store.settle(takeover.open_term(ABC, 1))
    assert store.current.last_fragment.opened_at_ms == 5


def test_at_rest_the_last_entry_is_read_for_its_time() -> None:
    store = Store(stream())
    store.settle(Rest(store.current.last_fragment, TermEnd(place(1, 4), 99)))
    takeover = begun(store, "mine", wants_time=True)
    assert takeover.unread_entry == place(1, 4)
    with pytest.raises(AssertionError):
        takeover.copy().open_term(ABC, 9)
    takeover.on_entry_read(500)
    assert takeover.unread_entry is None
    store.settle(takeover.open_term(ABC, 9))
    assert store.current.last_fragment.opened_at_ms == 500


@pytest.mark.parametrize("wants_time", [True, False])
def test_at_rest_nothing_is_read_of_an_empty_fragment_or_for_a_client_that_wants_no_time(wants_time: bool) -> None:
    store = Store(stream())
    end = place(1, 0) - 1 if wants_time else place(1, 4)
    store.settle(Rest(store.current.last_fragment, TermEnd(EntryId(end), 0 if wants_time else 99)))
    assert begun(store, "mine", wants_time=wants_time).unread_entry is None


@pytest.mark.parametrize("opens", [True, False])
def test_no_fragment_of_a_takeover_is_noted_as_begun_before_an_entry_below_it_was_sealed(opens: bool) -> None:
    """Also where the stream is put at rest, as repair does it."""
    store = Store(stream())
    takeover = begun(store, "mine")
    takeover.on_ensemble_changed(Commit(place(1, 1), ABD, 1), 8)
    recover(takeover, {place(1, at): entry(place(1, at), at, 500 + at) for at in range(2)})
    store.settle(takeover.open_term(ABD, 9) if opens else takeover.lay_to_rest())
    assert {part.opened_at_ms for part in store.current.fragments[1:]} == {501}


# --- rivals ---------------------------------------------------------------------------------------------------------


def test_of_two_that_take_over_the_first_wins_and_the_other_withdraws() -> None:
    store = Store(stream())
    one, other = begun(store, "one"), begun(store, "other")
    recover(one, {place(1, 0): entry(place(1, 0), 0)})
    recover(other, {})
    assert one.end != other.end, "one has found what the other was denied"
    assert store.settle(other.open_term(ABC, 9)) is None
    other.on_opened(store.current)
    refusal = store.settle(one.open_term(ABC, 9))
    assert isinstance(refusal, TermOverError)
    one.on_refused(refusal)
    one.check_invariants()
    assert (one.phase, one.withdrawn, one.opened, one.recovery) == (Phase.WITHDRAWN, refusal, None, None)


def test_an_answer_that_was_lost_is_asked_for_again_with_the_same_change() -> None:
    store = Store(stream())
    takeover = begun(store, "mine")
    recover(takeover, {})
    opening = takeover.open_term(ABC, 9)
    with pytest.raises(AssertionError):
        takeover.copy().on_opened(replace(store.current, state=StreamState.OPEN))
    store.settle(opening)
    store.current = store.current.written_by("a repair that came after it")
    assert store.settle(opening) is None
    takeover.on_opened(store.current)
    assert takeover.opened is not None


def test_a_stream_at_rest_is_opened_without_recovery() -> None:
    store = Store(stream())
    store.settle(Rest(store.current.last_fragment, TermEnd(place(1, 4), 99)))
    takeover = Takeover("mine")
    assert takeover.begin(store.current) is None, "there is no writer to fence"
    assert (takeover.phase, takeover.recovery) == (Phase.ENDED, None)
    assert takeover.end == TermEnd(place(1, 4), 99)
    store.settle(takeover.open_term(ABC, 9))
    takeover.on_opened(store.current)
    assert store.current.last_fragment.first_position == 5
    assert store.current.last_fragment.length_before == 99


def test_an_end_that_another_client_gave_is_taken_over_with_a_new_beginning() -> None:
    store = Store(stream())
    takeover, other = begun(store, "mine"), begun(store, "other")
    takeover.on_ensemble_changed(Commit(place(1, 0), ABD, 0), 8)
    recover(takeover, {place(1, 0): entry(place(1, 0), 0)})
    recover(other, {})
    assert store.settle(other.lay_to_rest()) is None
    other.on_laid_to_rest()
    assert other.phase is Phase.AT_REST
    refusal = store.settle(takeover.open_term(ABC, 9))
    assert isinstance(refusal, MetadataConflictError)
    takeover.on_refused(refusal)
    takeover.check_invariants()
    assert (takeover.phase, takeover.recovery, takeover.end) == (Phase.BEGINNING, None, None)
    begin(takeover, store)
    opening = takeover.open_term(ABC, 9)
    assert opening.fragments == (), "the end that stands is without them"
    store.settle(opening)
    takeover.on_opened(store.current)
    assert store.current.last_fragment.first_position == 0


def test_bookies_that_repair_has_changed_meanwhile_are_recovered_again() -> None:
    store = Store(stream())
    takeover = begun(store, "mine")
    recover(takeover, {})
    fragment = replace(store.current.last_fragment, bookies=ABD)
    store.current = replace(store.current, fragments=(fragment,))
    refusal = store.settle(takeover.open_term(ABC, 9))
    assert isinstance(refusal, MetadataConflictError)
    takeover.on_refused(refusal)
    takeover.begin(store.current)
    takeover.on_begun(store.current)
    assert takeover.base.bookies == ABD
    assert takeover.recovery is not None


def test_the_fragment_that_stands_when_the_takeover_has_begun_is_the_one_that_is_asked() -> None:
    store = Store(stream())
    takeover = Takeover("mine")
    change = takeover.begin(store.current)
    assert change is not None
    store.current = store.current.with_fragment(replace(store.current.last_fragment, bookies=ABD))
    store.settle(change)
    takeover.on_begun(store.current)
    assert takeover.base.bookies == ABD


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (TermOverError("over"), Phase.WITHDRAWN),
        (LedgerClosedError("closed"), Phase.WITHDRAWN),
        (MetadataConflictError("conflict"), Phase.BEGINNING),
    ],
)
def test_what_a_refusal_means(error: OctavoError, phase: Phase) -> None:
    takeover = Takeover("mine")
    takeover.begin(stream())
    takeover.on_refused(error)
    takeover.check_invariants()
    assert takeover.phase is phase


def test_another_refusal_is_a_defect() -> None:
    takeover = Takeover("mine")
    takeover.begin(stream())
    with pytest.raises(InternalError):
        takeover.on_refused(InternalError("a second writer"))


def test_a_takeover_that_began_late_finds_the_term_over() -> None:
    store = Store(stream())
    late = Takeover("late")
    change = late.begin(store.current)
    assert change is not None
    first = begun(store, "first")
    recover(first, {})
    store.settle(first.open_term(ABC, 9))
    refusal = store.settle(change)
    assert isinstance(refusal, TermOverError)
    late.on_refused(refusal)
    assert late.recovery is None, "it fences nothing"


def test_laying_to_rest_gives_the_term_its_end_and_opens_none() -> None:
    store = Store(stream())
    takeover = begun(store, "mine")
    takeover.on_ensemble_changed(Commit(place(1, 0), ABD, 0), 8)
    recover(takeover, {place(1, 0): entry(place(1, 0), 0)})
    change = takeover.lay_to_rest()
    assert isinstance(change, LayToRest)
    assert store.settle(change) is None
    takeover.on_laid_to_rest()
    assert (store.current.state, store.current.last_entry_id) == (StreamState.AT_REST, place(1, 0))
    assert store.current.last_fragment.bookies == ABD
    assert store.current.owner == "first writer"


def test_nothing_is_decided_before_the_end_is_on_its_quorum() -> None:
    store = Store(stream())
    takeover = begun(store, "mine")
    recovery = takeover.recovery
    assert recovery is not None
    for position in range(3):
        recovery.on_fenced(position, None)
    for position in range(3):
        recovery.on_read(position, place(1, 0), place(1, 1), {place(1, 0): entry(place(1, 0), 0)})
    recovery.take_recovered()
    takeover.poll()
    assert (recovery.end is not None, takeover.end, takeover.phase) == (True, None, Phase.RECOVERING)
    with pytest.raises(AssertionError):
        takeover.open_term(ABC, 9)
    recovery.on_written_back(place(1, 0), len(entry(place(1, 0), 0)))
    takeover.poll()
    assert takeover.phase is Phase.ENDED


# --- LACs of terms (rule T3) ----------------------------------------------------------------------------------------


def of_term(term: int, first_offset: int = 0) -> LedgerRecovery:
    """The recovery of a term whose last fragment starts at this offset."""
    return LedgerRecovery(THREE, first_entry_id=place(term, first_offset), length_before=50, term=term)


@pytest.mark.parametrize("lac", [place(3, 0), place(3, 7), place(3, 0) - 1, place(4, 0) - 1])
def test_the_lac_of_a_later_term_ends_the_recovery(lac: int) -> None:
    recovery = of_term(2)
    recovery.on_fenced(0, lac, {lac: 77})
    for position in (1, 2):
        recovery.on_fenced(position, None)
    recovery.check_invariants()
    assert recovery.later_term == (lac + 1) >> 35
    assert not recovery.fence_over
    assert [recovery.wanted_read(position) for position in range(3)] == [None] * 3
    assert (recovery.end, recovery.blocked_by) == (None, None)


@pytest.mark.parametrize("lac", [None, place(1, 9), last_place(1), place(2, 0) - 1, place(2, 3)])
def test_the_lac_of_an_earlier_fragment_or_term_is_the_floor(lac: int | None) -> None:
    recovery = of_term(2, first_offset=4)
    recovery.on_fenced(0, lac)
    recovery.on_fenced(1, None)
    assert recovery.later_term is None
    assert recovery.start == place(2, 3)
    assert recovery.start_length == 50
    wanted = recovery.wanted_read(0)
    assert wanted is not None
    assert wanted[0] == place(2, 4)


@pytest.mark.parametrize("lac", [place(3, 0) - 1, place(3, 7), place(102, 7), place(103, 0) - 2])
def test_the_lac_of_a_term_that_a_restore_leaves_out_says_nothing(lac: int) -> None:
    recovery = LedgerRecovery(THREE, first_entry_id=place(2, 4), length_before=50, term=2, terms_skipped=100)
    recovery.on_fenced(0, lac, {lac: 77})
    recovery.on_fenced(1, None)
    recovery.check_invariants()
    assert recovery.later_term is None
    assert (recovery.start, recovery.start_length) == (place(2, 3), 50)


def test_the_first_term_behind_those_that_a_restore_leaves_out_is_a_later_term() -> None:
    store = Store(stream().restored(100))
    takeover = begun(store, "mine")
    assert takeover.recovery is not None
    takeover.recovery.on_fenced(0, place(101, 9))
    takeover.poll()
    assert takeover.withdrawn is None
    takeover.recovery.on_fenced(1, place(102, 0) - 1)
    takeover.poll()
    assert takeover.phase is Phase.WITHDRAWN


def test_the_lac_of_the_term_itself_is_where_reading_starts() -> None:
    recovery = of_term(2)
    recovery.on_fenced(0, place(2, 6), {place(2, 6): 90})
    recovery.on_fenced(1, place(1, 400))
    assert (recovery.start, recovery.start_length) == (place(2, 6), 90)


def test_a_term_that_is_full_ends_at_its_last_place() -> None:
    recovery = LedgerRecovery(
        Quorums(1, 1, 1), first_entry_id=last_place(1), length_before=3, term=1, window_entries=100
    )
    recovery.on_fenced(0, None)
    assert recovery.wanted_read(0) == (last_place(1), last_place(1)), "beyond lies no place"
    recovery.on_read(0, last_place(1), last_place(1), {last_place(1): entry(last_place(1), 3)})
    recovery.check_invariants()
    assert recovery.end is not None
    assert (recovery.end.last_entry_id, recovery.end.length) == (last_place(1), 4)


def test_ids_of_a_ledger_with_one_writer_are_plain_numbers() -> None:
    recovery = LedgerRecovery(Quorums(1, 1, 1), first_entry_id=0, length_before=0)
    recovery.on_fenced(0, place(3, 5), {place(3, 5): 9})
    assert recovery.later_term is None
    assert recovery.start == place(3, 5)
    wanted = recovery.wanted_read(0)
    assert wanted is not None
    assert wanted[0] == place(3, 6)


def test_a_takeover_withdraws_when_a_bookie_knows_of_a_later_term() -> None:
    store = Store(stream())
    takeover = begun(store, "mine")
    assert takeover.recovery is not None
    takeover.recovery.on_fenced(0, place(2, 0) - 1)
    takeover.poll()
    takeover.check_invariants()
    assert takeover.phase is Phase.WITHDRAWN
    assert isinstance(takeover.withdrawn, TermOverError)


# --- going back (rule T10) -----------------------------------------------------------------------------------------


def test_the_pause_is_one_to_eight_takeovers_long() -> None:
    assert PAUSE_TAKEOVERS == (1, 8)
    assert pause_seconds(0.5, 0.0) == 0.5
    assert pause_seconds(0.5, 1.0) == 4.0
    assert 0.5 < pause_seconds(0.5, 0.3) < 4.0


class Clients:
    """Some that take over again and again, each a random step at a time, and how the store answers them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = Store(stream())
        self.held = {place(1, offset): entry(place(1, offset), offset) for offset in range(3)}
        self.takeovers = [Takeover(f"client {number}") for number in range(4)]
        self.changes: dict[int, StreamChange] = {}
        self.winners: dict[int, int] = {}

    def step(self, number: int) -> None:
        """One step of one of them."""
        takeover = self.takeovers[number]
        if takeover.phase is Phase.BEGINNING and number not in self.changes:
            change = takeover.begin(self.store.current)
            if change is not None:
                self.changes[number] = change
        elif takeover.phase in (Phase.BEGINNING, Phase.OPENING):
            self.settle(number)
        elif takeover.phase is Phase.RECOVERING:
            count = self.rng.randrange(4) if takeover.base.term == 1 else 0
            recover(takeover, dict(list(self.held.items())[:count]))
        elif takeover.phase is Phase.ENDED:
            opens = self.rng.random() < 0.8
            bookies = self.rng.choice([ABC, ABD])
            self.changes[number] = takeover.open_term(bookies, 9) if opens else takeover.lay_to_rest()
        elif takeover.phase in (Phase.WITHDRAWN, Phase.AT_REST):
            self.takeovers[number] = Takeover(f"client {number}, once more {self.rng.random()}")
        takeover.check_invariants()

    def settle(self, number: int) -> None:
        """The change of a client is decided; its answer may be lost."""
        takeover, opening = self.takeovers[number], self.takeovers[number].phase is Phase.OPENING
        change = self.changes[number]
        refusal = self.store.settle(change)
        if self.rng.random() < 0.3:
            return
        del self.changes[number]
        if refusal is not None:
            takeover.on_refused(refusal)
        elif isinstance(change, LayToRest):
            takeover.on_laid_to_rest()
        elif opening:
            takeover.on_opened(self.store.current)
            assert self.winners.setdefault(self.store.current.term, number) == number
        else:
            takeover.on_begun(self.store.current)


def test_many_that_take_over_in_any_order_open_each_term_once() -> None:
    """What the bookies show differs from client to client."""
    for seed in range(100):
        clients = Clients(seed)
        for _ in range(60):
            clients.step(clients.rng.randrange(4))
        assert clients.winners, f"seed {seed}: somebody opens a term"


def test_quorums_are_those_of_the_fragment() -> None:
    assert stream().last_fragment.quorums == THREE
