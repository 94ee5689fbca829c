"""Sieges: several faults at once, aimed at one ledger that is being written.

Faults drawn one by one for a whole cluster seldom coincide. Real data loss comes from coincidences: within a second, a
link is slow, one bookie of an ensemble fails, another hangs, and a client takes the writer for failed. A siege injects
the moves of its kind (``siege_moves.py``) into a ledger's bookies and clients, each at once or a little later.
"""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from simulation.engine.metadata import ADDRESS
from simulation.faults.siege_moves import NEEDS_BUDGET, SIEGES, STORIES
from simulation.faults.siege_stories import Stories
from simulation.judges.history import LedgerHistory
from simulation.world import ClientHost, Machine

if TYPE_CHECKING:
    from simulation.faults.nemesis import Nemesis


PAUSE_SECONDS = (0.3, 1.5)
"""Range of the pause between two sieges. Without a pause no add would be acknowledged, so none could be lost."""

STORY_SECONDS = (1.0, 2.0)
"""Range of the additional pause after a story, which takes longer than other sieges."""

STORY_ENTRIES = 3
"""Acknowledged entries that a ledger must have before a story is about it."""


class Target(NamedTuple):
    """The ledger and bookies that a siege is aimed at."""

    ledger: LedgerHistory
    members: deque[Machine]
    """Machines of its ensemble when the siege began, in random order."""


