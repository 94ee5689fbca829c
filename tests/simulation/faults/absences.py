"""Processes that are away for longer than their leases, as after SIGSTOP or on a suspended virtual machine: their loops
do not turn, their sockets stay open, what arrives waits, and their timers are late when they go on.

A leader is away while another client takes the log over; a bookie, while its registration ends; a client, between the
moment in which it is given the lock of a log and its takeover. The last is judged: a client whose lock was over before
it heard of it must not depose the leader that has the lock by then (rule P3).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.engine.loop import Process
from simulation.judges.history import Violation

if TYPE_CHECKING:
    from simulation.faults.nemesis import Nemesis
    from simulation.judges.log_history import Leader
    from simulation.world import World

ABSENCES = ("leader absent", "bookie absent")
"""Faults of the nemesis in universes with absences only."""

LEASES_AWAY = (1.5, 4.0)
"""Range of an absence, in leases. Clocks run at four fifths of the right rate at least: every lease is over then by the
clock of its holder, too."""


class Absences:
    """The absences of one universe."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = world.rng_for("absences")
        self._expired: dict[tuple[str, str], float] = {}
        """Process and lock -> when the lock was given to the process, which was away until its lease was over."""
        self.ended = False

    def locked(self, process: Process, lock: str) -> None:
        """A process has been given a lock, and does not know yet."""
        world, granted_at = self._world, self._world.loop.now
        self._expired.pop((process.name, lock), None)
        if self.ended or self._rng.random() >= world.plan.hardships.candidate_absent_chance or process.paused:
            return
        lease: float = world.plan.options["lease_seconds"]
        seconds = lease * self._rng.uniform(*LEASES_AWAY)
        world.trace.count("process: candidate absent when it got the lock")
        world.note(process.name, "is away for %.2f s, with the lock %s", seconds, lock)
        process.pause()

        def go_on() -> None:
            if process.paused and world.loop.now >= granted_at + lease * LEASES_AWAY[0]:
                self._expired[process.name, lock] = granted_at
            process.resume()

        world.loop.call_process(world.loop.world, world.loop.now + seconds, go_on)

    def leads(self, process: Process, lock: str, leader: "Leader", others: "list[Leader]") -> None:
        """Check a leader that waited for its lock."""
        granted_at = self._expired.pop((process.name, lock), None)
        if granted_at is None:
            return
        deposed = [one for one in others if one is not leader and one.has_lock and one.began_at > granted_at]
        if deposed:
            raise Violation("P3", f"{leader} its lock was over when it was told of it, and {deposed[-1]} had it")

    def strikes(self, nemesis: "Nemesis") -> dict[str, Callable[[], None]]:
        """The faults of :data:`ABSENCES`."""
        world, rng = self._world, self._rng

        def leader_absent() -> None:
            writers = {target.writer for target in world.log_histories.targets()}
            hosts = [host for host in world.hosts if host.name in writers and host.process.alive]
            if hosts:
                process = rng.choice(hosts).process
                nemesis.count("process: leader absent")
                process.pause()
                lease: float = world.plan.options["lease_seconds"]
                nemesis.heal_after(LEASES_AWAY[0] * lease, LEASES_AWAY[1] * lease, process.resume)

        def bookie_absent() -> None:
            running = [machine.process for machine in world.machines if machine.process is not None]
            if running:
                process = rng.choice(running)
                nemesis.count("process: bookie absent")
                process.pause()
                lease: float = world.plan.bookie["lease_seconds"]
                nemesis.heal_after(LEASES_AWAY[0] * lease, LEASES_AWAY[1] * lease, process.resume)

        return dict(zip(ABSENCES, (leader_absent, bookie_absent), strict=True))
