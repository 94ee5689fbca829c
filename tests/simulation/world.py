"""The world of one universe: machines with disks, the bookies and client processes that run on them, and the network.

Bookies, clients and metadata handles are the real code. The world plays the part of systemd, of the power supply and of
users: it starts and ends processes, and holds the state that outlives them.
"""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.bookie.bookie import Bookie
from octavo.bookie.companion import CompanionView
from octavo.bookie.config import BookieConfig
from octavo.bookie.identity.errors import DataWrongError
from octavo.bookie.offline.layout import Layout
from octavo.client.client import Client
from octavo.client.options import ClientOptions
from octavo.metadata import MetadataStore
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.any_metadata import decode_either
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId
from octavo.repair.agent import Agent
from simulation.engine.disk import Disk, SimulatedFileSystem
from simulation.engine.logs import LogJudge
from simulation.engine.loop import Process, SimulationLoop
from simulation.engine.metadata import MetadataService
from simulation.engine.network import Network
from simulation.engine.trace import Trace
from simulation.faults.absences import Absences
from simulation.faults.clocks import Clocks
from simulation.faults.host_faults import host_of
from simulation.faults.repair import repair
from simulation.judges.balance_judge import BalanceJudge
from simulation.judges.history import History, Violation
from simulation.judges.host_judge import HostJudge
from simulation.judges.log_histories import LogHistories
from simulation.judges.naming_judge import NamingJudge
from simulation.plan import Plan
from simulation.workload.balance_plan import HOSTS_SHARE

if TYPE_CHECKING:
    from simulation.gateways.seat import Seat

PORT = 3181

DATA = Path("/data")
JOURNAL = Path("/journal")

RESTART_SECONDS = (0.05, 1.0)
"""Range of the delay after which a supervisor restarts a process that has exited."""

REPAIR_SECONDS = (0.1, 1.0)
"""Range of the delay after which an operator repairs a bookie that refuses to start on its disks."""

REPAIRS_MAX = 5
"""Repair attempts for one machine between two successful starts; after these the tools cannot repair it."""

