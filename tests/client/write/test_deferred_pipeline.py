"""The deferred pipeline (rule W10) on bookies with a memory and a disk, in every order of answers, restarts, forces and
changes of the ensemble: what it acknowledges is on Qa disks of the ensemble that holds it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.client.write.deferred.pipeline import DeferredPipeline
from octavo.client.write.pipeline import Accept, Acknowledge, Effect, Full, Send, SendForce
from octavo.protocol.entries import Digest, Sealer, derive_secrets, header_of
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.quorums import Quorums

LEDGER = LedgerId(1)
SEALER = Sealer(LEDGER, Digest.CRC32C, derive_secrets(b"", LEDGER))
QUORUMS = [Quorums(*sizes) for sizes in ((1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (4, 3, 2))]
THREE = Quorums(3, 3, 2)


@dataclass
class MemoryAndDisk:
    """What one bookie holds. ``boot``: how often it has been started."""

    boot: int = 1
    memory: set[int] = field(default_factory=set)
    disk: set[int] = field(default_factory=set)

    def restart(self) -> None:
        """The process ends and starts again: what was only in memory is gone."""
        self.boot += 1
        self.memory.clear()

    def sync(self) -> None:
        self.disk |= self.memory
        self.memory.clear()


@dataclass
class Request:
    """A request under way on a connection to one process of a bookie, or its answer."""

    effect: Send | SendForce
    ids: list[int]
    bookie: MemoryAndDisk
    boot: int
    answered: bool = False


class Driver:
    """Drives the pipeline as its shell does, and keeps the bookies beside it."""

    def __init__(
        self, quorums: Quorums, *, unforced_bytes_max: int = 1 << 30, retained_bytes_max: int = 1 << 30
    ) -> None:
        self.quorums = quorums
        self.pipeline = DeferredPipeline(
            quorums, retained_bytes_max=retained_bytes_max, unforced_bytes_max=unforced_bytes_max
        )
        self.bookies = [MemoryAndDisk() for _ in range(quorums.ensemble_size)]
        self.fragments: list[tuple[int, list[MemoryAndDisk]]] = [(0, list(self.bookies))]
        self.under_way: list[Request] = []
        self.clock = 0.0
        self.accepted = -1
        self.acknowledged = -1
        self.forces: list[SendForce] = []
        self.replacing: dict[int, MemoryAndDisk] | None = None
        for position in range(quorums.ensemble_size):
            self.connect(position)

    # --- events ---------------------------------------------------------------------------------------------------

    def push(self, count: int = 1) -> None:
        pipeline = self.pipeline
        first, length = pipeline.next_entry_id, pipeline.length_pushed
        lac = pipeline.last_add_confirmed
        sealed = SEALER.seal(EntryId(first), [b"12345"] * count, last_add_confirmed=lac, length=length, sealed_at_ms=0)
        self.clock += 1
        size = sum(map(len, sealed))
        self.perform(pipeline.push(sealed, sealed_bytes=size, length_after=length + 5 * count, now=self.clock))

    def force(self) -> None:
        self.clock += 1
        self.perform(self.pipeline.request_force(self.clock))

    def connect(self, position: int) -> None:
        """Whatever was under way on an older connection has failed; the bookie's hello tells its boot id."""
        bookie = self.bookies[position]
        for request in [one for one in self.under_way if one.effect.position == position]:
            if request.bookie is not bookie or request.boot != bookie.boot:
                self.fail(request)
        self.pipeline.on_connected(position, str(bookie.boot))
        self.perform(self.pipeline.on_ready(position))

    def arrive(self, request: Request) -> None:
        """The process that the request was sent to does what it asks, if it still runs."""
        bookie = request.bookie
        if request.answered or request.boot != bookie.boot:
            return
        if isinstance(request.effect, Send):
            bookie.memory |= set(request.ids) - bookie.disk
        else:
            bookie.sync()
        request.answered = True

    def answer(self, request: Request) -> None:
        self.under_way.remove(request)
        effect = request.effect
        if isinstance(effect, Send):
            self.perform(self.pipeline.on_confirmed(effect.position, effect.run.number, effect.tenure))
        else:
            self.perform(self.pipeline.on_forced(effect.position, effect.number, effect.tenure))

    def fail(self, request: Request) -> None:
        self.under_way.remove(request)
        effect = request.effect
        if isinstance(effect, Send):
            self.pipeline.on_failed(effect.position, effect.run.number, effect.tenure)
        else:
            self.pipeline.on_force_failed(effect.position, effect.number, effect.tenure)
        self.check()

    def begin(self, *positions: int) -> None:
        self.pipeline.begin_change(sum(1 << position for position in positions))
        self.replacing = {position: MemoryAndDisk() for position in positions}

    def commit(self) -> None:
        change, replacing = self.pipeline.change, self.replacing
        assert change is not None
        assert replacing is not None
        self.replacing = None
        for position, bookie in replacing.items():
            self.bookies[position] = bookie
        if self.fragments[-1][0] == change.first_entry_id:
            self.fragments.pop()
        self.fragments.append((change.first_entry_id, list(self.bookies)))
        self.perform(self.pipeline.commit_change())
        for position in replacing:
            self.connect(position)

    def settle(self) -> None:
        """Let everything under way arrive and be answered."""
        while self.under_way:
            request = self.under_way[0]
            self.arrive(request)
            if request.answered:
                self.answer(request)
            else:
                self.connect(request.effect.position)

    # --- what comes of them ---------------------------------------------------------------------------------------

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Accept):
                assert effect.first == self.accepted + 1
                assert effect.payload_bytes == 5 * (effect.last + 1 - effect.first)
                self.accepted = effect.last
            elif isinstance(effect, Acknowledge):
                assert effect.first == self.acknowledged + 1
                self.acknowledged = effect.last
                assert self.acknowledged <= self.accepted, "callers are told of an entry before the LAC covers it"
            else:
                assert not isinstance(effect, Full), "no books are kept here"
                bookie = self.bookies[effect.position]
                ids: list[int] = []
                if isinstance(effect, Send):
                    ids = [header_of(sealed).entry_id for sealed in self.pipeline.share(effect.run, effect.position)]
                else:
                    self.forces.append(effect)
                self.under_way.append(Request(effect, ids, bookie, bookie.boot))
        self.check()

    def check(self) -> None:
        self.pipeline.check_invariants()
        assert (self.pipeline.last_add_confirmed, self.pipeline.length) == (
            None if self.acknowledged < 0 else self.acknowledged, 5 * (self.acknowledged + 1)
        )  # fmt: skip
        for entry_id in range(self.acknowledged + 1):
            members = next(bookies for first, bookies in reversed(self.fragments) if first <= entry_id)
            copies = sum(entry_id in members[position].disk for position in self.quorums.write_set(entry_id))
            assert copies >= self.quorums.ack_quorum, f"entry {entry_id} is acknowledged and on {copies} disks"


