"""Compares all copies of a stream at the end of a universe, and looks for what truncation should have freed: rules I3,
I5 and U5, from outside.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo.client.client import Client
from octavo.protocol.entries import derive_secrets, header_of
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.messages import Read, ReadAnswer, ReadFlag
from simulation.judges.history import Violation
from simulation.judges.stream_history import StreamLogHistory
from simulation.workload.log_books import OwedByStream
from simulation.workload.log_workload import PASSWORD
from simulation.world import Machine, World
from support.inside import connections_of

ATTEMPTS_MAX = 20
"""Attempts to ask a bookie, half a second apart."""

_RESTART_LOOKS = 600
"""Looks, a tenth of a second apart, for a bookie that is restarted."""

_COPY_BYTES_MAX = 100_000
_COPIES_MAX = 1000


@dataclass(frozen=True, slots=True)
class _Share:
    """The entries of a fragment that one bookie should hold, computed from the definition of a write set."""

    bookie_id: BookieId
    modulus: int
    residues: tuple[int, ...]
    places: range
    """All places of the fragment that are kept."""


@dataclass(slots=True)
class _Copies:
    """What was found of a stream."""

    count: Counter[int] = field(default_factory=Counter)
    sealed: dict[int, bytes] = field(default_factory=dict)
    """Place -> its bytes, as the first copy has them."""

    def add(self, place: int, sealed: bytes, bookie_id: BookieId) -> None:
        if self.sealed.setdefault(place, sealed) != sealed:
            raise Violation("I3", f"place {place}: bookie {bookie_id} has other bytes than another one")
        self.count[place] += 1


class StreamGoneError(Exception):
    """The log was deleted while its copies were compared."""


class StreamCopies:
    """See the module. Of one log, at rest. Raises :class:`Violation`."""

    def __init__(self, world: World, client: Client, history: StreamLogHistory) -> None:
        self._world = world
        self._client = client
        self._history = history
        root = history.roots.current
        self._ledger_id = LedgerId(root.ledger_id)
        self._key = derive_secrets(PASSWORD, self._ledger_id).ledger_key if root.private else b""

    async def compare(self) -> None:
        """Check that every position from the start on has Qa identical copies. Copies on unlucky machines count as
        present."""
        lost = {bookie_id for machine in self._world.unlucky for bookie_id in machine.ids}
        copies = _Copies()
        owed = OwedByStream(self._history.roots.current, self._history.roots.extents)
        for share in self._shares():
            if share.bookie_id in lost:
                copies.count.update(place for place in share.places if place % share.modulus in share.residues)
            else:
                await self._add_copies(share, copies)
        start = self._history.roots.current.start
        for extent in self._history.roots.extents:
            for place in extent.places(start):
                if copies.count[place] < extent.fragment.ack_quorum:
                    raise Violation("I5", f"log {self._history.name}: place {place} of position {place - extent.shift} "
                                    f"has {copies.count[place]} copies")  # fmt: skip
        owed.check(self._history.name, copies.count, self._world.trace)
        self._world.trace.count("log: entries whose copies were compared", len(copies.sealed))

    def _shares(self) -> Iterator[_Share]:
        roots = self._history.roots
        for extent in roots.extents:
            places, fragment = extent.places(roots.current.start), extent.fragment
            size = len(fragment.bookies)
            for position, bookie_id in enumerate(fragment.bookies):
                if places:
                    residues = tuple(sorted((position - step) % size for step in range(fragment.write_quorum)))
                    yield _Share(bookie_id, size, residues, places)

    async def _add_copies(self, share: _Share, copies: _Copies) -> None:
        at, last = share.places[0], share.places[-1]
        while at <= last:
            answer = await self._ask(share.bookie_id, self._read(at, last, share.modulus, share.residues))
            for sealed in answer.entries:
                copies.add(header_of(sealed).entry_id, sealed, share.bookie_id)
            at = answer.last_covered + 1

    def _read(self, first: int, last: int, modulus: int = 1, residues: tuple[int, ...] = (0,)) -> Read:
        limits = (_COPIES_MAX, _COPY_BYTES_MAX)
        return Read(self._ledger_id, self._key, ReadFlag.NONE, 0, first, last, modulus, residues, *limits)

    async def _ask(self, bookie_id: BookieId, request: Read) -> ReadAnswer:
        for _ in range(ATTEMPTS_MAX):
            try:
                answer = await connections_of(self._client).get(bookie_id).request(request, timeout_seconds=5.0)
            except OctavoError as error:
                if self._history.roots.deleted:  # a delete that a client requested earlier has taken effect
                    raise StreamGoneError from error
                await asyncio.sleep(0.5)
                continue
            assert isinstance(answer, ReadAnswer)
            return answer
        raise Violation("I8", f"bookie {bookie_id} does not answer")

    # --- what truncation frees --------------------------------------------------------------------------------------

    async def check_trimmed(self) -> None:
        """Check that after a round of garbage collection no bookie gives anything below the start, also not after a
        restart, which makes none deny what it did not deny before (rule U5)."""
        truncated = list(self._history.roots.truncated_places())
        if not truncated:
            return
        denied: dict[Machine, set[int]] = {}
        for machine in self._world.machines:
            if machine.serving and await self._collect(machine):
                denied[machine] = await self._denied(machine, truncated)
                self._world.trace.count("log: looked for truncated entries")
        await self._check_trimmed_durably(
            {machine: places for machine, places in denied.items() if machine not in self._world.unlucky}, truncated
        )

    async def _check_trimmed_durably(self, denied: dict[Machine, set[int]], truncated: list[range]) -> None:
        rng = self._world.rng_for("restart after trims")
        serving = [machine for machine in denied if machine.serving]
        if not serving:
            return
        machine = rng.choice(serving)
        await self._restart(machine, loses_power=rng.random() < 0.5)
        denied_now = await self._denied(machine, truncated) - denied[machine]
        if denied_now:
            raise Violation("U5", f"log {self._history.name}: after a restart {machine.name} denies "
                            f"{sorted(denied_now)}, which it had trimmed")  # fmt: skip
        self._world.trace.count("log: looked for truncated entries after a restart")

    async def _denied(self, machine: Machine, truncated: list[range]) -> set[int]:
        """The truncated places that the bookie says it has never had; it may give none."""
        denied: set[int] = set()
        for places in truncated:
            at, last = places[0], places[-1]
            while at <= last:
                bookie_id = BookieId(next(reversed(machine.ids)))
                answer = await self._ask(bookie_id, self._read(at, last))
                if answer.entries:
                    raise Violation("U5", f"log {self._history.name}: {machine.name} still has "
                                    f"{[header_of(sealed).entry_id for sealed in answer.entries]}")  # fmt: skip
                denied.update(range(at, answer.last_covered + 1))
                for first, unknown_last in answer.unknown:
                    denied.difference_update(range(first, unknown_last + 1))
                at = answer.last_covered + 1
        return denied

    async def _restart(self, machine: Machine, *, loses_power: bool) -> None:
        starts = machine.starts
        if loses_power:
            machine.cut_power()
            machine.start()
        else:
            machine.stop()  # its supervisor starts it again
        for _ in range(_RESTART_LOOKS):
            if machine.starts > starts and machine.serving:
                return
            await asyncio.sleep(0.1)
        raise Violation("I8", f"{machine.name} does not come up again")

    async def _collect(self, machine: Machine) -> bool:
        """One round, by the bookie itself; whether it succeeded. It fails where the metadata do not answer."""
        process, ready = machine.process, None if machine.bookie is None else machine.bookie.subject.ready
        if process is None or ready is None:
            return False
        upkeep, collected = ready.upkeep, []

        async def collect() -> None:
            try:
                await upkeep.collect_garbage()
            except OctavoError as error:
                self._world.note(machine.name, "garbage round: %s", error.message)
            else:
                collected.append(process)

        collecting = process.spawn(collect(), f"{machine.name} garbage round of the judge")
        while not collecting.done() and process.alive:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.1)
        return bool(collected)
