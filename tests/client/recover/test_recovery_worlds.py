"""Ledger recovery's decisions among bookies of every kind, in random order: safe always, live when it can be."""

import random
from dataclasses import dataclass, field

import pytest
from octavo.client.recover.ledger_recovery import LedgerRecovery
from octavo.protocol.entries import Digest, Sealer, derive_secrets, header_of
from octavo.protocol.ids import EntryId, LedgerId
from octavo.protocol.quorums import Quorums

LEDGER = LedgerId(1)
SEALER = Sealer(LEDGER, Digest.CRC32C, derive_secrets(b"", LEDGER))
ENTRIES_MAX = 40
PAYLOADS = [b"x" * (7 * at % 23) for at in range(ENTRIES_MAX)]
LENGTHS = [sum(map(len, PAYLOADS[:stop])) for stop in range(ENTRIES_MAX + 1)]
SEALED = SEALER.seal(EntryId(0), PAYLOADS, last_add_confirmed=None, length=0, sealed_at_ms=0)


@dataclass
class Replica:
    """One bookie, as the writer left it."""

    held: dict[int, bytes]
    last_add_confirmed: int | None
    lengths: list[tuple[int, int]]
    hangs: bool = False
    unknown: set[int] = field(default_factory=set)

    def answer(self, first: int, last: int) -> tuple[dict[int, bytes], list[int]]:
        ids = range(first, last + 1)
        found = {at: self.held[at] for at in ids if at in self.held and at not in self.unknown}
        return found, [at for at in ids if at in self.unknown]


class World:
    """A ledger whose writer has vanished, one recovery of it, and chance."""

    def __init__(self, seed: int, *, faults: bool) -> None:
        self.rng = rng = random.Random(seed)
        self.patience = rng.randint(0, 1) if faults else 0
        """How many more bookies fall silent on the way."""
        ensemble = rng.randint(1, 5)
        write = rng.randint(1, ensemble)
        self.quorums = Quorums(ensemble, write, rng.randint(1, write))
        self.first = rng.choice((0, 0, 5))
        self._leave_behind(rng.randint(self.first, ENTRIES_MAX))
        if faults:
            self._go_wrong()
        self.window_bytes = rng.choice((150, 1 << 20))
        self.machine = LedgerRecovery(
            self.quorums,
            first_entry_id=self.first,
            length_before=LENGTHS[self.first],
            window_entries=rng.choice((1, 3, 8, 64)),
            window_bytes=self.window_bytes,
        )
        self.unfenced = list(range(ensemble))
        self.asked: dict[int, tuple[int, int]] = {}
        self.gave_up: set[int] = set()
        self.written: list[bytes] = []
        self.written_back = 0
        self.answer_bytes_max = 0

    def _leave_behind(self, stop: int) -> None:
        """Entries below ``stop`` were written, each to some bookies; some prefix was acknowledged."""
        quorums, rng = self.quorums, self.rng
        holders = {}
        for entry_id in range(stop):
            odds = rng.choice((1.0, 0.8, 0.3))
            holders[entry_id] = [at for at in quorums.write_set(entry_id) if rng.random() < odds]
        complete = self.first
        while complete < stop and len(holders[complete]) >= quorums.ack_quorum:
            complete += 1
        self.acknowledged = rng.randint(self.first, complete) - 1
        self.replicas = []
        for position in range(quorums.ensemble_size):
            held = {at: SEALED[at] for at in range(self.first, stop) if position in holders[at]}
            lac = rng.choice((None, rng.randint(-1, self.acknowledged), self.acknowledged))
            lengths = [(at, LENGTHS[at + 1]) for at in list(held)[-1:]]
            if lac is not None and lac >= 0 and rng.random() < 0.5:
                lengths.append((lac, LENGTHS[lac + 1]))
            self.replicas.append(Replica(held, None if lac is None or lac < 0 else lac, lengths))

    def _go_wrong(self) -> None:
        for replica in self.replicas:
            if self.rng.random() < 0.25:
                replica.hangs = True
            if self.rng.random() < 0.3:
                # In doubt, or damaged: what it does not have it never denies.
                replica.unknown = {at for at in range(ENTRIES_MAX + 100) if self.rng.random() < 0.7}

    # --- one step after another -------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end, or until it is blocked."""
        machine, chance = self.machine, self.rng
        for _ in range(5000):
            if machine.finished or machine.blocked_by is not None:
                return
            self._ask()
            writes = self.written_back < len(self.written)
            if writes and chance.random() < 0.4:
                self._write_back()
            elif waiting := [("fence", position) for position in self.unfenced] + [
                ("read", position) for position in self.asked
            ]:
                self._answer(*chance.choice(waiting))
            else:
                assert writes, f"stuck: {machine.state()}"
                self._write_back()
            self._check()
        raise AssertionError(f"it never ends: {machine.state()}")

    def _ask(self) -> None:
        for position in range(self.quorums.ensemble_size):
            if position not in self.asked and position not in self.unfenced:
                wanted = self.machine.wanted_read(position)
                if wanted is not None:
                    self.asked[position] = wanted

    def _answer(self, question: str, position: int) -> None:
        machine, replica = self.machine, self.replicas[position]
        if not replica.hangs and self.patience and self.rng.random() < 0.1:
            self.patience -= 1
            replica.hangs = True
        if replica.hangs:
            self.gave_up.add(position)
            self.asked.pop(position, None)
            self.unfenced = [one for one in self.unfenced if one != position]
            machine.on_gave_up(position)
        elif question == "fence":
            self.unfenced.remove(position)
            machine.on_fenced(position, replica.last_add_confirmed, dict(replica.lengths))
        else:
            first, last = self.asked.pop(position)
            covered = self.rng.choice((last, self.rng.randint(first, last)))
            found, unknown = replica.answer(first, covered)
            self.answer_bytes_max = max(self.answer_bytes_max, sum(map(len, found.values())))
            machine.on_read(position, first, covered, found, unknown)

    def _check(self) -> None:
        machine = self.machine
        machine.check_invariants()
        assert machine.copy().state() == machine.state()
        hash(machine.state())
        self.written += machine.take_recovered()
        # What is held is bounded by the window and one answer of each bookie.
        assert machine.held_bytes <= self.window_bytes + self.quorums.ensemble_size * self.answer_bytes_max

    def _write_back(self) -> None:
        before = self.written_back
        self.written_back = self.rng.randint(before + 1, len(self.written))
        last = header_of(self.written[self.written_back - 1]).entry_id
        self.machine.on_written_back(last, sum(map(len, self.written[before : self.written_back])))