def take(driver: Driver, kind: type[Send] | type[SendForce], *positions: int) -> None:
    """Let what is under way of a kind to these positions arrive and be answered."""
    for request in list(driver.under_way):
        if isinstance(request.effect, kind) and request.effect.position in positions:
            driver.arrive(request)
            driver.answer(request)


def test_accepted_by_qa_tells_the_callers_and_forced_on_qa_moves_the_lac() -> None:
    driver = Driver(THREE)
    driver.push(2)
    take(driver, Send, 0)
    assert driver.accepted == -1
    take(driver, Send, 1)
    assert (driver.accepted, driver.acknowledged) == (1, -1)
    assert driver.forces == []
    driver.force()
    take(driver, SendForce, 0)
    assert driver.acknowledged == -1
    take(driver, SendForce, 1)
    assert driver.acknowledged == 1
    assert driver.pipeline.pending == 0


def test_force_waits_for_runs_that_are_not_accepted_yet_and_covers_each_as_it_is() -> None:
    driver = Driver(THREE)
    driver.push()
    driver.force()
    assert driver.forces == [], "no bookie has accepted anything"
    take(driver, Send, 0, 1)
    assert [(force.position, force.first, force.last) for force in driver.forces] == [(0, 0, 0), (1, 0, 0)]
    driver.push()
    take(driver, Send, 0, 1)
    take(driver, SendForce, 0, 1)
    assert driver.acknowledged == 0, "the second run was accepted after the force had been sent"
    assert len(driver.forces) == 2, "no force of it was asked for"
    driver.force()
    take(driver, SendForce, 0, 1)
    assert driver.acknowledged == 1


def test_force_answered_by_another_process_than_the_add_does_not_count() -> None:
    driver = Driver(Quorums(2, 2, 2))
    driver.push()
    driver.settle()
    driver.bookies[0].restart()
    driver.connect(0)
    driver.force()
    take(driver, SendForce, 0, 1)
    assert driver.acknowledged == -1
    driver.settle()
    assert driver.acknowledged == 0
    assert 0 in driver.bookies[0].disk