BOOKIE_ID_CHARACTERS = 128
"""As many as an id may have."""

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Machine:
    """A computer with a disk that runs one bookie, again and again."""

    def __init__(self, world: "World", name: str, host: str | None = None) -> None:
        self.world = world
        self.name = name
        self.host = host
        """The host that it shares with other machines; they fail together."""
        self.disk = Disk(world.loop, name, world.rng_for(f"disk {name}"), replace(world.plan.disk), world.trace)
        self.disk.on_crash = self._planned_crash
        world.network.add_machine(name)
        self.process: Process | None = None
        self.bookie: Bookie | None = None
        self.ready = False
        self.refused: str | None = None
        """Why its bookie refuses to start; None if it does not."""
        self.repairs = 0
        """Repair attempts since a bookie last served here."""
        self.spent = False
        """Whether its disks have lost everything that the fault budget allows."""
        self.retired = False
        """Whether it stays off once it has stopped: it is neither started nor repaired."""
        self.starts = 0
        self.filesystem: SimulatedFileSystem | None = None
        self._stop: asyncio.Event | None = None
        self.pinned_id = f"{name}-".ljust(BOOKIE_ID_CHARACTERS, "x") if world.plan.hardships.crowds else None
        """The id that its bookie is given; None: it makes one."""
        self.ids: dict[str, None] = {}
        """Bookie ids that have been registered from this machine, in order."""
        self._start_due = False
        self.clock = world.draw_clock()

    def start(self) -> None:
        """Start the bookie, booting the machine if necessary. Does nothing if it runs, refuses or is retired."""
        self._start_due = False
        if self.process is not None or self.refused is not None or self.retired:
            return
        world = self.world
        self.starts += 1
        process = Process(world.loop, self.name, clock_offset=self.clock[0], clock_rate=self.clock[1])
        world.network.attach(process, self.name)
        if not world.network.addresses[self.name].up:
            world.network.power_on(self.name)
        self.process = process
        world.note(self.name, "process %d starts", self.starts)
        process.spawn(self._run(process), f"{self.name} main")

    def start_later(self, seconds: float) -> None:
        """Start after ``seconds``, unless it has been started by then."""
        self._start_due = True
        loop = self.world.loop
        loop.call_process(loop.world, loop.now + seconds, self._start_if_due)

    def kill(self) -> None:
        """SIGKILL the bookie. The page cache survives."""
        if self.process is not None:
            self.world.note(self.name, "killed")
            self._gone()
            self.disk.finish_writes()

    def cut_power(self) -> None:
        """Cut the power: the page cache is lost, and peers are not told."""
        self.world.note(self.name, "loses power")
        self.world.network.power_off(self.name)
        if self.process is not None:
            self._gone()
        self.disk.power_cut()

    def stop(self) -> None:
        """SIGTERM the bookie."""
        process = self.process
        if process is not None and self._stop is not None:
            loop = self.world.loop
            self.world.note(self.name, "told to stop")
            loop.call_process(process, loop.now, self._stop.set)

    @property
    def serving(self) -> bool:
        """Whether its bookie serves requests."""
        return self.process is not None and self.ready and not self.process.paused

    def _gone(self) -> None:
        assert self.process is not None
        process, self.process = self.process, None
        self.bookie, self.ready, self._stop, self.filesystem = None, False, None, None
        process.kill()

    def repair(self) -> None:
        """Have an operator repair the machine, if its bookie refuses its disks and attempts are left."""
        if self.process is not None or self.refused is None or self.retired or self.repairs >= REPAIRS_MAX:
            return
        world = self.world
        self.repairs += 1
        process = Process(world.loop, self.name, clock_offset=self.clock[0], clock_rate=self.clock[1])
        world.network.attach(process, self.name)
        if not world.network.addresses[self.name].up:
            world.network.power_on(self.name)
        self.process = process
        if world.plan.repairs_die and self.repairs < REPAIRS_MAX - 1:
            process.on_step_death = partial(self._repair_dies, process)
            process.die_at_step = 1 + world.rng.randrange(world.rng.choice((10, 50, 250)))
        process.spawn(self._repair(process, self.refused), f"{self.name} repair")

    def _repair_dies(self, process: Process) -> None:
        """An offline tool is killed, or its machine loses power; the operator tries again later."""
        world = self.world
        if self.process is not process:
            return
        if world.rng.random() < 0.5:
            world.trace.count("process: repair killed")
            self.kill()
        else:
            world.trace.count("process: power cut during a repair")
            self.cut_power()
        loop = world.loop
        loop.call_process(loop.world, loop.now + world.rng.uniform(*REPAIR_SECONDS), self._go_on)

    def _go_on(self) -> None:
        """The tool may have done its work before it was killed."""
        if self.refused is None:
            self.start()
        else:
            self.repair()

    async def _repair(self, process: Process, refusal: str) -> None:
        world = self.world
        rng = world.rng_for(f"{self.name} repair {self.starts} {self.repairs}")
        filesystem = self.filesystem = SimulatedFileSystem(process, self.disk)
        store = world.metadata.open(process, lease_seconds=3.0, rng=rng)
        known = next(reversed(self.ids), None)
        failure = await repair(
            filesystem, Layout.of(DATA, JOURNAL), store, refusal=refusal, bookie_id=known, rng=rng
        )  # fmt: skip
        await store.close()
        if failure is None:
            world.trace.count("process: bookie repaired")
            self.refused = None
        self._exit(process, "repaired" if failure is None else f"not repaired: {failure}")

    def _planned_crash(self) -> None:
        world, faults = self.world, self.disk.faults
        if not faults.crash_kills_process:
            world.trace.count("process: power cut at a file operation")
            self.cut_power()
            self.start_later(world.rng.uniform(0.05, 2.0))
            return
        faults.crash_kills_process = False
        where = "journal write" if faults.crash_of == "journal" else "file operation"
        world.trace.count(f"process: bookie killed in a {where}")
        self.kill()
        self.start_later(world.rng.uniform(0.01, 0.1))
        loop = world.loop
        loop.call_process(loop.world, loop.now + world.rng.uniform(0.1, 1.0), self._cut_after_kill)

    def _cut_after_kill(self) -> None:
        if self.process is not None:
            self.world.trace.count("process: power cut soon after a kill")
            self.cut_power()
            self.start_later(self.world.rng.uniform(0.05, 0.5))

    def _start_if_due(self) -> None:
        if self._start_due:
            self.start()

    async def _run(self, process: Process) -> None:
        world = self.world
        rng = world.rng_for(f"{self.name} {self.starts}")
        config = BookieConfig(
            data_dir=DATA, journal_dir=JOURNAL, host=self.name, port=PORT, bookie_id=self.pinned_id,
            **{"auth": "none", **({} if self.host is None else {"host_id": self.host}), **world.plan.bookie},
        )  # fmt: skip
        self._stop = stop = asyncio.Event()
        filesystem = self.filesystem = SimulatedFileSystem(process, self.disk)
        store = world.metadata.open(process, lease_seconds=config.lease_seconds, rng=rng)
        try:
            bookie = await Bookie.start(
                config, filesystem=filesystem, store=store, rng=rng, software="simulated",
                wall_clock=None if not world.plan.agents else lambda: world.wall_clock().timestamp(),
                companion=None if not world.plan.agents else self._repair_agent,
            )  # fmt: skip
        except DataWrongError as error:
            self._exit(process, f"refuses to start: {error.message}", refused=True)
            return
        except OctavoError as error:
            self._exit(process, f"cannot start: {error.message}")
            return
        self.bookie, self.ready, self.repairs = bookie, True, 0
        world.host_judge.disturbed()
        world.note(self.name, "ready")
        stopping = asyncio.ensure_future(stop.wait())
        broken = asyncio.ensure_future(bookie.broken())
        await asyncio.wait([stopping, broken], return_when=asyncio.FIRST_COMPLETED)
        if broken.done():
            self._exit(process, f"broke a promise: {broken.result()}")
            return
        broken.cancel()
        self.ready = False
        try:
            await bookie.stop()
            await store.close()
        except (OSError, OctavoError) as error:
            self._exit(process, f"stopped with {error}")
            return
        await filesystem.close()
        if bookie.is_broken:
            # It broke while it was stopping. The process ends without releasing anything.
            self._exit(process, f"stopped, having broken a promise: {bookie.failure}")
            return
        self._check_leaks(process)
        self._exit(process, "stopped")

    async def _repair_agent(self, view: CompanionView) -> None:
        key_file = self.name if self.world.plan.guarded else None
        await Agent(view, self.world.plan.repair, options=ClientOptions(key_file=key_file)).run()

    def _check_leaks(self, process: Process) -> None:
        current = asyncio.current_task()
        tasks = [task.get_name() for task in process.tasks() if task is not current and task.get_name()]
        files = [str(file.path) for file in self.filesystem.open_files] if self.filesystem is not None else []
        # A task that is cancelled or about to end needs one more turn of the loop. Any task left then is a leak.
        if tasks:
            self.world.loop.call_soon(self._check_tasks, process)
        if files:
            self.world.violate(Violation("no leaks", f"{self.name} stopped with open files {files}"))

    def _check_tasks(self, process: Process) -> None:
        left = [task.get_name() for task in process.tasks() if not task.done()]
        left = [name for name in left if name != f"{self.name} main"]
        if left:
            self.world.violate(Violation("no leaks", f"{self.name} stopped with tasks {left}"))

    def _exit(self, process: Process, why: str, *, refused: bool = False) -> None:
        """End the process. Its supervisor restarts it unless it has refused its disks."""
        world = self.world
        world.note(self.name, "%s", why)
        if refused:
            self.refused = why
        loop = world.loop
        loop.call_process(loop.world, loop.now, self._exited, process)

    def _exited(self, process: Process) -> None:
        if self.process is process:
            self._gone()
            self.disk.finish_writes()
            if self.refused is None:
                self.start_later(self.world.rng.uniform(*RESTART_SECONDS))
            elif self.world.plan.operator and self in self.world.unlucky:
                loop = self.world.loop
                loop.call_process(loop.world, loop.now + self.world.rng.uniform(*REPAIR_SECONDS), self.repair)


