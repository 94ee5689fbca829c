"""The seam between :mod:`octavo.client.write.replication` and what a kind of ledger adds to it: full copies
(:mod:`octavo.client.write.copies.copying`) or forces (:mod:`octavo.client.write.deferred.forces`)."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from octavo.client.options import ClientOptions
from octavo.client.wire.outcome import Outcome
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.ensemble_changes import Commit, EnsembleChanges
from octavo.client.write.guard import Guard
from octavo.client.write.pipeline import Accept, Acknowledge, Effect, Pipeline
from octavo.client.write.quorum_timer import QuorumTimer
from octavo.client.write.slots import Slots
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.messages import AddFlag
from octavo.protocol.quorums import Quorums


class Address(NamedTuple):
    """The fields that every request of one writer has."""

    ledger_id: LedgerId
    ledger_key: bytes
    flags: AddFlag
    term: int


class Shell(Protocol):
    """The replication of a ledger, as its part sees it."""

    address: Address
    options: ClientOptions
    pool: ConnectionPool
    loop: asyncio.AbstractEventLoop
    guard: Guard
    slots: Slots
    quorum_timer: QuorumTimer
    stopped: bool

    def perform(self, effects: Sequence[Effect]) -> None:
        """Perform what the pipeline has decided."""

    def tell(self, effect: Acknowledge | Accept) -> None:
        """Tell the callers of adds."""

    def end_trouble(self, position: int, tenure: int) -> None:
        """The bookie has done what it was asked."""

    def refused(self, position: int, tenure: int, outcome: Outcome) -> None:
        """The bookie has not done what it was asked."""


class Part(Protocol):
    """The part that a kind of ledger adds. It belongs to one replication; every call comes from it."""

    flags: AddFlag
    """Of every add."""

    def begin(self, shell: Shell, quorums: Quorums, first_entry_id: int, length: int) -> Pipeline:
        """The pipeline of this kind; everything else is called afterwards."""

    def changes(self, quorums: Quorums, ensemble: Sequence[BookieId], **times: float) -> EnsembleChanges:
        """The machine that decides about changes of the ensemble."""

    def connecting(self, position: int) -> bool:
        """A bookie is connected, or may be. Whether adds may be sent to it."""

    def pushed(self) -> None:
        """Entries were pushed."""

    def perform(self, effect: Effect) -> None:
        """Perform an effect that sends no entries to a member of the ensemble."""

    def answered(self) -> None:
        """A bookie has answered an add."""

    def lacks(self, position: int) -> bool:
        """Whether an acknowledged entry waits for the bookie."""

    async def before_commit(self, chosen: Commit | None) -> Commit | None:
        """The change to write into the metadata, if any, once bookies are chosen."""

    def stop(self) -> None:
        """Nothing is sent or acknowledged any more."""
