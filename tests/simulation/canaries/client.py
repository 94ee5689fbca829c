"""Canaries in clients: recovery, acknowledging, reading."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from octavo.client.read.ledger_view import LedgerView
from octavo.client.recover import recovery
from octavo.client.recover.ledger_recovery import LedgerRecovery
from octavo.client.write.copies.full_copies import FullCopiesPipeline
from octavo.client.write.core import Core
from octavo.client.write.deferred.pipeline import DeferredPipeline
from octavo.client.write.pipeline import Pipeline, Send
from octavo.metadata.ledger.changes import Decision
from octavo.metadata.ledger.debts import NO_DEBT
from octavo.metadata.ledger.decisions import Settled, Write
from octavo.metadata.ledger.model import Fragment, LedgerMetadata
from octavo.metadata.updates.update import update_ledger
from octavo.protocol.entries import Opener, Sealer
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import EntryId
from octavo.protocol.messages import Read, ReadAnswer, ReadFlag
from octavo.protocol.quorums import Quorums
from simulation.engine.patches import Patch, patch


def reads_do_not_fence() -> list[Patch]:
    # Recovery reads only from bookies that have answered the fence, which hides the defect. With this canary it also
    # reads from bookies that the fence does not need, as Apache BookKeeper's recovery did (#2614).
    return [_unfenced_are_read(ReadFlag.NONE)]


def unfenced_are_read() -> list[Patch]:
    """Read also from bookies that the fence does not need. Legal by itself, because these reads fence."""
    return [_unfenced_are_read(ReadFlag.FENCE)]


def _unfenced_are_read(flag: ReadFlag) -> Patch:
    @patch(recovery.FragmentRecovery, "_serve")
    async def serve(original: Any, self: Any, position: int) -> None:
        quorums = self._quorums
        # The fence needs no answer from this bookie or from those before it.
        if not quorums.covers_every_write_set(quorums.full_mask & -2 << position):
            await original(self, position)
            return
        machine = self._machine
        try:
            async with asyncio.timeout(self._options.request_timeout_seconds):
                while not machine.fence_over:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            await original(self, position)
            return
        try:
            while True:
                wanted = machine.wanted_read(position)
                if wanted is None:
                    self._moved.clear()
                    await self._moved.wait()
                    continue
                key = self._secrets.ledger_key if flag is ReadFlag.FENCE else b""
                read = Read(
                    self.term.ledger_id, key, flag, 0, wanted[0], wanted[1], quorums.ensemble_size,
                    machine.residues_at(position), 1000, 1 << 20,
                )  # fmt: skip
                self._take(position, wanted, await self._ask(position, read, ReadAnswer))
        except OctavoError:
            machine.on_gave_up(position)
            self._advance()

    return serve


def recover_below() -> list[Patch]:
    def from_the_start(quorums: Quorums, **_where: int) -> LedgerRecovery:
        return LedgerRecovery(quorums, first_entry_id=0, length_before=0)

    return [Patch(recovery, "LedgerRecovery", from_the_start)]


def coverage_off_by_one() -> list[Patch]:
    @patch(Quorums, "covers")
    def covers(_original: Any, self: Any, cohort_mask: int, answered_mask: int) -> bool:
        needed: int = max(cohort_mask.bit_count() - self.ack_quorum, 1)
        return (answered_mask & cohort_mask).bit_count() >= needed

    return [covers]


def truncated_is_absence() -> list[Patch]:
    @patch(recovery.FragmentRecovery, "_take")
    def take(original: Any, self: Any, position: int, wanted: tuple[int, int], answer: Any) -> None:
        original(self, position, wanted, replace(answer, last_covered=max(answer.last_covered, wanted[1])))

    return [take]


def recoverer_makes_lac() -> list[Patch]:
    @patch(recovery.FragmentRecovery, "_advance")
    def advance(original: Any, self: Any) -> None:
        original(self)
        writing, end = self._writing, self._machine.last_recovered
        if writing is None or end < 0 or self._finished.done():
            return
        sealer = Sealer(self.term.ledger_id, self.term.key.digest, self._secrets)
        sealed = sealer.seal_explicit_lac(EntryId(end), length=self._machine._length, sealed_at_ms=0)
        writing.explicit_lacs.write(sealed)

    return [advance]


@dataclass(frozen=True, slots=True)
class _CommitEarly:
    """A recovering client's ensemble change, written while the ledger is in recovery."""

    fragment: Fragment

    def decide(self, current: LedgerMetadata) -> Decision:
        if current.is_closed or current.last_fragment == self.fragment:
            return Settled()
        fragment = self.fragment
        return Write(current.with_ensemble_change(fragment.first_entry_id, fragment.bookies, fragment.length_before))


def early_commit() -> list[Patch]:
    stores: list[Any] = []

    @patch(recovery.Recoverer, "recover")
    async def recover(original: Any, self: Any, ledger: Any, secrets: Any, **keywords: Any) -> Any:
        stores.append(self._store)
        return await original(self, ledger, secrets, **keywords)

    @patch(recovery.FragmentRecovery, "_note_change")
    async def note_change(_original: Any, self: Any, change: Any) -> bool:
        fragment = Fragment(EntryId(change.first_entry_id), change.ensemble, change.length_before)
        written = await update_ledger(stores[-1], self.term.ledger_id, _CommitEarly(fragment), writer_token="canary")
        self.term = written.value.current_term
        return True

    return [recover, note_change]