@pytest.mark.parametrize("seeds", [range(at, at + 250) for at in range(0, 1000, 250)], ids=str)
def test_among_healthy_bookies_it_finishes_and_keeps_what_was_acknowledged(seeds: range) -> None:
    for seed in seeds:
        world = World(seed, faults=False)
        world.run()
        assert world.machine.blocked_by is None, f"seed {seed}"
        check_end(world, seed)


@pytest.mark.parametrize("seeds", [range(at, at + 250) for at in range(0, 1500, 250)], ids=str)
def test_whatever_hangs_or_cannot_tell_it_keeps_what_was_acknowledged_or_names_the_bookies_that_block(
    seeds: range,
) -> None:
    blocked = 0
    for seed in seeds:
        world = World(seed, faults=True)
        world.run()
        named = world.machine.blocked_by
        if named is None:
            check_end(world, seed)
            continue
        blocked += 1
        assert named, f"seed {seed}"
        at = world.machine.blocked_at
        for position in named:
            # No bookie is named without a reason: it was given up, or cannot tell.
            assert position in world.gave_up or at in world.replicas[position].unknown, f"seed {seed}"
    assert len(seeds) // 10 < blocked < len(seeds) * 9 // 10, "both must be seen often"


def check_end(world: World, seed: int) -> None:
    end = world.machine.end
    assert end is not None, f"seed {seed}"
    last = -1 if end.last_entry_id is None else end.last_entry_id
    assert last >= world.acknowledged, f"seed {seed}: lost"
    assert end.length == LENGTHS[last + 1], f"seed {seed}"
    assert world.machine.start_length == LENGTHS[(world.machine.start or 0) + 1] or world.machine.start == -1
    # What lies beyond the LAC was written back, verbatim and in order.
    assert world.machine.start is not None
    assert world.written == SEALED[world.machine.start + 1 : last + 1], f"seed {seed}"
