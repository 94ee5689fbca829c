"""The nemesis: injects the faults of the plan at random times, and ends each lasting fault after a while.

Faults that destroy synced data strike only the *unlucky* machines, which are fewer than Qa (the *fault budget*), so
that a copy of each acknowledged entry remains. A machine that may lose nothing more is *spent*.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path, PurePath

from octavo.bookie.identity.cookie import COOKIE_NAME
from simulation.engine.disk import DiskFaults
from simulation.engine.metadata import ADDRESS
from simulation.faults import guarding, host_faults
from simulation.faults.returns import Returns
from simulation.faults.siege import Siege
from simulation.gateways.faults import GatewayStrikes
from simulation.judges.host_judge import QUIET_SECONDS
from simulation.world import DATA, JOURNAL, ClientHost, Machine, World

_RARE_OPERATIONS = ("create", "rename", "remove", "sync", "sync_directory", "truncate")

_CUT_DURING = (*("journal",) * 30, "", "", "", *_RARE_OPERATIONS)
"""The operations during which power is cut, one of which is drawn; the empty string stands for any operation."""


class Nemesis:
    """Injects and ends faults. It acts from outside every simulated process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng_for("nemesis")
        self._active_faults: dict[Callable[[], None], None] = {}
        self._healed = False
        self._returns = Returns(world, world.rng_for("returns"))
        self._strikes: dict[str, Callable[[], None]] = {
            "siege": Siege(self).strike,
            "kill bookie": self._kill_bookie,
            "kill bookie at a step": self._kill_bookie_at_step,
            "cut power": self._cut_power,
            "cut power at a file operation": self._cut_power_at_operation,
            "cut power everywhere": self._cut_power_everywhere,
            "kill in a journal write, then cut power": self._kill_in_journal_write,
            "pause client, restart bookies": self._pause_client_and_restart_bookies,
            "restart bookie": self._restart_bookie,
            "pause bookie": self._pause_bookie,
            "pause client": self._pause_client,
            "kill client": self._kill_client,
            "isolate machine": self._isolate,
            "partition into halves": self._halves,
            "bridge": self._bridge,
            "one-way partition": self._one_way,
            "slow link": self._slow_link,
            "reset connections": self._reset,
            "slow disk": self._slow_disk,
            "sync failure": self._sync_failure,
            "write errors": self._write_errors,
            "read errors": self._read_errors,
            "disk full": self._disk_full,
            "rot": self._rot,
            "lying sync": self._lying_sync,
            "wipe": self._wipe,
            "metadata down": self._metadata_down,
            "metadata loses answers": self._metadata_chance("lose_answer_chance"),
            "metadata loses requests": self._metadata_chance("lose_request_chance"),
            "metadata changes slowly": self._metadata_slow,
            "stale list of bookies": self._metadata_chance("stale_bookies_chance"),
            "late watches": self._late_watches,
            "lost watches": self._metadata_chance("lose_watch_chance"),
            "expire sessions": self._expire_sessions,
            "metadata conflict": self._conflict,
            "metadata lists are empty": self._metadata_chance("list_nothing_chance"),
            **guarding.strikes(world, self.rng, self.heal_after),
            **world.absences.strikes(self),
            **world.clocks.strikes(self),
            **self._returns.strikes(self),
            **host_faults.strikes(self),
            **GatewayStrikes(self).strikes(),
        }
        world.host_judge.faults_last = lambda: bool(self._active_faults)

    async def run(self) -> None:
        """Inject faults until cancelled."""
        plan, rng = self.world.plan, self.rng
        names, weights = list(plan.disturbances), list(plan.disturbances.values())
        if not names:
            return
        while True:
            await asyncio.sleep(rng.expovariate(1 / plan.disturbance_every_seconds))
            name = rng.choices(names, weights)[0]
            self.world.note("nemesis", "%s", name)
            self.world.host_judge.disturbed()
            self._strikes[name]()

    def heal(self) -> None:
        """End every lasting fault, restart every machine that is allowed to start, and have the others repaired."""
        world = self.world
        world.note("nemesis", "heals everything")
        self._healed = world.absences.ended = True
        world.host_judge.disturbed()
        world.loop.on_due = None
        for heal in list(self._active_faults):
            heal()
        self._active_faults.clear()
        self._returns.heal()
        world.network.heal()
        world.network.settings.spike_chance = 0.0
        for machine in world.machines:
            machine.disk.faults = DiskFaults()
            machine.disk.settings.spike_chance = 0.0
            if machine.process is not None:
                machine.process.die_at_step = None
                if machine.process.paused:
                    machine.process.resume()
            elif machine.refused is None:
                machine.start()
            elif machine in world.unlucky:
                machine.repair()
        for host in world.hosts:
            if host.process.paused:
                host.process.resume()

    # --- helpers ----------------------------------------------------------------------------------------------------

    @property
    def healed(self) -> bool:
        """Whether :meth:`heal` has been called; no fault is injected afterwards."""
        return self._healed

    async def prepare(self) -> None:
        """What happens before the applications start."""
        if self.world.plan.hardships.returns:
            await self._returns.forget_one()
        if self.world.plan.hardships.hosts:
            await asyncio.sleep(2 * QUIET_SECONDS)

    async def check_returns(self) -> None:
        """Check that no old incarnation of a bookie serves."""
        await self._returns.check()

    def heal_after(self, low: float, high: float, heal: Callable[[], None]) -> None:
        """Call ``heal`` after ``low`` to ``high`` seconds, or earlier when everything is healed."""
        loop = self.world.loop
        self._active_faults[heal] = None

        def end() -> None:
            if heal in self._active_faults:
                del self._active_faults[heal]
                self.world.host_judge.disturbed()
                heal()

        loop.call_process(loop.world, loop.now + self.rng.uniform(low, high), end)

    def count(self, what: str) -> None:
        """Count an injected fault under the name ``what``."""
        self.world.trace.count(what)

    def _machine(self) -> Machine | None:
        running = [machine for machine in self.world.machines if machine.process is not None]
        return self.rng.choice(running) if running else None

    def _unlucky_machine(self) -> Machine | None:
        machines = [machine for machine in self.world.unlucky if not machine.spent]
        return self.rng.choice(machines) if machines else None

    def _host(self) -> ClientHost | None:
        living = [host for host in self.world.hosts if host.process.alive]
        return self.rng.choice(living) if living else None

    def _addresses(self) -> list[str]:
        living = [host.address for host in self.world.hosts if host.process.alive]
        return [*(machine.name for machine in self.world.machines), *living, ADDRESS]

    # --- processes --------------------------------------------------------------------------------------------------

    def _kill_bookie(self) -> None:
        machine = self._machine()
        if machine is not None:
            self.count("process: bookie killed" + ("" if machine.ready else " while starting"))
            machine.kill()
            machine.start_later(self.rng.uniform(0.01, 3.0))

    def _kill_bookie_at_step(self) -> None:
        machine = self._machine()
        if machine is None or machine.process is None:
            return
        process = machine.process

        def die() -> None:
            if machine.process is process:
                self.count("process: bookie killed at a step" + ("" if machine.ready else ", while starting"))
                machine.kill()
                machine.start_later(self.rng.uniform(0.01, 3.0))

        process.on_step_death = die
        process.die_at_step = process.steps + self.rng.choice((1, 10, 100)) + self.rng.randrange(100)

    def _cut_power(self) -> None:
        machine = self.rng.choice(self.world.machines)
        self.count("process: power cut")
        machine.cut_power()
        machine.start_later(self.rng.uniform(0.05, 3.0))

    def _cut_power_at_operation(self) -> None:
        """Plan a power cut at one of the next disk operations of one machine, or of every machine."""
        rng, machines = self.rng, self.world.machines
        for machine in machines if rng.random() < 0.5 else [rng.choice(machines)]:
            faults = machine.disk.faults
            faults.crash_kills_process = False
            faults.crash_of = rng.choice(_CUT_DURING)
            if faults.crash_of in _RARE_OPERATIONS:
                faults.crash_at = rng.choice((1, 1, 2, 3))
                faults.crash_kills_process = rng.random() < 0.5
            elif faults.crash_of:
                faults.crash_at = rng.choice((1, 1, 1, 5)) + rng.randrange(3)
            else:
                faults.crash_at = rng.choice((1, 1, 5, 30)) + rng.randrange(20)

    def _kill_in_journal_write(self) -> None:
        """Kill a bookie during a journal write. Replay then finds data that was never synced, which the next power cut
        may destroy (rule B1)."""
        faults = self.rng.choice(self.world.machines).disk.faults
        faults.crash_of, faults.crash_kills_process = "journal", True
        faults.crash_at = 1 + self.rng.randrange(3)

    def _pause_client_and_restart_bookies(self) -> None:
        """Pause a client, restart every bookie, then resume the client."""
        host = self._host()
        if host is None or host.process.paused:
            return
        process, rng, loop = host.process, self.rng, self.world.loop
        self.count("process: client absent while bookies restart")
        process.pause()
        for machine in self.world.machines:
            loop.call_process(loop.world, loop.now + rng.uniform(0.7, 2.0), self._restart_at_once, machine)
        self.heal_after(2.0, 4.0, process.resume)

    def _restart_at_once(self, machine: Machine) -> None:
        if machine.ready:
            machine.kill()
            machine.start_later(self.rng.uniform(0.01, 0.2))

    def _cut_power_everywhere(self) -> None:
        self.count("process: power cut everywhere")
        for machine in self.world.machines:
            machine.cut_power()
            machine.start_later(self.rng.uniform(0.05, 2.0))

    def _restart_bookie(self) -> None:
        machine = self._machine()
        if machine is not None and machine.ready:
            self.count("process: bookie restarted gracefully")
            machine.stop()

    def _pause_bookie(self) -> None:
        machine = self._machine()
        if machine is not None and machine.process is not None:
            process = machine.process
            self.count("process: bookie paused")
            process.pause()
            lease: float = self.world.plan.bookie.get("lease_seconds", 3.0)
            self.heal_after(0.01, lease * 2, process.resume)

    def _pause_client(self) -> None:
        host = self._host()
        if host is not None:
            process = host.process
            self.count("process: client paused")
            process.pause()
            self.heal_after(0.01, 5.0, process.resume)

    def _kill_client(self) -> None:
        living = [host for host in self.world.hosts if host.process.alive]
        if len(living) > 1:
            host = self.rng.choice(living)
            self.count("process: client killed")
            self.world.note(host.name, "killed")
            host.process.kill()

    # --- network ----------------------------------------------------------------------------------------------------

    def block_pairs(self, what: str, pairs: list[tuple[str, str]]) -> None:
        """For a while, let nothing travel from one address of each pair to the other."""
        network = self.world.network
        self.count(what)
        for source, target in pairs:
            network.set_blocked(source, target, True)

        def heal() -> None:
            for source, target in pairs:
                network.set_blocked(source, target, False)

        self.heal_after(0.1, 5.0, heal)

    def _isolate(self) -> None:
        addresses = self._addresses()
        alone = self.rng.choice(addresses)
        pairs = [pair for other in addresses if other != alone for pair in ((alone, other), (other, alone))]
        self.block_pairs("network: machine isolated", pairs)

    def _halves(self) -> None:
        addresses = self._addresses()
        self.rng.shuffle(addresses)
        at = self.rng.randrange(1, len(addresses))
        left, right = addresses[:at], addresses[at:]
        self.block_pairs("network: halves", [pair for a in left for b in right for pair in ((a, b), (b, a))])

    def _bridge(self) -> None:
        addresses = self._addresses()
        self.rng.shuffle(addresses)
        bridge, rest = addresses[0], addresses[1:]
        at = len(rest) // 2
        self.block_pairs("network: bridge", [pair for a in rest[:at] for b in rest[at:] for pair in ((a, b), (b, a))])
        self.world.note("nemesis", "bridge is %s", bridge)

    def _one_way(self) -> None:
        source, target = self.rng.sample(self._addresses(), 2)
        self.block_pairs("network: one-way partition", [(source, target)])

    def _slow_link(self) -> None:
        source, target = self.rng.sample(self._addresses(), 2)
        network = self.world.network
        self.count("network: slow link")
        network.link(source, target).extra_delay_seconds = self.rng.choice((0.05, 0.5, 3.0))

        def heal() -> None:
            network.link(source, target).extra_delay_seconds = 0.0

        self.heal_after(0.1, 5.0, heal)

    def _reset(self) -> None:
        name = self.rng.choice([machine.name for machine in self.world.machines])
        if name in self.world.network.addresses:
            self.count("network: connection reset")
            self.world.network.reset_some(name, self.rng.choice((0.3, 1.0)))

    # --- disks ------------------------------------------------------------------------------------------------------

    def _slow_disk(self) -> None:
        faults = self.rng.choice(self.world.machines).disk.faults
        faults.slow_factor = self.rng.choice((10.0, 100.0, 1000.0))
        self.count("disk: slow for a while")

        def heal() -> None:
            faults.slow_factor = 1.0

        self.heal_after(0.1, 4.0, heal)

    def _sync_failure(self) -> None:
        self.fail_sync(self.rng.choice(self.world.machines))

    def fail_sync(self, machine: Machine) -> None:
        """Make the machine's next sync fail, or the next sync of its journal; often cut its power soon after."""
        rng, loop = self.rng, self.world.loop
        machine.disk.faults.sync_failures_due = 1
        machine.disk.faults.sync_fails_in_journal = rng.random() < 0.6
        if rng.random() < 0.6:
            loop.call_process(loop.world, loop.now + rng.uniform(0.02, 1.0), self._cut_after_failure, machine)

    def _cut_after_failure(self, machine: Machine) -> None:
        if machine.process is not None and not self._healed:
            self.count("process: power cut soon after a failed sync")
            machine.cut_power()
            machine.start_later(self.rng.uniform(0.05, 1.0))

    def _write_errors(self) -> None:
        faults = self.rng.choice(self.world.machines).disk.faults
        faults.write_error_chance = self.rng.choice((0.01, 0.2, 1.0))

        def heal() -> None:
            faults.write_error_chance = 0.0

        self.heal_after(0.1, 2.0, heal)

    def _read_errors(self) -> None:
        self.fail_reads(self.rng.choice(self.world.machines), self.rng.choice((0.01, 0.2, 1.0)))

    def fail_reads(self, machine: Machine, chance: float) -> None:
        """Make reads fail for a while. This destroys no data."""
        faults = machine.disk.faults
        faults.read_error_chance = chance

        def heal() -> None:
            faults.read_error_chance = 0.0

        self.heal_after(0.1, 3.0, heal)

    def _disk_full(self) -> None:
        disk = self.rng.choice(self.world.machines).disk
        before = disk.settings.capacity_bytes
        self.count("disk: full for a while")
        disk.settings.capacity_bytes = disk.used_bytes() + self.rng.choice((0, 1000, 40_000))

        def heal() -> None:
            disk.settings.capacity_bytes = max(before, 1 << 40)

        self.heal_after(0.2, 3.0, heal)

    def _rot(self) -> None:
        machine = self._unlucky_machine()
        if machine is not None:
            self.rot(machine)

    def rot(self, machine: Machine, *, stored: bool = False) -> None:
        """Flip a bit of a durable file; with ``stored``, of an entry log or index file. The last group of a journal
        is spared: damage there cannot be told from a torn write (rule B3)."""
        if machine.spent:
            return
        disk, rng = machine.disk, self.rng
        candidates = [
            (path, inode)
            for path, inode in disk.names.items()
            if len(inode.durable)
            and path.name != "lock"
            and not inode.dirty
            and (not stored or path.parent.name in ("entries", "index"))
        ]
        if not candidates:
            return
        path, inode = rng.choice(candidates)
        offset = rng.randrange(min(len(inode.durable), len(inode.volatile)))
        first, stop = inode.synced_last
        if _is_journal(path) and first <= offset < stop:
            return
        self.count("disk: rot")
        self.world.note(machine.name, "rot in %s at %d", path.name, offset)
        inode.flip(offset, 1 << rng.randrange(8))

    def _lying_sync(self) -> None:
        machine = self._unlucky_machine()
        if machine is not None:
            faults = machine.disk.faults
            faults.lie_chance = self.rng.choice((0.05, 0.3))

            def heal() -> None:
                faults.lie_chance = 0.0

            self.heal_after(0.1, 2.0, heal)

    def _wipe(self) -> None:
        machine = self._unlucky_machine()
        if machine is not None:
            self.wipe(machine)

    def wipe(self, machine: Machine, *directories: Path) -> None:
        """Cut a machine's power and empty one of ``directories`` (default: one of them, or all) before it restarts."""
        if machine.spent:
            return
        machine.cut_power()
        what = self.rng.choice(directories or (DATA, JOURNAL, DATA / "entries", None))
        gone = machine.disk.wipe(what) if what is not None else machine.disk.wipe(DATA) + machine.disk.wipe(JOURNAL)
        self.count("disk: wiped")
        self.world.note(machine.name, "%s wiped, %d files", what or "everything", gone)
        if all(path.name != COOKIE_NAME for path in machine.disk.names):
            # It returns under a new identity, and both identities may be in one ensemble: it may lose nothing more.
            machine.spent = True
            machine.disk.faults = DiskFaults()
        machine.start_later(self.rng.uniform(0.05, 1.0))

    # --- metadata ---------------------------------------------------------------------------------------------------

    def _metadata_down(self) -> None:
        faults = self.world.metadata.faults
        faults.down = True
        self.count("metadata: down")

        def heal() -> None:
            faults.down = False

        self.heal_after(0.1, 4.0, heal)

    def _metadata_chance(self, name: str) -> Callable[[], None]:
        def strike() -> None:
            faults = self.world.metadata.faults
            setattr(faults, name, self.rng.choice((0.1, 0.5)))
            self.heal_after(0.5, 3.0, lambda: setattr(faults, name, 0.0))

        return strike

    def _metadata_slow(self) -> None:
        self.slow_metadata(self.rng.choice((0.2, 0.6, 1.5)))

    def slow_metadata(self, seconds: float) -> None:
        """For a while, delay each metadata change by up to ``seconds``; reads are not delayed."""
        faults = self.world.metadata.faults
        faults.slow_change_seconds = seconds

        def heal() -> None:
            faults.slow_change_seconds = 0.0

        self.heal_after(0.5, 3.0, heal)

    def _late_watches(self) -> None:
        faults = self.world.metadata.faults
        faults.late_watch_seconds = self.rng.choice((0.1, 1.0, 5.0))

        def heal() -> None:
            faults.late_watch_seconds = 0.0

        self.heal_after(0.5, 3.0, heal)

    def _expire_sessions(self) -> None:
        for _ in range(self.world.metadata.expire_sessions(self.rng.choice((0.3, 1.0)))):
            self.count("metadata: session expired")

    def _conflict(self) -> None:
        ledger_ids = [ledger.ledger_id for ledger in self.world.history.ledgers.values() if not ledger.deleted]
        ledger_ids += [stream.document.ledger_id for stream in self.world.log_histories.streams()]
        if ledger_ids and self.world.metadata.rewrite_ledger(self.rng.choice(ledger_ids)):
            self.count("metadata: conflict made")


def _is_journal(path: PurePath) -> bool:
    return path.name.startswith(("journal-", "spare-", "fresh"))
