"""Stories: sieges that are scripted sequences of faults.

The moves of an ordinary siege are independent of each other. Some defects show only when each fault strikes the right
process, in the right order. A story therefore assigns the parts first, and lets steps wait for conditions. It looks
only at the simulated world, never into the code under test.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.metadata.ledger.term import TermState
from simulation.engine.metadata import ADDRESS
from simulation.faults.late_rival import fence_late, take_over
from simulation.judges.history import LedgerHistory
from simulation.world import JOURNAL, ClientHost, Machine

if TYPE_CHECKING:
    from simulation.faults.nemesis import Nemesis
    from simulation.faults.siege import Target

LOOK_SECONDS = 0.02
"""Interval at which a story checks the condition it waits for."""


class Stories:
    """The stories by name. Part of the siege; the nemesis ends the lasting faults."""

    def __init__(self, nemesis: "Nemesis") -> None:
        self._nemesis = nemesis
        self._world = nemesis.world
        self._rng = nemesis.world.rng_for("stories")
        self.moves: dict[str, Callable[[Target], None]] = {
            "blackout": self._blackout,
            "absence": self._absence,
            "race": self._race,
            "collapse": self._collapse,
            "amnesia": self._amnesia,
            "rivals": self._rivals,
        }

    # --- stories ----------------------------------------------------------------------------------------------------

    def _blackout(self, target: "Target") -> None:
        """The writer and one of its bookies lose power at the same time. That bookie returns without its journal, or
        cannot read its disk for a while. Of the other bookies, Qw - Qa have not received the last adds, and those that
        hold them hang.
        """
        _, write_quorum, ack_quorum = target.ledger.quorums
        unlucky = self._world.unlucky
        members = sorted(target.members, key=lambda machine: machine not in unlucky or machine.spent)
        lag = 1 + write_quorum - ack_quorum
        for machine in members[1:lag]:
            self._block(target.ledger.writer, machine.name, 3.0, 5.0)
        still = members[lag:write_quorum]
        self._later(self._rng.uniform(0.02, 0.25), lambda: self._lights_out(target.ledger, members[0], still))

    def _lights_out(self, ledger: LedgerHistory, struck: Machine, still: list[Machine]) -> None:
        writer, rng = self._writer(ledger), self._rng
        if writer.process.alive:
            if rng.random() < 0.5:
                self._world.network.power_off(writer.name)
            writer.process.kill()
        for machine in still:
            self._hold_up(machine, 1.5, 4.5)
        if struck in self._world.unlucky and not struck.spent and rng.random() < 0.7:
            self._nemesis.wipe(struck, JOURNAL)
            return
        self._start_anew(struck)
        self._when(lambda: struck.ready, 2.0, lambda: self._fail_reads(struck))

    def _absence(self, target: "Target") -> None:
        """The writer hangs while its ledger is recovered and each of its bookies is restarted. Then it resumes, still
        cut off from the metadata.
        """
        writer = self._writer(target.ledger)
        process = writer.process
        if not process.alive or process.paused:
            return
        process.pause()
        self._nemesis.heal_after(5.0, 6.0, process.resume)
        self._block(ADDRESS, writer.name, 6.0, 8.0)

        def restart() -> None:
            for machine in target.members:
                self._start_anew(machine)
            self._when(lambda: all(machine.ready for machine in target.members), 3.0, process.resume)

        self._when(lambda: target.ledger.end is not None, 3.0, restart)

    def _race(self, target: "Target") -> None:
        """A writer's last adds race the recovery of its ledger. They arrive at one bookie while the recovery is under
        way; Qw - Qa bookies never receive them; the other bookies answer slowly. The writer learns the outcome of its
        adds only after the recovery has ended.
        """
        rng, ledger = self._rng, target.ledger
        _, write_quorum, ack_quorum = ledger.quorums
        members = list(target.members)
        if rng.random() < 0.7:
            # In ensemble order: a client that asks them one after another begins with the late one.
            members.sort(key=lambda machine: self._position(ledger, machine))
        writer, (late, *others) = self._writer(ledger), members
        lag, slowness = rng.choice((0.8, 1.2)), rng.choice((0.2, 0.3))
        self._block(ADDRESS, writer.name, 2.5, 3.0)
        self._delay(writer.name, late.name, lag)
        for machine in others[: write_quorum - ack_quorum]:
            self._block(writer.name, machine.name, 2.5, 3.0)
        for machine in others[write_quorum - ack_quorum :]:
            for host in self._world.hosts:
                if host.process.alive and host is not writer:
                    self._delay(machine.name, host.name, slowness)
        self._later(lag + rng.uniform(0.0, 0.3), lambda: self._suspect(ledger))

        def begun() -> None:
            writer.process.pause()
            self._slow_disk(late, rng.choice((0.05, 0.1)))
            self._nemesis.heal_after(2.0, 2.5, writer.process.resume)
            self._when(lambda: ledger.end is not None, 2.0, writer.process.resume)

        self._when(lambda: ledger.term.state is not TermState.OPEN, 2.0, begun)

    def _collapse(self, target: "Target") -> None:
        """The writer fails when fewer than Qa bookies have its last adds, so that its recovery has much to write back.
        While it does, a member of the ensemble fails, and then bookies that may have taken its place: the recovery
        changes the ensemble at several entries.
        """
        rng, ledger, world = self._rng, target.ledger, self._world
        _, write_quorum, ack_quorum = ledger.quorums
        members = list(target.members)
        for machine in members[: write_quorum - ack_quorum + 1]:
            self._block(ledger.writer, machine.name, 1.0, 1.5)
        writer = self._writer(ledger)

        def fail() -> None:
            if writer.process.alive:
                writer.process.kill()
            self._suspect(ledger)
            for machine in world.machines:
                self._slow_disk(machine, rng.choice((0.03, 0.08)))

        def recovering() -> None:
            self._lose(members[0])
            others = [machine for machine in world.machines if machine not in members]
            rng.shuffle(others)
            at = 0.0
            for machine in others:
                at += rng.uniform(0.06, 0.25)
                self._later(at, lambda machine=machine: self._lose(machine))  # type: ignore[misc]

        self._later(rng.uniform(0.1, 0.4), fail)
        self._when(lambda: ledger.term.state is TermState.IN_RECOVERY, 2.0, recovering)

    def _amnesia(self, target: "Target") -> None:
        """The writer hangs while its ledger is recovered; the recovery does not reach one of the bookies. Another one
        then loses its journal, with its fence, and repair fills it again. When the writer resumes, still cut off from
        the metadata, it reaches only these two: neither knows a fence, and together they are an ack quorum.
        """
        writer, world = self._writer(target.ledger), self._world
        forgetful = next((one for one in target.members if one in world.unlucky and not one.spent), None)
        process = writer.process
        if forgetful is None or not process.alive or process.paused:
            return
        apart, *fenced = [one for one in target.members if one is not forgetful]
        process.pause()
        self._nemesis.heal_after(9.0, 9.5, process.resume)
        self._block(ADDRESS, writer.name, 9.5, 10.0)
        for machine in fenced:
            self._block(writer.name, machine.name, 9.5, 10.0)
        for host in world.hosts:
            if host is not writer:
                self._block(host.name, apart.name, 9.5, 10.0)

        def forget() -> None:
            self._nemesis.wipe(forgetful, JOURNAL)
            self._later(2.5, lambda: self._when(lambda: forgetful.ready, 3.0, process.resume))

        self._when(lambda: target.ledger.end is not None, 2.0, forget)

    def _rivals(self, target: "Target") -> None:
        """The leader of a stream hangs while a rival takes its term over without one of the bookies. Another one loses
        its journal, and with it the rival's fence; then the fence of an earlier takeover arrives there late. When the
        leader resumes, cut off from the metadata, it reaches only these two, which together are an ack quorum.
        """
        ledger, writer, world = target.ledger, self._writer(target.ledger), self._world
        forgetful = next((one for one in target.members if one in world.unlucky and not one.spent), None)
        earlier = world.log_histories.last_recovered(ledger.ledger_id)
        process = writer.process
        if forgetful is None or earlier is None or not process.alive or process.paused:
            return
        apart, *fenced = [one for one in target.members if one is not forgetful]
        process.pause()
        self._nemesis.heal_after(7.0, 7.5, process.resume)
        self._block(ADDRESS, writer.name, 8.0, 8.5)
        for machine in fenced:
            self._block(writer.name, machine.name, 8.0, 8.5)
        rival = world.host(f"rival-{len(world.hosts)}")
        for host in world.hosts:
            if host is not writer:
                self._block(host.name, apart.name, 8.0, 8.5)

        def forget() -> None:
            self._nemesis.wipe(forgetful, JOURNAL)
            self._when(lambda: forgetful.ready, 3.0, come_late)

        def come_late() -> None:
            fence_late(rival, forgetful, ledger.ledger_id, earlier)
            self._later(0.2, process.resume)

        take_over(rival, world.log_histories.stream_of(ledger.ledger_id))
        self._when(lambda: ledger.end is not None, 3.0, forget)

    def _lose(self, machine: Machine) -> None:
        """Kill a bookie and let it stay away for a moment."""
        machine.kill()
        machine.start_later(self._rng.uniform(0.2, 0.6))

    # --- steps ------------------------------------------------------------------------------------------------------

    def _position(self, ledger: LedgerHistory, machine: Machine) -> int:
        bookies = ledger.term.bookies
        return next((position for position, bookie in enumerate(bookies) if bookie in machine.ids), len(bookies))

    def _writer(self, ledger: LedgerHistory) -> ClientHost:
        return next(host for host in self._world.hosts if host.name == ledger.writer)

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        loop = self._world.loop
        loop.call_process(loop.world, loop.now + seconds, self._act, act)

    def _act(self, act: Callable[[], None]) -> None:
        if not self._nemesis.healed:
            act()

    def _when(self, condition: Callable[[], bool], patience_seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` once the condition holds; end the story if it does not hold within the time."""
        if condition():
            act()
        elif patience_seconds > 0:
            self._later(LOOK_SECONDS, lambda: self._when(condition, patience_seconds - LOOK_SECONDS, act))

    def _block(self, source: str, target: str, low: float, high: float) -> None:
        network = self._world.network
        network.set_blocked(source, target, True)
        self._nemesis.heal_after(low, high, lambda: network.set_blocked(source, target, False))

    def _delay(self, source: str, target: str, seconds: float) -> None:
        """Delay every packet of the link by the same time."""
        link = self._world.network.link(source, target)
        link.extra_delay_seconds, link.steady = seconds, True

        def heal() -> None:
            link.extra_delay_seconds, link.steady = 0.0, False

        self._nemesis.heal_after(2.0, 3.0, heal)

    def _start_anew(self, machine: Machine) -> None:
        """Restart after a power cut or a kill."""
        if self._rng.random() < 0.5:
            machine.cut_power()
        else:
            machine.kill()
        machine.start_later(self._rng.uniform(0.01, 0.2))

    def _hold_up(self, machine: Machine, low: float, high: float) -> None:
        process = machine.process
        if process is not None:
            process.pause()
            self._nemesis.heal_after(low, high, process.resume)

    def _slow_disk(self, machine: Machine, sync_seconds: float) -> None:
        disk = machine.disk
        faults = disk.faults
        faults.slow_factor = max(1.0, sync_seconds / disk.settings.sync_seconds)

        def heal() -> None:
            faults.slow_factor = 1.0

        self._nemesis.heal_after(1.0, 2.0, heal)

    def _fail_reads(self, machine: Machine) -> None:
        faults = machine.disk.faults
        faults.read_error_chance = self._rng.choice((0.3, 1.0))

        def heal() -> None:
            faults.read_error_chance = 0.0

        self._nemesis.heal_after(1.0, 3.5, heal)

    def _suspect(self, ledger: LedgerHistory) -> None:
        ledger.suspected = True

        def trust() -> None:
            ledger.suspected = False

        self._nemesis.heal_after(0.5, 2.0, trust)
