"""Clients that follow all ledgers and logs of a universe, and what they must have been given in the end.

Every ledger has a seat or two, and every log one: a follower that goes on from where it was, in whatever life of its
process, until the universe is over. It is given each entry once, in order, and none that is not acknowledged (rules I3,
I4 and R6). When everything is whole again

* all that was acknowledged before has arrived within :func:`late_seconds`, also where no entry follows: nothing depends
  on a push that was lost;
* what is added then arrives within :data:`STEADY_SECONDS`, and for most followers as soon as the writer confirms it:
  bookies push the entries, and followers need not ask;
* followers of a ledger that is fenced hear of its end within :data:`END_SECONDS`, although watches tell them late;
* logs that are taken over are followed into their new terms.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial

from octavo.client.client import Client
from octavo.client.log.seam.entries import Gap
from octavo.metadata.ledger.model import LedgerState
from octavo.protocol.errors import OctavoError
from simulation.engine.old_peers import PUSHED_ENTRIES
from simulation.judges.history import LedgerHistory, Violation
from simulation.judges.log_history import LogHistory
from simulation.workload.audience_plan import SUBSCRIPTIONS_MAX, WINDOW_BYTES_AMPLE, WINDOWS
from simulation.workload.log_workload import PASSWORD
from simulation.workload.throng import Cast, Member
from simulation.workload.workload import Reading, note_answer
from simulation.world import ClientHost, World

STEADY_SECONDS = 5.0
"""Within this an entry arrives while everything is whole: several times what a request that is tried again takes."""

END_SECONDS = 10.0
"""Within this a follower hears of the end of a ledger that is fenced and closed: some pauses between two reads of the
metadata, which grow to 2 s."""

_WATCHES_LATE_SECONDS = 60 * END_SECONDS

TAKEOVER_ATTEMPTS = 20

_STEP_SECONDS = 0.02


def late_seconds(world: World) -> float:
    """Within this everything arrives once everything is whole: a connection whose other end has lost its power looks
    like one on which nothing happens, until the bookie is asked whether it answers."""
    options = world.plan.options
    return float(2 * options["long_poll_seconds"] + 4 * options["request_timeout_seconds"] + 20.0)


class Seat:
    """One follower, over all lives of its process."""

    def __init__(self, name: str, pause_seconds: float) -> None:
        self.name = name
        self.pause_seconds = pause_seconds
        """How long it takes for an entry."""
        self.next = 0
        """What it is given next."""
        self.has_end = False
        """Whether it has been told that nothing follows."""

    @property
    def is_slow(self) -> bool:
        """Whether it takes its time."""
        return self.pause_seconds > 0


class Audience:
    """The seats, and the state of the play. ``ended``: no more faults strike; ``whole``: all bookies serve, too."""

    def __init__(
        self, world: World, rng: random.Random, *, ended: Callable[[], bool], whole: Callable[[], bool]
    ) -> None:
        self.world = world
        self.rng = rng
        self.ended = ended
        self.whole = whole
        self.over = False
        """Whether all checks have been made, so that followers may go."""
        self.to_fence: list[LedgerHistory] = []
        """Ledgers that another client is to recover now."""
        self.of_ledgers: dict[LedgerHistory, list[Seat]] = {}
        self.of_logs: dict[str, Seat] = {}

    def seats_of(self, ledger: LedgerHistory) -> list[Seat]:
        """The seats of this ledger; made if there are none."""
        seats = self.of_ledgers.get(ledger)
        if seats is None:
            count = self.rng.choice((1, 1, 1, 2))
            seats = [Seat(f"ledger {ledger.ledger_id}", self._pause()) for _ in range(count)]
            self.of_ledgers[ledger] = seats
        return seats

    def seat_of_log(self, name: str) -> Seat:
        """The seat of this log; made if there is none."""
        return self.of_logs.setdefault(name, Seat(f"log {name}", 0.0))

    def _pause(self) -> float:
        return self.rng.uniform(0.01, 0.1) if self.rng.random() < 0.1 else 0.0

    def behind(self, ledgers: Sequence[LedgerHistory]) -> list[Seat]:
        """The seats of these ledgers that have not got all that is acknowledged."""
        return [seat for one in ledgers for seat in self.seats_of(one) if seat.next <= one.acknowledged]

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for what another process does."""
        while not condition():  # noqa: ASYNC110 - an event would wake the waiter inside the process that sets it
            await asyncio.sleep(_STEP_SECONDS)

    async def wait_for(self, rule: str, what: str, seconds: float, late: Callable[[], list[Seat]]) -> None:
        """Wait until no seat is late. Raises :class:`Violation` if some are when the time is over."""
        world = self.world
        deadline = world.loop.now + seconds
        while late():
            if world.loop.now > deadline:
                seats = late()
                names = ", ".join(f"{seat.name} at {seat.next}" for seat in seats[:5])
                raise Violation(rule, f"{len(seats)} followers {what} within {seconds} s: {names}")
            await asyncio.sleep(_STEP_SECONDS)