def test_restart_while_a_force_is_under_way_voids_it_and_what_it_covered_is_sent_again_in_order() -> None:
    driver = Driver(Quorums(1, 1, 1))
    driver.push()
    driver.push()
    take(driver, Send, 0)
    driver.force()
    driver.bookies[0].restart()
    driver.connect(0)
    assert [request.ids for request in driver.under_way] == [[0], [1]]
    driver.settle()
    assert driver.acknowledged == 1


def test_bookie_that_restarts_keeps_what_it_has_forced() -> None:
    driver = Driver(Quorums(1, 1, 1))
    driver.push()
    driver.force()
    driver.settle()
    driver.push()
    take(driver, Send, 0)
    driver.bookies[0].restart()
    driver.connect(0)
    assert [request.ids for request in driver.under_way] == [[1]]


def test_connection_that_is_made_again_to_the_same_process_keeps_what_was_accepted() -> None:
    driver = Driver(THREE)
    driver.push()
    take(driver, Send, 0, 1, 2)
    driver.connect(0)
    assert driver.under_way == []
    driver.force()
    assert len(driver.forces) == 3


def test_replaced_bookie_takes_its_acceptance_along_and_the_new_one_is_sent_all_that_is_not_forced() -> None:
    driver = Driver(Quorums(2, 2, 2))
    driver.push()
    driver.force()
    driver.settle()
    for _ in range(2):
        driver.push()
    take(driver, Send, 0, 1)
    assert driver.accepted == 2
    driver.begin(0)
    assert driver.pipeline.change is not None
    assert driver.pipeline.change.first_entry_id == 1, "the first entry that is not forced"
    driver.force()
    take(driver, SendForce, 1)
    driver.commit()
    assert driver.acknowledged == 0
    assert [request.ids for request in driver.under_way] == [[1], [2]]
    driver.settle()
    assert driver.acknowledged == 2


def test_nothing_is_accepted_or_acknowledged_while_the_ensemble_changes() -> None:
    driver = Driver(THREE)
    driver.push()
    driver.push()
    take(driver, Send, 1)
    driver.force()
    driver.begin(0)
    take(driver, Send, 2)
    for _ in range(2):  # the second run is accepted after the first force has been sent
        take(driver, SendForce, 1, 2)
    assert (driver.accepted, driver.acknowledged) == (-1, -1)
    driver.commit()
    assert (driver.accepted, driver.acknowledged) == (1, 1)


def test_force_that_fails_is_sent_again_once_the_bookie_is_ready() -> None:
    driver = Driver(Quorums(1, 1, 1))
    driver.push()
    take(driver, Send, 0)
    driver.force()
    driver.fail(driver.under_way[0])
    assert not driver.pipeline.is_ready(0)
    driver.connect(0)
    assert [force.number for force in driver.forces] == [1, 2]
    first = driver.forces[0]
    driver.perform(driver.pipeline.on_forced(0, first.number, first.tenure))
    assert driver.acknowledged == -1, "an answer to the force that failed"
    driver.settle()
    assert driver.acknowledged == 0


def test_slow_bookie_is_forced_too_and_holds_what_the_others_have_acknowledged() -> None:
    driver = Driver(THREE)
    driver.push()
    driver.force()
    take(driver, Send, 0, 1)
    take(driver, SendForce, 0, 1)
    assert driver.acknowledged == 0
    assert driver.pipeline.retained_bytes > 0
    driver.settle()
    assert driver.pipeline.retained_bytes == 0
    assert 0 in driver.bookies[2].disk


def test_what_no_caller_has_asked_to_force_is_not_late() -> None:
    driver = Driver(Quorums(1, 1, 1))
    assert driver.pipeline.pending_since is None
    driver.push()
    assert driver.pipeline.pending_since == 1.0
    take(driver, Send, 0)
    assert driver.pipeline.pending_since is None
    driver.force()
    driver.push()
    assert driver.pipeline.pending_since == 2.0
    take(driver, SendForce, 0)
    assert driver.pipeline.pending_since == 3.0, "the second run"


def test_bound_on_unforced_bytes_asks_for_a_force_at_half_and_is_full_beyond_it() -> None:
    driver = Driver(Quorums(1, 1, 1), unforced_bytes_max=300)
    while not driver.pipeline.wants_force:
        assert not driver.pipeline.is_full
        driver.push()
    assert 150 < driver.pipeline.unforced_bytes <= 300
    while not driver.pipeline.is_full:
        driver.push()
    driver.force()
    assert not driver.pipeline.wants_force
    assert driver.pipeline.is_full
    driver.settle()
    assert driver.pipeline.unforced_bytes == 0