Application = Callable[["ClientHost"], Coroutine[Any, Any, None]]
"""The code that a client process runs."""


class ClientHost:
    """A client process: it runs one application with one client."""

    def __init__(self, world: "World", name: str, address: str | None = None) -> None:
        """``address``: in the network; None: its name."""
        self.world = world
        self.name = name
        self.address = address or name
        offset, rate = world.draw_clock()
        self.process = Process(world.loop, name, clock_offset=offset, clock_rate=rate)
        self.process.on_death.append(self._died)
        world.network.attach(self.process, self.address)
        self._finished: list[asyncio.Future[None]] = []
        self._store: MetadataStore | None = None

    @property
    def store(self) -> MetadataStore:
        """The metadata store as the client of this process has it."""
        assert self._store is not None, "connect first"
        return self._store

    async def connect(self, principal: str | None = None) -> Client:
        """Connect a client, inside this process. ``principal``: another one than that of the process, in guarded
        universes."""
        world = self.world
        rng = world.rng_for(self.name)
        store = world.metadata.open(self.process, lease_seconds=world.plan.options.get("lease_seconds", 5.0), rng=rng)
        self._store = store
        while True:
            try:
                cluster_id = await store.cluster_id()
                break
            except OctavoError:
                await asyncio.sleep(0.1)
        return Client(
            store, cluster_id=cluster_id, options=self._options(principal), rng=rng, wall_clock=world.wall_clock
        )

    def _options(self, principal: str | None) -> ClientOptions:
        options = self.world.plan.client_options
        if self.world.plan.hardships.impatience and (self.name == "judge" or self.name.startswith("standby")):
            options = replace(options, log_add_timeout_seconds=None)  # these wait
        if not self.world.plan.guarded:
            return options
        first_life = self.name.partition(".")[0]
        own = first_life if first_life.startswith("client-") else "judge"
        return replace(options, key_file=principal or own)

    def run(self, work: Application, name: str) -> asyncio.Future[None]:
        """Run ``work`` in this process. The result is a future of the world, done when the work or the process ends."""
        finished: asyncio.Future[None] = self.world.loop.create_future()
        self._finished.append(finished)
        self.process.spawn(self._guard(work, finished), f"{self.name} {name}")
        return finished

    async def _guard(self, work: Application, finished: Any) -> None:
        loop = self.world.loop
        try:
            await work(self)
        except Violation as violation:
            self.world.violate(violation)
        except Exception as error:
            self.world.violate(error)
        loop.call_process(loop.world, loop.now, _finish, finished)

    def _died(self) -> None:
        loop = self.world.loop
        for finished in self._finished:
            loop.call_process(loop.world, loop.now, _finish, finished)