class Watching:
    """The process that follows everything."""

    def __init__(self, audience: Audience, logs: Sequence[str]) -> None:
        self.audience = audience
        self.world = audience.world
        self.rng = audience.world.rng_for("watching")
        self._logs = logs

    async def run(self, host: ClientHost, client: Client) -> None:
        """Follow whatever there is, until the audience may go."""
        audience, following = self.audience, set[Seat]()
        tasks = [
            asyncio.ensure_future(self._keep_on(host, audience.seat_of_log(name), partial(self._log, client, name)))
            for name in self._logs
        ]
        while not audience.over:
            for ledger in list(self.world.history.ledgers.values()):
                for seat in audience.seats_of(ledger):
                    if seat not in following:
                        following.add(seat)
                        one_life = partial(self._ledger, client, ledger)
                        tasks.append(asyncio.ensure_future(self._keep_on(host, seat, one_life)))
            await asyncio.sleep(_STEP_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_on(self, host: ClientHost, seat: Seat, follow: Callable[[Seat], object]) -> None:
        """Follow to the end, and go on after whatever has failed."""
        while not seat.has_end:
            try:
                await follow(seat)  # type: ignore[misc]
            except OctavoError as error:
                note_answer(self.world, host.name, f"follower of {seat.name}", error)
                await asyncio.sleep(self.rng.uniform(0.05, 0.2))
            except Violation as violation:
                self.world.violate(violation)
                return

    async def _ledger(self, client: Client, ledger: LedgerHistory, seat: Seat) -> None:
        world, opening = self.world, client.open_ledger(ledger.ledger_id, password=ledger.password, recover=False)
        async with await opening as reader, aclosing(reader.follow(seat.next)) as entries:
            async for entry in entries:
                if entry.entry_id != seat.next:
                    raise Violation("I4", f"{seat.name}: a follower got {entry.entry_id} after {seat.next - 1}")
                world.history.read(ledger, entry.entry_id, entry.payload)
                seat.next += 1
                world.trace.count("followers: entries")
                if seat.is_slow and not self.audience.ended():
                    await asyncio.sleep(seat.pause_seconds)
        if ledger.end is None or seat.next <= ledger.end:
            raise Violation("I1", f"{seat.name}: a follower ended at {seat.next - 1} of {ledger.end}")
        seat.has_end = True

    async def _log(self, client: Client, name: str, seat: Seat) -> None:
        log = await client.open_log(name, password=PASSWORD)
        history = self.world.log_histories.of(log.log_id)
        async with log, aclosing(log.follow(seat.next, on_truncated="skip")) as items:
            async for item in items:
                if isinstance(item, Gap):
                    if item.first != seat.next or item.last < item.first:
                        raise Violation("P7", f"{seat.name}: {item} after position {seat.next - 1}")
                    history.truncated_until(item.last + 1)
                    seat.next = item.last + 1
                    continue
                if item.position != seat.next:
                    raise Violation("P1", f"{seat.name}: a follower got {item.position} after {seat.next - 1}")
                history.read(item)
                seat.next += 1
                self.world.trace.count("followers: entries of logs")


class Interrupting:
    """Recovers ledgers that are to be fenced, as another client than their writer does."""

    def __init__(self, audience: Audience) -> None:
        self.audience = audience
        self._reading = Reading(
            audience.world, audience.world.rng_for("interrupting"), recovers=True, ended=audience.ended
        )

    async def run(self, host: ClientHost, client: Client) -> None:
        """Do so until the audience may go."""
        audience = self.audience
        while not audience.over:
            if audience.to_fence:
                await asyncio.gather(*(self._reading.visit(host, client, one) for one in audience.to_fence))
                audience.to_fence = []
            await asyncio.sleep(_STEP_SECONDS)


class Staging:
    """Opens ledgers, adds to all of them in the same turns until the safety phase has ended, and checks the audience
    when everything is whole."""

    def __init__(self, audience: Audience, ledgers: int, logs: Sequence[str]) -> None:
        self.audience = audience
        self.world = audience.world
        self.rng = audience.world.rng_for("staging")
        self._ledgers = ledgers
        """How many the next life of the client opens."""
        self._logs = logs
        self._pause = self.rng.choice((0.05, 0.2))

    async def run(self, host: ClientHost, client: Client) -> None:
        """Run one life of the client."""
        world, audience, rng = self.world, self.audience, self.rng
        count, self._ledgers = self._ledgers, max(self._ledgers // 3, 6)
        cast = Cast(world, rng, 0.0)
        opened = await asyncio.gather(*(cast.open(host, client) for _ in range(count)))
        members = [member for member in opened if member is not None]
        cast.add_to_all(host, members)
        while not audience.ended():
            await asyncio.sleep(self._pause * rng.random())
            cast.add_to_all(host, rng.sample(members, rng.choice((len(members), len(members) // 4))))
        await audience.wait_until(audience.whole)
        try:
            await self._check(host, client, cast, members)
        except Violation as violation:
            world.violate(violation)
        audience.over = True
        for member in members:
            member.ledger.adding = False  # closing the client closes those that are open

    async def _check(self, host: ClientHost, client: Client, cast: Cast, members: list[Member]) -> None:
        world, audience = self.world, self.audience
        cast.add_to_all(host, self._open(members))
        await cast.wait_answered()
        written = [member.ledger for member in self._open(members)]
        late = late_seconds(world)
        await audience.wait_for("R6", "lack what was acknowledged", late, lambda: audience.behind(written))
        world.trace.count("followers: ledgers caught up", len(written))
        await self._check_promptness(host, cast, members)
        await self._check_logs(host, client, late)
        await self._check_ends(members)

    def _open(self, members: list[Member]) -> list[Member]:
        """Those that are still written. Where a client has begun to recover a ledger, and given up, bookies do not hear
        what was acknowledged last."""
        return [one for one in members if one.ledger.adding and one.ledger.current.state is LedgerState.OPEN]

    async def _check_promptness(self, host: ClientHost, cast: Cast, members: list[Member]) -> None:
        world, audience = self.world, self.audience
        options = world.plan.options
        knobs = world.plan.knobs
        is_ample = knobs[WINDOWS[0]] >= WINDOW_BYTES_AMPLE
        prompt = options["explicit_lac_delay_seconds"] + 20 * world.plan.network.delay_seconds_mean + 0.04
        hardships, pushed_before = world.plan.hardships, world.trace.counters[PUSHED_ENTRIES]
        can_push = not (hardships.old_bookie_chance or hardships.old_client_chance or SUBSCRIPTIONS_MAX in knobs)
        added = -sum(len(member.ledger.payloads) for member in members)
        for _ in range(4):
            cast.add_to_all(host, self._open(members))
            await cast.wait_answered()
            written = [member.ledger for member in self._open(members)]
            before = {one: one.acknowledged for one in written}
            await asyncio.sleep(prompt)
            late = [seat for one in written for seat in audience.seats_of(one) if seat.next <= before[one]]
            seats = sum(len(audience.seats_of(one)) for one in written)
            world.trace.count("followers: entries that came promptly", seats - len(late))
            world.trace.count("followers: entries that came late", len(late))
            if is_ample and len(written) >= 8 and 4 * len(late) > 3 * seats:
                raise Violation("R6", f"{len(late)} of {seats} followers lack an entry after {prompt:.3f} s")
            await audience.wait_for("R6", "lack an entry", STEADY_SECONDS, partial(audience.behind, written))
        added += sum(len(member.ledger.payloads) for member in members)
        pushed = world.trace.counters[PUSHED_ENTRIES] - pushed_before
        if can_push and 3 * pushed < added:
            raise Violation("R6", f"of {added} entries that were added, bookies pushed {pushed}")

    async def _check_logs(self, host: ClientHost, client: Client, seconds: float) -> None:
        """Take each log over, and add to it."""
        world, audience, ends = self.world, self.audience, dict[str, int]()
        for name in self._logs:
            for _ in range(TAKEOVER_ATTEMPTS):
                try:
                    position = await self._take_over(host, client, name)
                except OctavoError as error:
                    note_answer(world, host.name, f"takeover of {name}", error)
                    await asyncio.sleep(0.2)
                else:
                    if position is not None:
                        ends[name] = position
                    break
        world.trace.count("followers: logs taken over", len(ends))
        await audience.wait_for(
            "R6", "lack the last entry of their log", seconds,
            lambda: [seat for name, end in ends.items() if (seat := audience.of_logs[name]).next <= end],
        )  # fmt: skip

    async def _take_over(self, host: ClientHost, client: Client, name: str) -> int | None:
        """The position of the entry that was added; None if there is no such log."""
        async with await client.open_log(name, password=PASSWORD) as log:
            history: LogHistory = self.world.log_histories.of(log.log_id)
            writer = await log.take_over()
            leader = history.leads(host.name, writer.term, lambda: writer.end)
            index = leader.add(b"last")
            try:
                position = await writer.add(leader.adds[index].payload)
            except OctavoError as error:
                leader.failed(index, error)
                raise
            leader.acknowledged(index, position)
            await writer.close()
        return int(position)

    async def _check_ends(self, members: list[Member]) -> None:
        """Fence some ledgers while hardly any client hears of changes of the metadata in time."""
        world, audience = self.world, self.audience
        chosen = [member.ledger for member in self._open(members)]
        chosen = self.rng.sample(chosen, min(12, len(chosen)))
        faults = world.metadata.faults
        faults.late_watch_seconds = _WATCHES_LATE_SECONDS
        audience.to_fence = chosen
        await audience.wait_until(lambda: not audience.to_fence)
        ended = [one for one in chosen if one.end is not None]
        world.trace.count("followers: ledgers fenced", len(ended))
        await audience.wait_for(
            "V4", "do not hear of the end", END_SECONDS,
            lambda: [seat for one in ended for seat in audience.seats_of(one) if not seat.has_end],
        )  # fmt: skip
        faults.late_watch_seconds = 0.0