def last_change_counts() -> list[Patch]:
    @patch(recovery.FragmentRecovery, "_note_change")
    async def note_change(_original: Any, self: Any, change: Any) -> bool:
        self._fragments[:] = [Fragment(EntryId(change.first_entry_id), change.ensemble, change.length_before)]
        return True

    return [note_change]


def ack_during_change() -> list[Patch]:
    @patch(Pipeline, "_acknowledge")
    def acknowledge(original: Any, self: Any) -> Any:
        change, self._change = self._change, None
        try:
            return original(self)
        finally:
            self._change = change

    return [acknowledge]


def replaced_still_counts() -> list[Patch]:
    @patch(Pipeline, "commit_change")
    def commit_change(original: Any, self: Any) -> Any:
        confirmed = [(run, run.confirmed) for run in self._runs]
        quiet = Patch(Pipeline, "_acknowledge", lambda _self: ())
        quiet.apply()
        try:
            original(self)
        finally:
            quiet.undo()
        for run, mask in confirmed:
            run.confirmed |= mask & run.holders
        return self._acknowledge()

    return [commit_change]


def force_across_restarts() -> list[Patch]:
    @patch(DeferredPipeline, "on_connected")
    def on_connected(_original: Any, _self: Any, _position: int, _boot_id: str | None) -> None:
        return

    return [on_connected]


def accepted_is_acknowledged() -> list[Patch]:
    @patch(DeferredPipeline, "on_confirmed")
    def on_confirmed(original: Any, self: Any, position: int, number: int, tenure: int) -> Any:
        return (*original(self, position, number, tenure), *Pipeline.on_confirmed(self, position, number, tenure))

    return [on_confirmed]


def debt_is_forgotten() -> list[Patch]:
    @patch(Pipeline, "debt")
    def debt(_original: Any, _self: Any) -> Any:
        return NO_DEBT

    return [debt]


def joiners_copies_are_believed() -> list[Patch]:
    @patch(FullCopiesPipeline, "begin_copy")
    def begin_copy(original: Any, self: Any, positions: Any) -> Any:
        original(self, positions)
        for position in positions:
            self._joiners[position].confirmed.update(run.number for run in self._runs)

    return [begin_copy]


def full_is_acknowledged() -> list[Patch]:
    @patch(FullCopiesPipeline, "_release")
    def _release(original: Any, self: Any) -> Any:
        for run in self._runs:
            if run.number < self._head:
                run.confirmed = run.holders
        original(self)

    return [_release]


def replaced_bookies_acceptance_is_kept() -> list[Patch]:
    @patch(DeferredPipeline, "commit_change")
    def commit_change(original: Any, self: Any) -> Any:
        change, held, firsts = self._change, [list(one) for one in self._held], list(self._held_first)
        effects = original(self)
        for position in range(self._quorums.ensemble_size):
            if change.replaced >> position & 1:
                self._held[position], self._held_first[position] = held[position], firsts[position]
                for number in held[position]:
                    if number >= self._oldest:
                        self._runs[number - self._oldest].accepted |= 1 << position
        return effects

    @patch(DeferredPipeline, "on_ready")
    def on_ready(original: Any, self: Any, position: int) -> Any:
        effects = original(self, position)
        return [one for one in effects if not isinstance(one, Send) or not one.run.accepted >> position & 1]

    return [commit_change, on_ready]


def reseal() -> list[Patch]:
    writers: dict[int, Any] = {}

    @patch(Core, "_set_up")
    def begin(original: Any, self: Any) -> Any:
        path = original(self)
        opener = Opener(self.id, self.term.key.digest, self.secrets)
        writers[id(self.pipeline)] = (self, path.sealer, opener)
        return path

    @patch(Pipeline, "on_ready")
    def on_ready(original: Any, self: Any, position: int) -> Any:
        effects = original(self, position)
        known = writers.get(id(self))
        if known is None or known[0].pipeline is not self:
            return effects
        return [_resealed(effect, self, known[1], known[2]) for effect in effects]

    return [begin, on_ready]


def _resealed(effect: Any, pipeline: Any, sealer: Any, opener: Any) -> Any:
    if not isinstance(effect, Send):
        return effect
    entries = [opener.open(sealed) for sealed in effect.run.entries]
    again: list[bytes] = []
    for entry in entries:
        again += sealer.seal(
            entry.entry_id,
            [entry.payload],
            last_add_confirmed=None
            if pipeline.last_add_confirmed is None
            else min(pipeline.last_add_confirmed, entry.entry_id - 1),
            length=entry.length - len(entry.payload),
            sealed_at_ms=entry.sealed_at_ms,
        )
    return Send(effect.position, replace(effect.run, entries=again), effect.tenure)


def read_above_lac() -> list[Patch]:
    @patch(LedgerView, "on_entries")
    def on_entries(original: Any, self: Any, entries: Any) -> bool:
        moved = bool(original(self, entries))
        if entries:
            before = self._confirmed
            self._confirm(entries[-1].entry_id)
            moved |= self._confirmed > before
        return moved

    return [on_entries]