class World:
    """Everything in one universe."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = self.rng_for("world")
        self.loop = SimulationLoop()
        self.trace = Trace()
        self.network = Network(self.loop, self.rng_for("network"), plan.network, self.trace)
        self.metadata = MetadataService(self.loop, self.network, self.rng_for("metadata"), self.trace, epoch=EPOCH)
        self.history = History()
        self.log_histories = LogHistories(self.metadata.server, self.history.early, now=lambda: self.loop.now)
        self.log_histories.store.ages_by_the_world = plan.hardships.clocks
        self.metadata.on_ledger = self._ledger_changed
        self.metadata.on_document = self._document_changed
        self.metadata.on_registered = self._registered
        self.clocks = Clocks(self)
        self.absences = Absences(self)
        if plan.hardships.absences:
            self.metadata.on_locked = self.absences.locked
        if plan.hardships.turns:
            self.loop.turns = self.rng_for("turns")
            self.loop.on_due = self._may_stall
        self.logs = LogJudge(self)
        self.naming = NamingJudge(self)
        self.balance_judge = BalanceJudge(self)
        self._latest: dict[LedgerId, LedgerMetadata | None] = {}
        """The latest metadata of every ledger; None: deleted."""
        self.host_judge = HostJudge(self)
        shared = plan.hardships.hosts or (plan.balances and self.rng_for("balance hosts").random() < HOSTS_SHARE)
        self.machines = [
            Machine(self, f"bookie-{number}", host_of(number) if shared else None) for number in range(plan.bookies)
        ]
        self.unlucky = self.machines[: plan.unlucky]
        """Machines of the fault budget: their disks may lose synced data."""
        self.hosts: list[ClientHost] = []
        self.gateways: list[Seat] = []
        """In universes that have some."""

    def rng_for(self, purpose: str) -> random.Random:
        """A random generator for one purpose, independent of all others."""
        return random.Random(f"{self.seed} {purpose}")

    def draw_clock(self) -> tuple[float, float]:
        """Draw the offset (seconds) and the rate of a machine's clock."""
        drift = self.plan.clock_drift
        return self.rng.uniform(0, 1000), 1 + self.rng.uniform(-drift, drift)

    def host(self, name: str, address: str | None = None) -> ClientHost:
        """Start a client process. ``address``: in the network; None: its name."""
        host = ClientHost(self, name, address)
        self.hosts.append(host)
        return host

    def latest_ledgers(self) -> list[LedgerMetadata]:
        """The latest metadata of all ledgers that have not been deleted."""
        return [metadata for metadata in self._latest.values() if metadata is not None]

    def wall_clock(self) -> datetime:
        """The time of day by the clock of the process that asks."""
        return EPOCH + timedelta(seconds=self.loop.time()) + self.clocks.ahead(self.loop.current.name)

    def note(self, where: str, text: str, *arguments: object) -> None:
        """Add a line to the trace."""
        self.trace.note(self.loop.now, where, text, *arguments)

    def violate(self, violation: BaseException) -> None:
        """End the universe with a failure."""
        if self.loop.halted is None and not self.loop.is_closed():
            self.note("checker", "%s", f"{type(violation).__name__}: {violation}")
            self.loop.halted = violation

    def _may_stall(self, process: Process) -> None:
        """Let a turn of a process take long, now and then."""
        rng, hardships = self.loop.turns, self.plan.hardships
        if rng is not None and process is not self.loop.world and rng.random() < hardships.stall_chance:
            self.trace.count("process: turn took long")
            process.stall(rng.uniform(0, hardships.stall_seconds))

    def _registered(self, where: str, bookie_id: str) -> None:
        for machine in self.machines:
            if machine.name == where:  # also if the bookie dies before it is ready
                machine.ids[bookie_id] = None

    def _ledger_changed(self, ledger_id: LedgerId, value: bytes | None) -> None:
        try:
            metadata = None if value is None else decode_either(ledger_id, value)
            if isinstance(metadata, StreamMetadata):
                self._stream_changed(metadata)
                self.host_judge.check(metadata)
                return
            self.history.metadata_changed(ledger_id, metadata)
            if metadata is not None:
                self.host_judge.check(metadata)
            before, self._latest[ledger_id] = self._latest.get(ledger_id), metadata
            if before is None and metadata is not None:
                self.log_histories.ledger_made(metadata, self.metadata.asking)
            if before is not None and metadata is not None:
                self.naming.check(before, metadata)
                self.balance_judge.check(before, metadata)
            if metadata is None:
                self.log_histories.ledger_deleted(ledger_id)
        except Violation as violation:
            self.violate(violation)
        ledger = self.history.ledgers.get(ledger_id)
        if ledger is not None and ledger.versions:
            current = ledger.current
            self.note(
                "metadata",
                "ledger %d %s %s",
                ledger_id,
                "deleted" if value is None else current.state.value,
                " ".join(f"{fragment.first_entry_id}:{','.join(fragment.bookies)}" for fragment in current.fragments)
                + ("" if ledger.end is None else f" end {ledger.end}"),
            )

    def _stream_changed(self, stream: StreamMetadata) -> None:
        log = self.log_histories.stream_of(stream.ledger_id)
        named = log.stream_changed(stream, self.trace.count)
        self.note("metadata", "%s", log.describe())
        for member in named:
            self.naming.check_member(stream.ledger_id, member.bookie_id, member.places)

    def _document_changed(self, key: str, value: bytes | None) -> None:
        try:
            self.clocks.document_changed(key, value)
            self.balance_judge.document_changed(key, value)
            described = self.log_histories.document_changed(key, value)
        except Violation as violation:
            self.violate(violation)
        else:
            if described is not None:
                self.note("metadata", "%s", described)


def _finish(finished: asyncio.Future[None]) -> None:
    if not finished.done():
        finished.set_result(None)