def test_nothing_happens_after_the_stop() -> None:
    driver = Driver(Quorums(1, 1, 1))
    driver.push()
    take(driver, Send, 0)
    driver.force()
    driver.pipeline.stop()
    driver.settle()
    driver.force()
    assert driver.acknowledged == -1
    assert driver.pipeline.copy().state() == driver.pipeline.state()


@st.composite
def scripts(draw: st.DrawFn) -> tuple[Quorums, int, list[tuple[str, int]]]:
    steps = ["push", "push", "arrive", "arrive", "arrive", "answer", "answer", "answer", "force", "restart", "connect"]
    step = st.tuples(st.sampled_from([*steps, "fail", "begin", "commit", "sync", "late"]), st.integers(0, 1000))
    retained = draw(st.sampled_from([0, 200, 1 << 30]))
    return draw(st.sampled_from(QUORUMS)), retained, draw(st.lists(step, max_size=80))


def run_script(quorums: Quorums, retained: int, steps: list[tuple[str, int]]) -> Driver:
    driver = Driver(quorums, retained_bytes_max=retained)
    told: list[Request] = []
    for action, choice in steps:
        position = choice % quorums.ensemble_size
        request = driver.under_way[choice % len(driver.under_way)] if driver.under_way else None
        if action == "push":
            driver.push(choice % 4 + 1)
        elif action == "force":
            driver.force()
        elif action == "arrive" and request is not None:
            driver.arrive(request)
        elif action == "answer" and request is not None and request.answered:
            told.append(request)
            driver.answer(request)
        elif action == "fail" and request is not None:
            driver.fail(request)
        elif action == "late" and told:
            # The same answer once more.
            driver.under_way.append(told[choice % len(told)])
            driver.answer(told[choice % len(told)])
        elif action == "restart":
            driver.bookies[position].restart()
        elif action == "connect":
            driver.connect(position)
        elif action == "sync":
            driver.bookies[position].sync()
        elif action == "begin" and driver.replacing is None:
            driver.begin(position)
        elif action == "commit" and driver.replacing is not None:
            driver.commit()
    return driver


@settings(max_examples=400, deadline=None)
@given(scripts())
def test_in_whatever_order_things_happen_what_is_acknowledged_is_on_qa_disks(
    script: tuple[Quorums, int, list[tuple[str, int]]],
) -> None:
    driver = run_script(*script)  # which checks it after every step
    assert driver.pipeline.copy().state() == driver.pipeline.state()
    # Once faults stop everything is acknowledged (rule I8), and every bookie of the last ensemble has its share.
    if driver.replacing is not None:
        driver.commit()
    for position in range(driver.quorums.ensemble_size):
        driver.connect(position)
    driver.settle()
    driver.force()
    for position in range(driver.quorums.ensemble_size):
        driver.connect(position)
    driver.settle()
    assert driver.acknowledged == driver.accepted == driver.pipeline.next_entry_id - 1
    assert (driver.pipeline.pending, driver.pipeline.unforced_bytes, driver.pipeline.pending_since) == (0, 0, None)
    first = driver.fragments[-1][0]
    if script[1] == 1 << 30:
        assert driver.pipeline.retained_bytes == 0
        for entry_id in range(first, driver.acknowledged + 1):
            for position in driver.quorums.write_set(entry_id):
                assert entry_id in driver.bookies[position].disk


def test_unknown_boot_id_is_learnt_without_a_restart() -> None:
    driver = Driver(THREE)
    driver.push()
    take(driver, Send, 0)
    tenure = driver.pipeline.tenure(0)
    driver.pipeline.on_connected(0, "1")
    assert driver.pipeline.tenure(0) == tenure
    driver.pipeline.on_connected(0, "2")
    assert driver.pipeline.tenure(0) == tenure + 1


@pytest.mark.parametrize("quorums", QUORUMS, ids=repr)
def test_crash_of_every_bookie_loses_nothing_while_the_writer_lives(quorums: Quorums) -> None:
    driver = Driver(quorums)
    driver.push(5)
    driver.force()
    driver.settle()
    driver.push(7)
    take(driver, Send, *range(quorums.ensemble_size))
    for position, bookie in enumerate(driver.bookies):
        bookie.restart()
        driver.connect(position)
    driver.force()
    driver.settle()
    assert driver.acknowledged == 11
