"""Canaries in logs: taking over, rolling, healing, truncating, cursors, deletion."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo.client.log.chain import housekeeping, retention
from octavo.client.log.chain.changes import AppendSegment, MarkDeleted, Truncate, _lies_below
from octavo.client.log.chain.housekeeping import Housekeeper
from octavo.client.log.chain.leader_steps import LeaderSteps
from octavo.client.log.chain.view import ChainView, Place
from octavo.client.log.cursors.keeper import CursorKeeper
from octavo.client.log.cursors.reading import read_cursors_document
from octavo.client.log.documents.chain import Dropped, LogDocument, SegmentEnd
from octavo.client.log.documents.cursors import CursorState
from octavo.client.log.documents.effects import WriteDocument
from octavo.client.log.documents.reading import read_document, read_log
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.writer.adds import LogAdds
from octavo.client.log.writer.leader import Leader
from octavo.client.log.writer.rolls import Rolls
from octavo.client.write.front.front import Front
from octavo.metadata.clocks.proven_time import Moment, ProvenTime
from octavo.protocol.errors import NoSuchLedgerError
from simulation.engine.patches import Patch, patch


def takeover_does_not_fence() -> list[Patch]:
    @patch(LedgerAccess, "end_of")
    async def end_of(_original: Any, self: Any, ledger_id: Any, password: bytes) -> SegmentEnd | None:
        try:
            reader = await self.open(ledger_id, password, False)
        except NoSuchLedgerError:
            return None
        try:
            last = reader.last_add_confirmed
            if last is None:
                return SegmentEnd(0, 0, 0)
            (entry,) = await reader.read(last, last)
            return SegmentEnd(last + 1, reader.length, entry.sealed_at_ms)
        finally:
            await reader.close()

    return [end_of]


def roll_does_not_wait() -> list[Patch]:
    @patch(Rolls, "drain_segment")
    async def drain_segment(_original: Any, self: Any) -> None:
        self._adds.send_turn()
        self._adds.front.hold()
        front = self._adds.front
        front.acknowledge(front.next_position, front.bytes_below(front.next_position))

    return [drain_segment]


def heals_from_first_doubt() -> list[Patch]:
    @patch(Leader, "_healed")
    async def healed(original: Any, self: Any, active: Any) -> None:
        active.first_position = min(active.first_position, self._front.acknowledged_stop)
        await original(self, active)

    return [healed]


def old_leader_heals() -> list[Patch]:
    @patch(LeaderSteps, "on_list")
    def on_list(original: Any, self: Any, document: LogDocument) -> None:
        healing, self.healing = self.healing, False
        original(self, document)
        self.healing = healing

    return [on_list]


def truncation_keeps_beginning() -> list[Patch]:
    @patch(Truncate, "decide")
    def decide(original: Any, self: Any, current: LogDocument) -> Any:
        decision = original(self, current)
        if not isinstance(decision, WriteDocument):
            return decision
        return WriteDocument(replace(decision.document, first_position=current.first_position))

    return [decide]


def truncation_drops_last_segments() -> list[Patch]:
    @patch(Truncate, "decide")
    def decide(original: Any, self: Any, current: LogDocument) -> Any:
        decision = original(self, current)
        if not isinstance(decision, WriteDocument):
            return decision
        segments, dropped = list(decision.document.segments), list(decision.document.dropped)
        while len(segments) > 1 and _lies_below(segments[0], segments[1], self.before):
            dropped.append(Dropped(segments.pop(0).ledger_id))
        return WriteDocument(replace(decision.document, segments=tuple(segments), dropped=tuple(dropped)))

    return [decide]


def deletes_before_it_drops() -> list[Patch]:
    @patch(Housekeeper, "truncate")
    async def truncate(original: Any, self: Any, before: int, *arguments: Any, **keywords: Any) -> Any:
        document = (await read_log(self._store, self._name, log_id=self._log_id)).value
        if len(document.segments) > 2 and _lies_below(document.segments[0], document.segments[1], before):
            await self._access.delete(document.segments[0].ledger_id)
        return await original(self, before, *arguments, **keywords)

    return [truncate]


def retention_ignores_cursors() -> list[Patch]:
    @patch(housekeeping, "read_cursors")
    async def one_far_ahead(_original: Any, _store: Any, _log_id: str) -> Mapping[str, CursorState]:
        return {"gone": CursorState(2**62, 2**62)}

    @patch(Housekeeper, "_agreed")
    async def agreed(_original: Any, _self: Any, _document: LogDocument, cut: int) -> int:
        return cut

    return [one_far_ahead, agreed]


def retention_believes_own_clock() -> list[Patch]:
    @patch(ProvenTime, "advanced")
    def advanced(original: Any, self: Any, now: Moment, *, at_most_ms: int | None = None) -> Any:
        time = original(self, now, at_most_ms=at_most_ms)
        return replace(time, ms=max(self.ms, self.ms + now.wall_ms - self.at.wall_ms))

    return [advanced]


def retention_drops_below_its_size() -> list[Patch]:
    @patch(retention, "_bytes_of_last")
    def bytes_of_last(_original: Any, document: LogDocument) -> int:
        return document.retention.bytes or 0

    return [bytes_of_last]


def cursor_goes_back() -> list[Patch]:
    @patch(CursorKeeper, "_stored")
    async def stored(_original: Any, self: Any, moved: Mapping[str, CursorState]) -> Any:
        while True:
            known = await read_cursors_document(self._store, self._log_id)
            if known is None:
                await read_document(self._store, self._log_name, log_id=self._log_id)
                return {}
            merged = {**known.value.cursors, **moved}
            if await self._put(known.value.with_cursors(merged), known.version):
                return merged

    return [stored]


def orphans_are_forgotten() -> list[Patch]:
    @patch(AppendSegment, "decide")
    def decide(original: Any, self: Any, current: LogDocument) -> Any:
        decision = original(self, current)
        if not isinstance(decision, WriteDocument):
            return decision
        making = {making.ledger_id for making in current.making}
        kept = tuple(dropped for dropped in decision.document.dropped if dropped.ledger_id not in making)
        return WriteDocument(replace(decision.document, dropped=kept))

    return [decide]


def deletion_keeps_ledgers() -> list[Patch]:
    @patch(MarkDeleted, "decide")
    def decide(original: Any, self: Any, current: LogDocument) -> Any:
        decision = original(self, current)
        return (
            WriteDocument(replace(decision.document, dropped=())) if isinstance(decision, WriteDocument) else decision
        )

    return [decide]


def outcome_too_early() -> list[Patch]:
    @patch(LogDocument, "end_of_term")
    def end_of_term(original: Any, self: Any, term: int) -> int | None:
        found: int | None = original(self, term)
        return self.known_stop if found is None and term == self.term else found

    return [end_of_term]


def position_unchecked() -> list[Patch]:
    return [Patch(Front, "_matches", lambda _self, _expected: True)]


def withdrawn_adds_are_sent() -> list[Patch]:
    @patch(Front, "admit")
    def admit(original: Any, self: Any) -> None:
        for waiting in self.queue:
            if waiting.at < len(waiting.payloads) and waiting.future.done():
                waiting.future = self.loop.create_future()
        original(self)

    @patch(Front, "withdraw_queued")
    def withdraw_queued(_original: Any, _self: Any, _waiting: Any) -> None:
        """Called by the future that has been replaced."""

    return [admit, withdraw_queued]


def flush_waits_for_last() -> list[Patch]:
    @patch(LogAdds, "wait_settled")
    async def wait_settled(_original: Any, self: Any) -> None:
        front = self.front
        if front.queue:
            await asyncio.wait([front.queue[-1].future])
        flushed = front.loop.create_future()
        front.answer_up_to(front.end, flushed)
        await asyncio.wait([flushed])

    return [wait_settled]


def time_falls() -> list[Patch]:
    return [Patch(LogDocument, "sealed_at_ms", property(lambda _document: 0))]


def follower_guesses_the_end() -> list[Patch]:
    @patch(ChainView, "locate")
    async def locate(original: Any, self: Any, position: int) -> Any:
        place = await original(self, position)
        segments = self.document.segments
        if place is None or place.stop is not None or place.segment not in segments[:-1]:
            return place
        async with self.using(place.segment.ledger_id) as reader:
            last = reader.last_add_confirmed
        stop = place.first + (0 if last is None else last + 1)
        if position < stop:
            return place._replace(stop=stop)
        return Place(segments[segments.index(place.segment) + 1], stop, None)

    return [locate]