class Siege:
    """Injects sieges. Part of the nemesis, which ends the lasting faults."""

    def __init__(self, nemesis: "Nemesis") -> None:
        self._nemesis = nemesis
        self._world = nemesis.world
        self._rng = nemesis.world.rng_for("siege")
        self._next_at = 0.0
        self._moves = {
            "deafen writer": self._deafen_writer,
            "delay writer's adds": self._delay_adds,
            "delay member's answers": self._delay_answers,
            "delay recoverer": self._delay_recoverer,
            "delay metadata": self._delay_metadata,
            "slow changes of metadata": self._slow_changes,
            "hold up member": self._hold_up,
            "stall member": self._stall,
            "kill member": self._kill_member,
            "lose member": self._lose_member,
            "slow member's disk": self._slow_disk,
            "member cannot read": self._read_errors,
            "member's sync fails": self._sync_failure,
            "pause writer": self._pause_writer,
            "kill writer": self._kill_writer,
            "kill another client": self._kill_other,
            "suspect writer": self._suspect,
            "restart members": self._restart_members,
            "cut members' power in journal writes": self._cut_rack_power,
            "wipe member": self._wipe,
            "rot in member": self._rot,
            **Stories(nemesis).moves,
        }

    def strike(self) -> None:
        """Begin a siege of a ledger that is not closed, preferably of one that is being written."""
        world, rng = self._world, self._rng
        ledgers = [
            ledger
            for ledger in (*world.history.ledgers.values(), *world.log_histories.targets())
            if ledger.end is None and not ledger.delete_asked
        ]
        ledgers = [ledger for ledger in ledgers if not ledger.orphaned] or ledgers
        ledgers = [ledger for ledger in ledgers if ledger.adding] or ledgers
        if not ledgers or world.loop.now < self._next_at:
            return
        self._next_at = world.loop.now + rng.uniform(*PAUSE_SECONDS)
        ledger, kind = rng.choice(ledgers), rng.choice(world.plan.sieges)
        if kind in STORIES:
            ledgers = [ledger for ledger in ledgers if ledger.acknowledged >= STORY_ENTRIES and not ledger.orphaned]
            if not ledgers:
                self._next_at = world.loop.now
                return
            ledger = rng.choice(ledgers)
            self._next_at += rng.uniform(*STORY_SECONDS)
        self._nemesis.count(f"siege: {kind}")
        members = self._members(ledger)
        rng.shuffle(members)
        target = Target(ledger, deque(members or world.machines))
        for move in SIEGES[kind]:
            wait = rng.uniform(move.earliest, move.latest)
            if rng.random() < move.chance and (world.unlucky or move.name not in NEEDS_BUDGET):
                world.loop.call_process(world.loop.world, world.loop.now + wait, self._move, move.name, target)

    def _move(self, name: str, target: Target) -> None:
        if self._nemesis.healed or target.ledger.deleted:
            return
        self._world.note("siege", "of ledger %d: %s", target.ledger.ledger_id, name)
        self._nemesis.count(f"siege move: {name}")
        self._moves[name](target)

    # --- who takes part ---------------------------------------------------------------------------------------------

    def _members(self, ledger: LedgerHistory) -> list[Machine]:
        bookies = ledger.term.bookies
        return [machine for machine in self._world.machines if any(bookie in machine.ids for bookie in bookies)]

    def _member(self, target: Target) -> Machine:
        """The next member in turn, so that the first moves of a siege strike different machines."""
        target.members.rotate()
        return target.members[0]

    def _unlucky(self, target: Target) -> Machine:
        unlucky = self._world.unlucky
        return self._rng.choice([machine for machine in target.members if machine in unlucky] or unlucky)

    def _writer(self, target: Target) -> ClientHost:
        return next(host for host in self._world.hosts if host.name == target.ledger.writer)

    def _others(self, target: Target) -> list[ClientHost]:
        return [host for host in self._world.hosts if host.process.alive and host.name != target.ledger.writer]

    # --- links ------------------------------------------------------------------------------------------------------

    def _delay(self, source: str, target: str, seconds: float, low: float, high: float) -> None:
        link = self._world.network.link(source, target)
        link.extra_delay_seconds = seconds

        def heal() -> None:
            link.extra_delay_seconds = 0.0

        self._nemesis.heal_after(low, high, heal)

    def _block(self, source: str, target: str, low: float, high: float) -> None:
        network = self._world.network
        network.set_blocked(source, target, True)
        self._nemesis.heal_after(low, high, lambda: network.set_blocked(source, target, False))

    def _deafen_writer(self, target: Target) -> None:
        """Block the link from the metadata store to the writer: it receives no answers and no watch events."""
        self._block(ADDRESS, target.ledger.writer, 0.5, 4.0)

    def _delay_adds(self, target: Target) -> None:
        source, member = target.ledger.writer, self._member(target).name
        if self._rng.random() < 0.2:
            source, member = member, source
        if self._rng.random() < 0.5:
            self._delay(source, member, self._rng.choice((0.05, 0.5, 2.0)), 0.3, 3.0)
        else:
            self._block(source, member, 0.1, 2.0)

    def _delay_answers(self, target: Target) -> None:
        """Delay everything that one member sends to clients. Nothing is lost, so no client takes it for failed."""
        member, seconds = self._member(target).name, self._rng.choice((0.2, 0.5, 1.0))
        for host in self._world.hosts:
            self._delay(member, host.name, seconds, 0.5, 2.5)

    def _delay_recoverer(self, target: Target) -> None:
        """Delay the links between one member and every client but the writer, in one direction."""
        member, outwards = self._member(target).name, self._rng.random() < 0.5
        seconds = self._rng.choice((0.02, 0.3))
        for host in self._others(target):
            self._delay(*((member, host.name) if outwards else (host.name, member)), seconds, 0.5, 2.0)

    def _delay_metadata(self, target: Target) -> None:
        pair = (target.ledger.writer, ADDRESS) if self._rng.random() < 0.5 else (ADDRESS, target.ledger.writer)
        if self._rng.random() < 0.8:
            self._delay(*pair, self._rng.choice((0.1, 0.5, 1.5)), 0.5, 3.0)
        else:
            self._block(*pair, 0.3, 2.0)

    def _slow_changes(self, target: Target) -> None:
        self._nemesis.slow_metadata(self._rng.choice((0.2, 0.6)))

    # --- bookies ----------------------------------------------------------------------------------------------------

    def _hold_up(self, target: Target) -> None:
        process = self._member(target).process
        if process is not None:
            process.pause()
            self._nemesis.heal_after(0.1, 2.0, process.resume)

    def _stall(self, target: Target) -> None:
        process = self._member(target).process
        if process is not None:
            process.pause()
            self._nemesis.heal_after(0.4, 2.5, process.resume)

    def _kill_member(self, target: Target) -> None:
        machine = self._member(target)
        machine.kill()
        machine.start_later(self._rng.uniform(0.5, 3.0))

    def _lose_member(self, target: Target) -> None:
        machine, rng = self._member(target), self._rng
        fate = rng.random()
        if fate < 0.2:
            machine.kill()
            machine.start_later(rng.uniform(0.01, 3.0))
        elif fate < 0.5:
            faults = machine.disk.faults
            faults.crash_of, faults.crash_kills_process, faults.crash_at = (
                "journal",
                rng.random() < 0.2,
                rng.randint(1, 3),
            )
        elif fate < 0.75:
            machine.cut_power()
            machine.start_later(rng.uniform(0.05, 3.0))
        else:
            for host in self._world.hosts:
                self._block(machine.name, host.name, 0.5, 3.0)

    def _restart_members(self, target: Target) -> None:
        for machine in target.members:
            machine.kill()
            machine.start_later(self._rng.uniform(0.01, 0.3))

    def _cut_rack_power(self, target: Target) -> None:
        for machine in target.members:
            faults = machine.disk.faults
            faults.crash_of, faults.crash_kills_process, faults.crash_at = "journal", False, self._rng.randint(1, 3)

    def _slow_disk(self, target: Target) -> None:
        faults = self._member(target).disk.faults
        faults.slow_factor = self._rng.choice((30.0, 300.0))

        def heal() -> None:
            faults.slow_factor = 1.0

        self._nemesis.heal_after(0.1, 2.0, heal)

    def _read_errors(self, target: Target) -> None:
        self._nemesis.fail_reads(self._member(target), self._rng.choice((0.3, 1.0)))

    def _sync_failure(self, target: Target) -> None:
        self._nemesis.fail_sync(self._member(target))

    def _wipe(self, target: Target) -> None:
        self._nemesis.wipe(self._unlucky(target))

    def _rot(self, target: Target) -> None:
        self._nemesis.rot(self._unlucky(target), stored=True)

    # --- clients ----------------------------------------------------------------------------------------------------

    def _pause_writer(self, target: Target) -> None:
        process = self._writer(target).process
        if process.alive:
            process.pause()
            self._nemesis.heal_after(0.1, 2.0, process.resume)

    def _kill_writer(self, target: Target) -> None:
        self._writer(target).process.kill()

    def _kill_other(self, target: Target) -> None:
        others = self._others(target)
        if others:
            self._rng.choice(others).process.kill()

    def _suspect(self, target: Target) -> None:
        target.ledger.suspected = True

        def trust() -> None:
            target.ledger.suspected = False

        self._nemesis.heal_after(0.5, 2.0, trust)
