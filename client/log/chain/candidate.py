"""Carries out what :class:`~octavo.client.log.chain.leader_steps.LeaderSteps` decides."""

from collections.abc import Sequence
from typing import NamedTuple

from octavo.client.arguments import Protection
from octavo.client.log.chain.housekeeping import Housekeeper
from octavo.client.log.chain.leader_steps import (
    Allocate,
    Change,
    Create,
    Delete,
    Lead,
    LeaderSteps,
    ReadList,
    Recover,
    Stop,
)
from octavo.client.log.chain.update import update_log
from octavo.client.log.documents.chain import LogDocument, SegmentEnd
from octavo.client.log.documents.reading import read_log
from octavo.client.log.seam.access import LedgerAccess, NewSegment
from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.concurrently import together
from octavo.client.log.writer.holding import CheckHeld, needs_no_lock
from octavo.metadata.store.values import Versioned
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import LedgerId


class Candidate(NamedTuple):
    """The parts that becoming leader needs, besides the machine."""

    access: LedgerAccess
    name: str
    log_id: str
    password: bytes

    async def create(self, document: LogDocument, ledger_id: LedgerId) -> ActiveSegment:
        """Create the ledger of the next segment."""
        active = ActiveSegment(ledger_id)
        active.core = await self.access.create(
            NewSegment(
                ledger_id,
                self.name,
                document.quorums,
                Protection(self.password, document.digest, document.private),
                document.sealed_at_ms,
                active.front,
            )
        )
        return active

    async def run(self, steps: LeaderSteps, check_held: CheckHeld = needs_no_lock) -> tuple[ActiveSegment, LogDocument]:
        """Go through the steps until the client leads. Raises what the steps stop with, such as what ``check_held``
        raises (rule P3). Cancelled, it leaves the ledger that it was making to the next leader."""
        made: list[ActiveSegment] = []
        try:
            async with self.access.pacing.turn():
                return await self._run(steps, made, check_held)
        except BaseException:
            for active in made:
                await active.core.abandon()
            raise

    async def _run(
        self, steps: LeaderSteps, made: list[ActiveSegment], check_held: CheckHeld
    ) -> tuple[ActiveSegment, LogDocument]:
        known: Versioned[LogDocument] | None = None
        while True:
            effect = steps.effect
            if isinstance(effect, Stop):
                raise effect.error
            if isinstance(effect, Lead):
                assert effect.segment.first_position is not None, "a leader knows where it begins"
                made[-1].begin_at(effect.segment.first_position)
                return made[-1], effect.document
            try:
                if steps.disturbs_others:
                    check_held()
                match effect:
                    case ReadList():
                        known = await read_log(self.access.store, self.name, log_id=self.log_id)
                        known = await Housekeeper(self.access, self.name, self.log_id).make_room(known)
                        steps.on_list(known.value)
                    case Allocate():
                        steps.on_allocated(await self.access.store.allocate_ledger_id())
                    case Change(change):
                        known = await update_log(self.access.store, self.name, change, log_id=self.log_id, known=known)
                        steps.on_changed(known.value)
                    case Recover(segments):
                        steps.on_recovered(await self._recover([segment.ledger_id for segment in segments]))
                    case Create(ledger_id):
                        assert known is not None, "the list has been read"
                        made.append(await self.create(known.value.with_ends(steps.ends), ledger_id))
                        steps.on_done()
                    case Delete(ledger_id):
                        while made:
                            await made.pop().core.abandon()
                        await self.access.delete(ledger_id)
                        steps.on_done()
            except OctavoError as error:
                known = None
                steps.on_failed(error)

    async def _recover(self, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, SegmentEnd | None]:
        ends = await together(self.access.end_of(ledger_id, self.password) for ledger_id in ledger_ids)
        return dict(zip(ledger_ids, ends, strict=True))
