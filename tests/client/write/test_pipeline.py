"""The pipeline against a model that keeps a set of confirming bookies per entry and recomputes everything each time."""

import copy
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.client.write.pipeline import Acknowledge, Effect, EnsembleChange, Pipeline, Send
from octavo.protocol.entries import Digest, Sealer, derive_secrets, header_of
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.quorums import Quorums

LEDGER = LedgerId(1)
SEALER = Sealer(LEDGER, Digest.CRC32C, derive_secrets(b"", LEDGER))
PAYLOAD = b"12345"
QUORUMS = [
    Quorums(ensemble, write, ack)
    for ensemble in range(1, 6)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


class Driver:
    """Drives a pipeline as its shell does, and the reference model beside it."""

    def __init__(self, quorums: Quorums, *, retained_bytes_max: int = 1 << 30) -> None:
        self.quorums = quorums
        self.pipeline = Pipeline(quorums, retained_bytes_max=retained_bytes_max)
        self.clock = 0.0
        self.confirmations: list[set[int]] = []
        """Per entry, the positions that hold it durably and have said so."""
        self.acknowledged: list[int] = []
        self.outstanding: list[tuple[int, int, int]] = []
        """(position, run number, tenure) sent and neither answered nor failed."""
        self.starts = [0] * quorums.ensemble_size
        """First id that the bookie at each position is to hold."""
        self.changing: list[int] | None = None
        """Positions being replaced, while a change is under way."""
        self.runs: dict[int, range] = {}
        self.sent_bytes: dict[int, bytes] = {}
        self.stopped = False

    def push(self, count: int) -> list[Effect]:
        first = self.pipeline.next_entry_id
        sealed = SEALER.seal(
            EntryId(first),
            [PAYLOAD] * count,
            last_add_confirmed=self.pipeline.last_add_confirmed,
            length=first * len(PAYLOAD),
            sealed_at_ms=0,
        )
        self.confirmations.extend(set() for _ in range(count))
        self.runs[len(self.runs)] = range(first, first + count)
        self.clock += 1
        return self._perform(
            self.pipeline.push(
                sealed,
                sealed_bytes=sum(map(len, sealed)),
                length_after=(first + count) * len(PAYLOAD),
                now=self.clock,
            )
        )

    def ready(self, position: int) -> list[Effect]:
        return self._perform(self.pipeline.on_ready(position))

    def confirm(self, position: int, number: int, tenure: int | None = None) -> list[Effect]:
        """The bookie confirms its share of a run that it was sent."""
        tenure = self.pipeline.tenure(position) if tenure is None else tenure
        if (position, number, tenure) in self.outstanding:
            self.outstanding.remove((position, number, tenure))
        if tenure == self.pipeline.tenure(position):
            for entry_id in self.runs[number]:
                if position in self.quorums.write_set(entry_id) and entry_id >= self.starts[position]:
                    self.confirmations[entry_id].add(position)
        return self._perform(self.pipeline.on_confirmed(position, number, tenure))

    def fail(self, position: int, number: int, tenure: int) -> None:
        self.outstanding.remove((position, number, tenure))
        self.pipeline.on_failed(position, number, tenure)
        self.check()

    def unsent(self, position: int, number: int) -> None:
        self.pipeline.on_unsent(position, number, self.pipeline.tenure(position))
        self.check()

    def lose(self, position: int) -> None:
        """The connection breaks: everything outstanding there fails."""
        for sent in list(self.outstanding):
            if sent[0] == position and sent[2] == self.pipeline.tenure(position):
                self.fail(*sent)

    def begin(self, *positions: int) -> EnsembleChange:
        self.changing = sorted(positions)
        change = self.pipeline.begin_change(sum(1 << position for position in positions))
        assert change.first_entry_id == len(self.acknowledged), "the new fragment starts at LAC + 1 (rule W3)"
        assert change.length_before == len(self.acknowledged) * len(PAYLOAD)
        self.check()
        return change

    def commit(self) -> list[Effect]:
        assert self.changing is not None
        first = len(self.acknowledged)
        for position in self.changing:
            self.starts[position] = first
            for confirmed in self.confirmations[first:]:
                confirmed.discard(position)
        self.changing = None
        return self._perform(self.pipeline.commit_change())

    def stop(self) -> None:
        self.stopped = True
        self.pipeline.stop()
        self.check()

    def _perform(self, effects: Sequence[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Send):
                self._sent(effect)
            else:
                assert isinstance(effect, Acknowledge)
                assert effect.first == len(self.acknowledged), "in order, without gaps"
                assert effect.first <= effect.last
                assert effect.payload_bytes == (effect.last + 1 - effect.first) * len(PAYLOAD)
                self.acknowledged.extend(range(effect.first, effect.last + 1))
        self.check()
        return list(effects)

    def _sent(self, effect: Send) -> None:
        run, position = effect.run, effect.position
        assert not self.stopped
        assert effect.tenure == self.pipeline.tenure(position)
        assert position not in (self.changing or ()), "nothing is sent to a bookie that is being replaced"
        mine = [
            entry_id
            for entry_id in self.runs[run.number]
            if position in self.quorums.write_set(entry_id) and entry_id >= self.starts[position]
        ]
        share = self.pipeline.share(run, position)
        assert mine, "nothing is sent to a bookie that holds nothing of it"
        assert len(share) == len(mine)
        for entry_id, sealed in zip(mine, share, strict=True):
            assert self.sent_bytes.setdefault(entry_id, sealed) == sealed, "sealed once (rules W2 and I3)"
        self.outstanding.append((position, run.number, effect.tenure))

    def check(self) -> None:
        """What must hold after every event."""
        self.pipeline.check_invariants()
        assert self.pipeline.length == len(self.acknowledged) * len(PAYLOAD)
        assert self.pipeline.length_pushed == len(self.confirmations) * len(PAYLOAD)
        complete = itertools.takewhile(
            lambda entry_id: len(self.confirmations[entry_id]) >= self.quorums.ack_quorum,
            range(len(self.confirmations)),
        )
        expected = sum(1 for _ in complete)
        if self.stopped or self.changing is not None:
            assert len(self.acknowledged) <= expected
        else:
            assert len(self.acknowledged) == expected, "exactly what is complete is acknowledged (rule W1)"
        assert self.pipeline.last_add_confirmed == (len(self.acknowledged) - 1 if self.acknowledged else None)
        assert self.pipeline.length == len(self.acknowledged) * len(PAYLOAD)
        assert self.pipeline.pending == len(self.confirmations) - len(self.acknowledged)
        assert self.pipeline.highest_sent == max(self.sent_bytes, default=-1) or self.quorums.striped


def ready_driver(quorums: Quorums, **options: int) -> Driver:
    driver = Driver(quorums, **options)
    for position in range(quorums.ensemble_size):
        driver.ready(position)
    return driver


def sends(effects: Sequence[Effect]) -> list[tuple[int, int]]:
    return [(effect.position, effect.run.number) for effect in effects if isinstance(effect, Send)]


# --- stories --------------------------------------------------------------------------------------------------------


def test_a_run_is_acknowledged_when_qa_bookies_have_confirmed_it() -> None:
    driver = ready_driver(Quorums(3, 3, 2))
    assert sends(driver.push(4)) == [(0, 0), (1, 0), (2, 0)]
    assert driver.confirm(2, 0) == []
    assert driver.confirm(2, 0) == [], "the same bookie twice is one confirmation"
    assert driver.confirm(0, 0) == [Acknowledge(0, 3, 4 * len(PAYLOAD))]
    assert driver.confirm(1, 0) == []
    assert driver.pipeline.retained_bytes == 0


def test_a_later_run_waits_for_the_earlier_ones() -> None:
    driver = ready_driver(Quorums(3, 3, 2))
    driver.push(2)
    driver.push(3)
    assert driver.confirm(0, 1) == []
    assert driver.confirm(1, 1) == []
    assert driver.confirm(0, 0) == []
    assert driver.confirm(1, 0) == [Acknowledge(0, 4, 5 * len(PAYLOAD))]


def test_in_a_striped_ledger_a_prefix_of_a_run_is_acknowledged() -> None:
    # E=3, Qw=2: entry 0 on 0 and 1, entry 1 on 1 and 2, entry 2 on 2 and 0.
    driver = ready_driver(Quorums(3, 2, 2))
    driver.push(3)
    assert driver.confirm(0, 0) == []
    assert driver.confirm(1, 0) == [Acknowledge(0, 0, len(PAYLOAD))]
    assert driver.pipeline.length == len(PAYLOAD)
    assert driver.confirm(2, 0) == [Acknowledge(1, 2, 2 * len(PAYLOAD))]


def test_a_short_run_goes_only_to_bookies_that_hold_some_of_it() -> None:
    driver = ready_driver(Quorums(4, 2, 1))
    assert sends(driver.push(1)) == [(0, 0), (1, 0)]
    assert sends(driver.push(1)) == [(1, 1), (2, 1)]


def test_a_bookie_that_comes_back_is_sent_what_it_has_not_confirmed_lowest_first() -> None:
    driver = ready_driver(Quorums(3, 3, 2))
    for _ in range(4):
        driver.push(1)
    driver.confirm(0, 1)
    driver.lose(0)
    assert sends(driver.push(1)) == [(1, 4), (2, 4)]
    assert sends(driver.ready(0)) == [(0, 0), (0, 2), (0, 3), (0, 4)]
    assert sends(driver.push(1)) == [(0, 5), (1, 5), (2, 5)]


def test_what_could_not_be_sent_is_sent_later() -> None:
    driver = ready_driver(Quorums(2, 2, 2))
    driver.push(1)
    driver.push(1)
    driver.unsent(1, 0)
    driver.unsent(1, 1)
    assert not driver.pipeline.is_ready(1)
    assert sends(driver.ready(1)) == [(1, 0), (1, 1)]
    assert driver.ready(1) == []


def test_acknowledged_runs_are_kept_for_a_bookie_that_is_away_within_the_bound() -> None:
    driver = ready_driver(Quorums(3, 3, 2), retained_bytes_max=250)
    driver.lose(2)
    driver.unsent(2, 0)
    for number in range(8):
        driver.push(1)
        driver.confirm(0, number)
        driver.confirm(1, number)
    assert 0 < driver.pipeline.retained_bytes <= 250
    resent = sends(driver.ready(2))
    assert resent == [(2, number) for number in range(8 - len(resent), 8)]
    assert 0 < len(resent) < 8
    driver.confirm(2, 3)
    for position, number in resent:
        driver.confirm(position, number)
    assert driver.pipeline.retained_bytes == 0


def test_nothing_is_acknowledged_or_sent_after_the_stop() -> None:
    driver = ready_driver(Quorums(2, 2, 2))
    driver.push(1)
    driver.confirm(0, 0)
    driver.stop()
    assert driver.confirm(1, 0) == []
    assert driver.ready(1) == []
    assert driver.pipeline.pending == 1


def test_what_was_never_sent_is_told_apart_from_what_may_have_happened() -> None:
    driver = Driver(Quorums(2, 2, 2))
    driver.push(3)
    assert driver.pipeline.highest_sent == -1
    driver.ready(1)
    assert driver.pipeline.highest_sent == 2
    driver.lose(1)
    driver.push(1)
    assert driver.pipeline.highest_sent == 2


def test_the_oldest_pending_push_is_told() -> None:
    driver = ready_driver(Quorums(1, 1, 1))
    assert driver.pipeline.pending_since is None
    driver.push(1)
    driver.push(1)
    assert driver.pipeline.pending_since == 1
    driver.confirm(0, 0)
    assert driver.pipeline.pending_since == 2
    driver.confirm(0, 1)
    assert driver.pipeline.pending_since is None


def test_nothing_is_acknowledged_while_the_ensemble_changes() -> None:
    driver = ready_driver(Quorums(3, 3, 2))
    driver.push(1)
    driver.confirm(0, 0)
    driver.confirm(1, 0)
    driver.push(2)
    driver.begin(2)
    assert driver.confirm(0, 1) == []
    assert driver.confirm(1, 1) == [], "two of three, but the new fragment's first id has been chosen (rule W1)"
    assert sends(driver.push(1)) == [(0, 2), (1, 2)]
    assert driver.commit() == [Acknowledge(1, 2, 2 * len(PAYLOAD))], "complete now, without a further answer (rule W4)"
    assert sends(driver.ready(2)) == [(2, 1), (2, 2)]
    assert driver.confirm(2, 2) == []
    assert driver.confirm(0, 2) == [Acknowledge(3, 3, len(PAYLOAD))]


def test_confirmations_of_replaced_bookies_do_not_count() -> None:
    driver = ready_driver(Quorums(3, 3, 2))
    driver.push(1)
    driver.confirm(2, 0)
    driver.begin(2)
    assert driver.commit() == []
    assert driver.confirm(1, 0) == [], "the copy on the replaced bookie is no copy of the new ensemble's (rule W3)"
    assert driver.confirm(2, 0, tenure=0) == []
    assert sends(driver.ready(2)) == [(2, 0)]
    assert driver.confirm(2, 0, tenure=0) == [], "also when it says so again"
    assert driver.confirm(2, 0) == [Acknowledge(0, 0, len(PAYLOAD))]


def test_a_new_bookie_is_sent_what_its_fragment_holds_lowest_first_and_nothing_below() -> None:
    # E=3, Qw=2: entry 0 on 0 and 1, entry 1 on 1 and 2, entry 2 on 2 and 0, entry 3 on 0 and 1.
    driver = ready_driver(Quorums(3, 2, 2))
    driver.push(4)
    driver.push(3)
    driver.confirm(0, 0)
    assert driver.confirm(1, 0) == [Acknowledge(0, 0, len(PAYLOAD))]
    change = driver.begin(1)
    assert change.first_entry_id == 1
    driver.commit()
    effects = driver.ready(1)
    shares = [driver.pipeline.share(effect.run, 1) for effect in effects if isinstance(effect, Send)]
    assert [[header_of(sealed).entry_id for sealed in share] for share in shares] == [[1, 3], [4, 6]]


def test_a_bookie_that_comes_back_while_it_is_being_replaced_stays_out() -> None:
    driver = ready_driver(Quorums(3, 3, 2))
    driver.push(1)
    driver.begin(0)
    assert driver.ready(0) == []
    driver.commit()
    assert sends(driver.ready(0)) == [(0, 0)], "its successor is sent everything"


def test_a_change_that_is_settled_after_the_stop_sends_and_acknowledges_nothing() -> None:
    driver = ready_driver(Quorums(3, 3, 2))
    driver.push(1)
    driver.begin(0)
    driver.confirm(1, 0)
    driver.confirm(2, 0)
    driver.stop()
    assert driver.commit() == []


@pytest.mark.parametrize("quorums", QUORUMS, ids=str)
def test_whether_pending_entries_can_still_reach_their_quorum_agrees_with_counting(quorums: Quorums) -> None:
    driver = ready_driver(quorums)
    driver.push(1)
    driver.push(quorums.ensemble_size + 1)
    driver.confirm(0, 0)
    for usable in range(1 << quorums.ensemble_size):
        could = all(
            len(confirmed | {position for position in quorums.write_set(entry_id) if usable >> position & 1})
            >= quorums.ack_quorum
            for entry_id, confirmed in enumerate(driver.confirmations)
        )
        assert driver.pipeline.can_be_acknowledged(usable) == could


def test_a_copy_is_independent_and_compares_by_state() -> None:
    driver = ready_driver(Quorums(3, 2, 1))
    driver.push(2)
    twin = copy.deepcopy(driver.pipeline)
    assert twin.state() == driver.pipeline.state()
    assert hash(twin.state()) == hash(driver.pipeline.state())
    driver.confirm(0, 0)
    assert twin.state() != driver.pipeline.state()


# --- any order of events --------------------------------------------------------------------------------------------


@st.composite
def scripts(draw: st.DrawFn) -> tuple[Quorums, int, list[tuple[str, int, int]]]:
    quorums = draw(st.sampled_from(QUORUMS))
    step = st.tuples(
        st.sampled_from(
            [
                *("push", "push", "confirm", "confirm", "confirm", "confirm", "fail", "lose", "ready", "late", "stop"),
                *("begin", "commit", "commit"),
            ]
        ),
        st.integers(0, 1000),
        st.integers(1, 7),
    )
    retained = draw(st.sampled_from([0, 200, 1 << 30]))
    return quorums, retained, draw(st.lists(step, max_size=60))


def run_script(quorums: Quorums, retained: int, steps: list[tuple[str, int, int]]) -> Driver:
    driver = Driver(quorums, retained_bytes_max=retained)
    answered: list[tuple[int, int, int]] = []
    for action, choice, count in steps:
        position = choice % quorums.ensemble_size
        if action == "push" and not driver.stopped:
            driver.push(count)
        elif action == "confirm" and driver.outstanding:
            sent = driver.outstanding[choice % len(driver.outstanding)]
            answered.append(sent)
            driver.confirm(*sent)
        elif action == "fail" and driver.outstanding:
            sent = driver.outstanding[choice % len(driver.outstanding)]
            answered.append(sent)  # it may have been stored all the same, and a copy confirmed late
            driver.fail(*sent)
        elif action == "late" and answered:
            driver.confirm(*answered[choice % len(answered)])
        elif action == "lose":
            driver.lose(position)
        elif action == "ready":
            driver.ready(position)
        elif action == "begin" and driver.changing is None and not driver.stopped:
            driver.begin(*range(position, min(position + count % 3 + 1, quorums.ensemble_size)))
        elif action == "commit" and driver.changing is not None:
            driver.commit()
        elif action == "stop" and count == 7:
            driver.stop()
    return driver


@settings(max_examples=300, deadline=None)
@given(scripts())
def test_in_whatever_order_things_happen_exactly_the_complete_prefix_is_acknowledged(
    script: tuple[Quorums, int, list[tuple[str, int, int]]],
) -> None:
    driver = run_script(*script)
    if driver.stopped:
        return
    # Once faults stop everything is acknowledged (rule I8), and, bounds and replaced bookies aside, every copy is made.
    if driver.changing is not None:
        driver.commit()
    for position in range(driver.quorums.ensemble_size):
        driver.lose(position)
        driver.unsent(position, len(driver.runs))
        driver.ready(position)
    while driver.outstanding:
        driver.confirm(*driver.outstanding[0])
    assert driver.acknowledged == list(range(len(driver.confirmations)))
    assert driver.pipeline.pending == 0
    if script[1] == 1 << 30:
        assert driver.pipeline.retained_bytes == 0
        for entry_id, confirmed in enumerate(driver.confirmations):
            holders = {at for at in driver.quorums.write_set(entry_id) if driver.starts[at] <= entry_id}
            assert holders <= confirmed


@settings(max_examples=40, deadline=None)
@given(scripts())
def test_the_same_script_ends_in_the_same_state(script: tuple[Quorums, int, list[tuple[str, int, int]]]) -> None:
    assert run_script(*script).pipeline.state() == run_script(*script).pipeline.state()
