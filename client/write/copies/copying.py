"""The part of replication that a ledger with full copies adds (rules G2 to G4).

It waits until nothing needs further copies, and copies to joiners before an ensemble changes or a roll begins. A
joiner that refuses what it is sent, does not answer in time, or loses its connection has failed, and what it confirmed
counts no more: it is put into quarantine, and another bookie is looked for. One that is busy is sent again after a
pause.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.outcome import Outcome
from octavo.client.wire.terms_known import WithoutTerms
from octavo.client.write.copies.full_copies import FullCopiesPipeline, RequiredChanges
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges, Phase
from octavo.client.write.part import Shell
from octavo.client.write.pipeline import Acknowledge, Effect, Full, Pipeline, Send
from octavo.protocol.errors import BookieInDoubtError, BookieOverloadedError, OctavoError
from octavo.protocol.ids import BookieId
from octavo.protocol.messages import Add, Added, AddFlag, Op
from octavo.protocol.packs import encode_tail
from octavo.protocol.quorums import Quorums


class Copying:
    """See the module, and :class:`octavo.client.write.part.Part`. ``on_full(entries, payload_bytes)`` is called as the
    LAFR rises."""

    flags = AddFlag.NONE

    pipeline: FullCopiesPipeline
    _shell: Shell

    def __init__(self, *, required: bool, on_full: Callable[[int, int], None]) -> None:
        self._required = required
        self._on_full = on_full
        self._changes: RequiredChanges | None = None
        """Where copies are required."""
        self._full_waiter: asyncio.Future[None] | None = None
        self._joining: dict[int, tuple[BookieConnection, str | None]] = {}
        """By the slots that they are to take: the connections of joiners, and the processes that they led to when
        copying began."""
        self._copied: asyncio.Event | None = None
        """Set whenever copying may be over; None while nothing is copied."""

    def begin(self, shell: Shell, quorums: Quorums, first_entry_id: int, length: int) -> Pipeline:
        """As :meth:`Part.begin`."""
        self._shell = shell
        self._size = quorums.ensemble_size
        self.pipeline = FullCopiesPipeline(
            quorums,
            required=self._required,
            retained_bytes_max=shell.options.retained_bytes_max,
            first_entry_id=first_entry_id,
            length=length,
        )
        return self.pipeline

    def changes(self, quorums: Quorums, ensemble: Sequence[BookieId], **times: float) -> EnsembleChanges:
        """As :meth:`Part.changes`."""
        if not self._required:
            return EnsembleChanges(self.pipeline, quorums, ensemble, **times)
        self._changes = RequiredChanges(self.pipeline, quorums, ensemble, **times)
        return self._changes

    def connecting(self, position: int) -> bool:
        """As :meth:`Part.connecting`."""
        del position
        return True

    def pushed(self) -> None:
        """As :meth:`Part.pushed`: nothing."""

    # --- full copies ----------------------------------------------------------------------------------------------

    async def wait_full(self, seconds: float) -> bool:
        """Wait until no acknowledged entry waits for copies, for so long at most; whether that is so."""
        try:
            async with asyncio.timeout(seconds):
                while not self.pipeline.is_full and not self._shell.stopped:
                    self._full_waiter = self._shell.loop.create_future()
                    await self._full_waiter
        except TimeoutError:
            return False
        return self.pipeline.is_full

    async def copy_to_doubtful(self) -> None:
        """Give bookies that refuse this term because they have lost a disk the copies that they lack of what is
        acknowledged, as recovery adds, which they take (rule T12). Adds do not pass meanwhile."""
        for position, refusal in enumerate(self._shell.slots.refusals):
            if isinstance(refusal, BookieInDoubtError):
                await self._copy_to_doubtful(position, self.pipeline.tenure(position))

    async def _copy_to_doubtful(self, position: int, tenure: int) -> None:
        connection = self._shell.slots.connections[position]
        if isinstance(connection, WithoutTerms):
            return
        for run in self.pipeline.acknowledged_lacking(position):
            entries = list(self.pipeline.share(run, position))
            address = self._shell.address
            add = Add(*address._replace(flags=address.flags | AddFlag.RECOVERY), entries)
            try:
                answer = await connection.request(add, timeout_seconds=self._shell.options.request_timeout_seconds)
            except OctavoError:
                return
            if isinstance(answer, Added):
                self._shell.perform(self.pipeline.on_confirmed(position, run.number, tenure))

    def describe_short(self) -> str:
        """Each bookie that lacks copies, for an error message."""
        return "; ".join(
            f"bookie {connection.bookie_id}: {self._shell.slots.answer(position)}"
            for position, connection in enumerate(self._shell.slots.connections)
            if self.lacks(position)
        )

    def lacks(self, position: int) -> bool:
        """As :meth:`Part.lacks`."""
        return bool(self.pipeline.short_at(position))

    def stop(self) -> None:
        """As :meth:`Part.stop`."""
        self._wake(self._full_waiter)
        self._copying_moved()

    @staticmethod
    def _wake(waiter: asyncio.Future[None] | None) -> None:
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def perform(self, effect: Effect) -> None:
        """As :meth:`Part.perform`."""
        if isinstance(effect, Full):
            self._on_full(effect.entries, effect.payload_bytes)
            self._wake(self._full_waiter)
        elif isinstance(effect, Send):
            self._send_to_joiner(effect.position - self._size, effect)
        else:
            assert isinstance(effect, Acknowledge), "nothing is deferred here"
            self._shell.tell(effect)

    # --- joiners --------------------------------------------------------------------------------------------------

    def _send_to_joiner(self, position: int, effect: Send) -> None:
        number, attempt = effect.run.number, effect.tenure
        if position not in self._joining:
            return
        entries = list(self.pipeline.share(effect.run, position))
        taken = self._joining[position][0].post(
            encode_tail(Op.ADD, *self._shell.address, entries),
            partial(self._shell.guard.run, self._joiner_outcome, position, number, attempt),
            timeout_seconds=self._shell.options.request_timeout_seconds,
        )
        if not taken:
            self.pipeline.on_joiner_unsent(position, number, attempt)

    def _joiner_outcome(self, position: int, number: int, attempt: int, outcome: Outcome) -> None:
        if attempt != self.pipeline.attempt or position not in self._joining:
            return
        if type(outcome) is Added:
            self.pipeline.on_joiner_confirmed(position, number, attempt)
            self._copying_moved()
        elif isinstance(outcome, BookieOverloadedError):
            self.pipeline.on_joiner_unsent(position, number, attempt)
            shell = self._shell
            shell.loop.call_later(
                shell.options.resend_delay_seconds, shell.guard.run, self._make_joiner_ready, position, attempt
            )
        else:
            self._joiner_failed(position)

    def answered(self) -> None:
        """As :meth:`Part.answered`: what was copied may be enough now."""
        self._copying_moved()

    def _copying_moved(self) -> None:
        if self._copied is not None:
            self._copied.set()

    def _make_joiner_ready(self, position: int, attempt: int) -> None:
        if attempt == self.pipeline.attempt and position in self._joining and self._joining[position][0].writable:
            self._shell.perform(self.pipeline.on_joiner_ready(position, attempt))

    def _joiner_changed(self, position: int, attempt: int, connection: BookieConnection) -> None:
        if attempt != self.pipeline.attempt or position not in self._joining:
            return
        if connection.connected:
            self._make_joiner_ready(position, attempt)
        else:
            self._joiner_failed(position)

    def _joiner_failed(self, position: int) -> None:
        connection, _ = self._joining.pop(position)
        self._shell.pool.put_in_quarantine(connection.bookie_id)
        assert self._changes is not None, "only where copies are required do bookies join"
        self._changes.on_joiner_failed(self._shell.loop.time())
        self._copying_moved()

    async def before_commit(self, chosen: Commit | None) -> Commit | None:
        """As :meth:`Part.before_commit`: the joiners get copies first (rule G3)."""
        changes = self._changes
        if changes is None or chosen is not None or changes.phase is not Phase.COPYING:
            return chosen
        self._joining = {
            position: (connection, connection.boot_id)
            for position, connection in ((at, self._shell.pool.get(name)) for at, name in changes.joiners.items())
        }
        self._copied = asyncio.Event()
        attempt = self.pipeline.attempt
        removers = [
            connection.add_state_listener(partial(self._shell.guard.run, self._joiner_changed, position, attempt))
            for position, (connection, _) in self._joining.items()
        ]
        try:
            for position in tuple(self._joining):
                self._make_joiner_ready(position, attempt)
            return await self._copy(changes, self._copied)
        finally:
            for remove in removers:
                remove()
            self._joining, self._copied = {}, None
            self._shell.perform(self.pipeline.resume())

    async def _copy(self, changes: RequiredChanges, moved: asyncio.Event) -> Commit | None:
        """The change, once enough is copied; None if it is not made."""
        while changes.phase is Phase.COPYING and not self._shell.stopped:
            moved.clear()
            # A process that has taken the joiner's place may have lost what was confirmed, although no break of the
            # connection was seen (rule G3).
            others = [at for at, (one, boot_id) in self._joining.items() if not one.connected or one.boot_id != boot_id]
            if others:
                self._joiner_failed(others[0])
                break
            commit = changes.on_copied()
            if commit is not None:
                return commit
            if changes.phase is Phase.COPYING:
                await moved.wait()
        return None
