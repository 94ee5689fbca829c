"""The machine of ensemble changes where it replaces no bookie that has failed (rule U6)."""

from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, FindSpares, Phase
from octavo.client.write.pipeline import Acknowledge, Pipeline, Send
from octavo.metadata.ledger.debts import Debt
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.quorums import Quorums


def bookies(names: str) -> tuple[BookieId, ...]:
    return tuple(map(BookieId, names))


class World:
    """A pipeline with its changes, all of whose bookies are connected and take everything."""

    def __init__(self, quorums: Quorums, names: str) -> None:
        self.pipeline = Pipeline(quorums, retained_bytes_max=1 << 20)
        self.changes = EnsembleChanges(
            self.pipeline, quorums, bookies(names), now=0.0, loss_seconds=1.0, delay_seconds=0.0, retry_seconds=1.0
        )
        for position in range(quorums.ensemble_size):
            self.changes.on_connected(position)
            self.pipeline.on_ready(position)

    def push(self, count: int) -> None:
        first = self.pipeline.next_entry_id
        self.pipeline.push([b"x"] * count, sealed_bytes=count, length_after=first + count, now=0.0)

    def check(self) -> None:
        self.pipeline.check_invariants()
        self.changes.check_invariants()


def test_on_the_same_bookies_confirmations_count_and_nothing_is_sent_again() -> None:
    world = World(Quorums(3, 3, 2), "abc")
    world.push(2)
    world.push(3)
    for position in (0, 1):
        world.pipeline.on_confirmed(position, 0, 0)
    world.pipeline.on_confirmed(0, 1, 0)
    assert world.changes.begin_roll()
    commit = world.changes.on_placement(bookies("cab"))
    assert commit == Commit(EntryId(2), bookies("abc"), 2, Debt(0, 1)), "one that stays keeps its position"
    world.check()
    assert not world.pipeline.on_confirmed(1, 1, 0), "nothing is acknowledged before the change stands (rule W1)"
    assert world.changes.on_committed(1.0) == (Acknowledge(2, 4, 3),)
    assert not world.changes.troubled_since
    world.check()


def test_what_new_bookies_have_not_confirmed_does_not_count() -> None:
    world = World(Quorums(3, 3, 2), "abc")
    world.push(1)
    for position in range(3):
        world.pipeline.on_confirmed(position, 0, 0)
    world.push(2)
    assert world.changes.begin_roll()
    commit = world.changes.on_placement(bookies("dbe"))
    assert commit == Commit(EntryId(1), bookies("dbe"), 1)
    for position in range(3):
        world.pipeline.on_confirmed(position, 1, 0)
    assert not world.changes.on_committed(1.0), "of three only one has stayed"
    world.check()
    assert sorted(world.changes.troubled_since) == [0, 2], "new ones are troubled until they are connected"
    (sent,) = world.pipeline.on_ready(0)
    assert isinstance(sent, Send)
    assert (sent.run.first, sent.tenure) == (1, 1)
    assert world.pipeline.on_confirmed(0, 1, 1) == (Acknowledge(1, 2, 2),)


def test_a_striped_fragment_takes_the_order_of_its_placement() -> None:
    world = World(Quorums(4, 2, 2), "abcd")
    world.push(1)
    assert world.changes.begin_roll()
    commit = world.changes.on_placement(bookies("badc"))
    assert commit is not None
    assert commit.ensemble == bookies("badc")
    world.check()
    world.changes.on_committed(1.0)
    world.check()


def test_one_change_at_a_time() -> None:
    world = World(Quorums(3, 3, 3), "abc")
    world.push(1)
    assert world.changes.begin_roll()
    world.changes.on_lost(2, 0.0)
    assert world.changes.poll(9.0) is None, "a roll is under way (rule W5)"
    assert not world.changes.begin_roll()
    assert world.changes.on_placement(None) is None
    assert world.changes.poll(9.0) == FindSpares((2,))
    assert not world.changes.begin_roll()
    assert world.changes.phase is Phase.SEEKING
