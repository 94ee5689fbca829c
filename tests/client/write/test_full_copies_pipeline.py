"""The pipeline of a ledger with full copies, and its changes of the ensemble (rules G1 to G3)."""

import random
from collections.abc import Iterable, Iterator

import pytest
from octavo.client.write.copies.full_copies import FullCopiesPipeline, RequiredChanges
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, FindSpares, Phase
from octavo.client.write.pipeline import Acknowledge, Effect, Full, Send
from octavo.metadata.ledger.debts import NO_DEBT, Debt
from octavo.protocol.entries import Digest, Sealer, derive_secrets, header_of
from octavo.protocol.ids import BookieId, EntryId, LedgerId
from octavo.protocol.quorums import Quorums

SEALER = Sealer(LedgerId(1), Digest.CRC32C, derive_secrets(b"", LedgerId(1)))


class World:
    """A writer's pure parts and what bookies hold. Bookies a, b, c, ... form the ensemble."""

    def __init__(self, quorums: Quorums, *, required: bool, retained_bytes_max: int = 1 << 20) -> None:
        self.quorums = quorums
        self.pipeline = FullCopiesPipeline(quorums, required=required, retained_bytes_max=retained_bytes_max)
        make = RequiredChanges if required else EnsembleChanges
        names = [BookieId(chr(ord("a") + at)) for at in range(quorums.ensemble_size)]
        self.changes = make(
            self.pipeline, quorums, names, now=0.0, loss_seconds=0.0, delay_seconds=0.0, retry_seconds=0.0
        )
        self.held: dict[BookieId, set[int]] = {}
        self.sent: list[tuple[BookieId, Send]] = []
        self.full = self.acknowledged = -1
        self.fragments: list[tuple[int, tuple[BookieId, ...], Debt]] = [(0, tuple(names), NO_DEBT)]
        for position in range(quorums.ensemble_size):
            self.changes.on_connected(position)
            self.tell(self.pipeline.on_ready(position))

    @property
    def required(self) -> RequiredChanges:
        assert isinstance(self.changes, RequiredChanges)
        return self.changes

    def tell(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Acknowledge():
                    assert effect.first == self.acknowledged + 1
                    self.acknowledged = effect.last
                case Full():
                    assert effect.entries == effect.last - self.full
                    assert effect.payload_bytes == effect.entries
                    self.full = effect.last
                case Send():
                    size = self.quorums.ensemble_size
                    if effect.position >= size:
                        self.sent.append((self.required.joiners[effect.position - size], effect))
                    else:
                        self.sent.append((self.changes.ensemble[effect.position], effect))
        self.pipeline.check_invariants()
        self.changes.check_invariants()

    def push(self, count: int = 1) -> None:
        first, lac = self.pipeline.next_entry_id, self.pipeline.last_add_confirmed
        sealed = SEALER.seal(EntryId(first), [b"x"] * count, last_add_confirmed=lac, length=first, sealed_at_ms=0)
        size = sum(map(len, sealed))
        self.tell(self.pipeline.push(sealed, sealed_bytes=size, length_after=first + count, now=0.0))

    def store(self, name: str, run: int | None = None) -> None:
        """A bookie stores what it was sent (of one run), and says so."""
        for sent in [one for one in self.sent if one[0] == name and run in (None, one[1].run.number)]:
            self.sent.remove(sent)
            self.confirm(sent)

    def confirm(self, sent: tuple[BookieId, Send]) -> None:
        name, effect = sent
        size = self.quorums.ensemble_size
        share = self.pipeline.share(effect.run, effect.position % size)
        self.held.setdefault(name, set()).update(header_of(sealed).entry_id for sealed in share)
        if effect.position >= size:
            self.pipeline.on_joiner_confirmed(effect.position - size, effect.run.number, effect.tenure)
        else:
            if effect.tenure == self.pipeline.tenure(effect.position):
                self.changes.on_confirmed(effect.position)
            self.tell(self.pipeline.on_confirmed(effect.position, effect.run.number, effect.tenure))

    def lose(self, position: int) -> None:
        self.sent = [one for one in self.sent if one[0] != self.changes.ensemble[position]]
        self.pipeline.on_unsent(position, 1 << 30, self.pipeline.tenure(position))
        self.changes.on_lost(position, 0.0)

    def find(self, position: int, name: str) -> Commit | None:
        assert self.changes.poll(0.0) == FindSpares((position,))
        commit = self.changes.on_spares({position: BookieId(name)}, 0.0)
        self.pipeline.check_invariants()
        return commit

    def commit(self, commit: Commit) -> None:
        first, _, debt = commit.first_entry_id, commit.ensemble, commit.debt
        kept = [one for one in self.fragments if one[0] < first]
        last = kept[-1] if kept else None
        if last is not None and len(kept) == len(self.fragments):
            kept[-1] = (last[0], last[1], debt)
        self.fragments = [*kept, (first, commit.ensemble, NO_DEBT)]
        self.tell(self.changes.on_committed(0.0))

    def check_copies(self) -> None:
        """Rules I1 and I9, with what is stored now: what is acknowledged is on Qa of its fragment's write set, and of
        earlier fragments it is on Qw, or owed."""
        for entry_id in range(self.acknowledged + 1):
            at = max(at for at, one in enumerate(self.fragments) if one[0] <= entry_id)
            _, ensemble, debt = self.fragments[at]
            members = [ensemble[position] for position in self.quorums.write_set(entry_id)]
            copies = sum(entry_id in self.held.get(name, ()) for name in members)
            assert copies >= self.quorums.ack_quorum, f"entry {entry_id} is acknowledged and on {copies} bookies"
            if at < len(self.fragments) - 1 and not debt.first <= entry_id <= debt.last:
                assert copies == self.quorums.write_quorum, f"entry {entry_id} has {copies} copies and is not owed"


ABC = Quorums(3, 3, 2)


def test_an_entry_that_is_skipped_by_the_lac_is_not_skipped_by_the_lafr() -> None:
    """Rule G1: the LAFR is counted from itself on, and not from the LAC."""
    world = World(ABC, required=True)
    world.push()
    world.push()
    world.store("a")
    world.store("b")
    assert (world.acknowledged, world.full) == (1, -1)
    world.store("c", 1)
    assert world.full == -1, "entry 0 has two copies"
    assert not world.pipeline.is_full
    world.store("c", 0)
    assert world.full == 1
    assert world.pipeline.is_full


@pytest.mark.parametrize("required", [False, True])
def test_nothing_waits_before_the_first_entry(required: bool) -> None:
    world = World(ABC, required=required)
    assert world.pipeline.is_full
    assert world.pipeline.debt() == NO_DEBT
    assert world.pipeline.last_add_full is None


def test_what_is_required_is_never_given_up() -> None:
    world = World(ABC, required=True, retained_bytes_max=0)
    for _ in range(5):
        world.push()
        world.store("a")
        world.store("b")
    assert world.pipeline.debt() == Debt(0, 4)
    assert len(world.pipeline.sealed_entries) == 5
    world.store("c")
    assert world.full == 4


def test_what_is_recorded_is_given_up_beyond_the_bound_and_owed_for_ever() -> None:
    world = World(ABC, required=False, retained_bytes_max=0)
    for _ in range(5):
        world.push()
        world.store("a")
        world.store("b")
    assert world.full == 4, "nothing waits for copies any more"
    assert world.pipeline.debt() == Debt(0, 4)
    world.store("c")
    assert world.pipeline.debt() == Debt(0, 4)


def test_a_change_of_a_recorded_ledger_owes_what_any_member_lacks() -> None:
    world = World(ABC, required=False)
    world.push(2)
    for name in "abc":
        world.store(name)
    world.push(3)
    world.store("a")
    world.store("c")  # b, which stays, lags
    world.push()
    world.lose(2)
    commit = world.find(2, "d")
    assert commit is not None
    assert (commit.first_entry_id, commit.debt) == (5, Debt(2, 4))
    world.commit(commit)
    assert world.pipeline.debt() == NO_DEBT, "a new fragment begins without debt"
    world.check_copies()


def test_a_joiner_gets_everything_above_the_lafr_before_the_change() -> None:
    """With a change that does not wait, the writer's death would lose entry 1 (rule G3)."""
    world = World(ABC, required=True)
    world.push()
    for name in "abc":
        world.store(name)
    world.push()
    world.store("a")
    world.store("b")
    world.push()  # pending
    world.lose(1)
    assert world.find(1, "d") is None
    assert world.changes.phase is Phase.COPYING
    assert world.required.on_copied() is None, "a and d do not hold entry 1 yet"
    world.tell(world.pipeline.on_joiner_ready(1, world.pipeline.attempt))
    assert [(name, effect.run.first) for name, effect in world.sent if name == "d"] == [("d", 1), ("d", 2)]
    world.store("d", 1)
    commit = world.required.on_copied()
    assert commit == Commit(EntryId(1), (BookieId("a"), BookieId("d"), BookieId("c")), 1)
    world.commit(commit)
    world.check_copies()
    world.tell(world.pipeline.on_ready(1))
    world.store("d")
    world.store("c")
    world.store("a")
    assert world.full == world.acknowledged == 2


def test_acknowledgements_during_the_copy_count_on_the_old_members_only() -> None:
    world = World(ABC, required=True)
    world.push()
    world.lose(1)
    assert world.find(1, "d") is None or world.changes.phase is Phase.COMMITTING
    world.store("a")
    assert world.acknowledged == -1


def test_what_a_joiner_confirms_acknowledges_nothing_before_the_change_stands() -> None:
    world = World(ABC, required=True)
    world.push()
    world.store("a")
    world.store("b")
    world.push()
    world.lose(1)
    world.find(1, "d")
    world.tell(world.pipeline.on_joiner_ready(1, world.pipeline.attempt))
    world.store("d")
    world.store("a")
    assert world.acknowledged == 0, "entry 1 is on a and d, and d is no member yet"
    commit = world.required.on_copied()
    assert commit is not None
    world.store("c", 0)
    assert world.full == -1, "nothing becomes full between the choice of the change and its answer"
    world.commit(commit)
    assert world.acknowledged == 1
    world.check_copies()


def test_what_a_joiner_of_an_earlier_attempt_confirms_is_void() -> None:
    world = World(ABC, required=True)
    world.push()
    world.store("a")
    world.store("b")
    world.push()
    world.lose(1)
    world.find(1, "d")
    world.tell(world.pipeline.on_joiner_ready(1, world.pipeline.attempt))
    first = next(one for one in world.sent if one[0] == "d")
    world.required.on_joiner_failed(0.0)
    assert world.changes.phase is Phase.IDLE
    assert world.find(1, "d") is None
    world.confirm(first)
    assert world.required.on_copied() is None


def test_a_bookie_that_is_back_ends_the_copy() -> None:
    world = World(ABC, required=True)
    world.push()
    world.store("a")
    world.store("b")
    world.push()
    world.lose(1)
    world.find(1, "d")
    world.changes.on_connected(1)
    assert world.required.on_copied() is None
    assert world.changes.phase is Phase.IDLE
    assert world.pipeline.joining == ()


def test_an_idle_writer_replaces_a_bookie_that_lacks_acknowledged_entries_where_they_are_required() -> None:
    for required, waits in ((True, True), (False, False)):
        world = World(ABC, required=required)
        world.push()
        world.store("a")
        world.store("b")
        world.lose(2)
        assert (world.changes.poll(0.0) is not None) is waits


def test_a_roll_where_copies_are_required_begins_above_what_is_full() -> None:
    """Rules G3 and U6: not at LAC + 1, because nothing may be owed."""
    world = World(ABC, required=True)
    world.push()
    for name in "abc":
        world.store(name)
    world.push(2)
    world.store("a")
    world.store("b")
    assert world.changes.begin_roll()
    commit = world.changes.on_placement(tuple(map(BookieId, "bca")))
    assert commit == Commit(EntryId(1), tuple(map(BookieId, "abc")), 1), "on the same bookies nothing is copied"
    world.commit(commit)
    world.check_copies()
    assert (world.acknowledged, world.full) == (2, 0)
    world.store("c")
    assert world.full == 2


def test_a_roll_copies_to_new_bookies_what_is_not_full() -> None:
    world = World(ABC, required=True)
    world.push()
    world.store("a")
    world.store("b")
    assert world.changes.begin_roll()
    assert world.changes.on_placement(tuple(map(BookieId, "dea"))) is None
    assert world.changes.phase is Phase.COPYING
    assert world.required.joiners == {1: "d", 2: "e"}
    for position in world.pipeline.joining:
        world.tell(world.pipeline.on_joiner_ready(position, world.pipeline.attempt))
    assert world.required.on_copied() is None, "no bookie is in trouble, and the roll goes on all the same"
    world.store("d")
    commit = world.required.on_copied()
    assert commit == Commit(EntryId(0), tuple(map(BookieId, "ade")), 0)
    world.commit(commit)
    world.check_copies()


def test_acknowledgements_wait_for_joiners_that_have_nearly_everything() -> None:
    """Joiners that are slower than the members would else never have all that is acknowledged."""
    world = World(ABC, required=True)
    world.push()
    world.store("a")
    world.store("b")
    assert world.changes.begin_roll()
    assert world.changes.on_placement(tuple(map(BookieId, "def"))) is None
    for position in world.pipeline.joining:
        world.tell(world.pipeline.on_joiner_ready(position, world.pipeline.attempt))
    world.push()
    world.store("a")
    world.store("b")
    assert world.acknowledged == 1, "the joiners have nothing yet"
    world.store("d", 0)
    world.store("e", 0)
    assert world.required.on_copied() is None
    world.push()
    world.store("a")
    world.store("b")
    assert world.acknowledged == 1, "entry 2 is on Qa members, and waits"
    world.store("d", 1)
    world.store("e", 1)
    commit = world.required.on_copied()
    assert commit is not None
    world.commit(commit)
    assert world.acknowledged == 1, "what counts is the new members' word"
    world.check_copies()
    for position in range(3):
        world.changes.on_connected(position)
        world.tell(world.pipeline.on_ready(position))
    world.store("d")
    world.store("f")
    assert world.acknowledged == 2


def test_what_was_held_for_joiners_that_fail_is_acknowledged() -> None:
    world = World(ABC, required=True)
    world.push()
    world.store("a")
    world.store("b")
    world.changes.begin_roll()
    world.changes.on_placement(tuple(map(BookieId, "def")))
    for position in world.pipeline.joining:
        world.tell(world.pipeline.on_joiner_ready(position, world.pipeline.attempt))
    world.store("d", 0)
    world.push()
    world.store("a")
    world.store("b")
    world.store("e", 0)
    assert world.required.on_copied() is None
    world.push()
    for name in "abc":
        world.store(name)
    assert (world.acknowledged, world.full) == (1, 1)
    world.required.on_joiner_failed(0.0)
    assert world.changes.phase is Phase.IDLE
    world.tell(world.pipeline.resume())
    assert (world.acknowledged, world.full) == (2, 2)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("quorums", [Quorums(3, 3, 2), Quorums(3, 2, 1), Quorums(4, 3, 2), Quorums(2, 2, 2)], ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_random_lives(quorums: Quorums, seed: int, required: bool) -> None:
    """Bookies store late, are lost and replaced at any time; joiners fail. Every state keeps I1 and I9."""
    rng = random.Random(seed)
    world = World(quorums, required=required, retained_bytes_max=rng.choice([0, 1 << 20]))
    names = iter(map(chr, range(ord("m"), ord("m") + 200)))
    for _ in range(120):
        step = rng.random()
        if step < 0.3:
            if world.pipeline.pending < 6:
                world.push(rng.randint(1, 3))
        elif step < 0.75 and world.sent:
            sent = rng.choice(world.sent)
            world.sent.remove(sent)
            world.confirm(sent)
        elif step < 0.82:
            position = rng.randrange(quorums.ensemble_size)
            world.lose(position)
            if rng.random() < 0.5:
                world.changes.on_connected(position)
                world.tell(world.pipeline.on_ready(position))
        else:
            change(world, names, rng)
        world.pipeline.check_invariants()
        world.check_copies()


def change(world: World, names: Iterator[str], rng: random.Random) -> None:
    """Go on with a change of the ensemble, or begin one: a replacement if one is due, else perhaps a roll."""
    if world.changes.phase is Phase.IDLE:
        wanted = world.changes.poll(0.0)
        if wanted is not None:
            commit = world.changes.on_spares({at: BookieId(next(names)) for at in wanted.positions}, 0.0)
            settle(world, commit, rng)
        elif rng.random() < 0.3 and world.changes.begin_roll():
            stay = [name for name in world.changes.ensemble if rng.random() < 0.4]
            fresh = [BookieId(next(names)) for _ in range(world.quorums.ensemble_size - len(stay))]
            settle(world, world.changes.on_placement([*fresh, *stay]), rng)
    elif world.changes.phase is Phase.COPYING:
        if rng.random() < 0.1:
            world.required.on_joiner_failed(0.0)
        else:
            for position in world.pipeline.joining:
                world.tell(world.pipeline.on_joiner_ready(position, world.pipeline.attempt))
            settle(world, world.required.on_copied(), rng)
        world.tell(world.pipeline.resume())


def settle(world: World, commit: Commit | None, rng: random.Random) -> None:
    """Confirmations arrive while the change is under way; then it stands, and the new members are connected."""
    if commit is None:
        return
    for _ in range(rng.randint(0, 3)):
        if world.sent:
            sent = rng.choice(world.sent)
            world.sent.remove(sent)
            world.confirm(sent)
    before = world.changes.ensemble
    world.commit(commit)
    for position, name in enumerate(commit.ensemble):
        if before[position] != name:
            world.changes.on_connected(position)
            world.tell(world.pipeline.on_ready(position))
