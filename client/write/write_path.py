"""The parts that a writer needs from its first add on, and what stands in for them before that."""

from typing import Final, NamedTuple

from octavo.client.supervisor import Supervisor
from octavo.client.write.lac_sender import LacSender
from octavo.client.write.replication import Replication
from octavo.metadata.ledger.debts import NO_DEBT, Debt
from octavo.protocol.entries import Sealer
from octavo.protocol.ids import EntryId


class WritePath(NamedTuple):
    """The parts that an add passes between the writer's queue and the bookies."""

    supervisor: Supervisor
    replication: Replication
    sealer: Sealer
    lac_sender: LacSender


class EmptyPipeline:
    """Answers as a :class:`~octavo.client.write.pipeline.Pipeline` would before the first add."""

    __slots__ = ("highest_sent", "last_add_confirmed", "length", "next_entry_id")

    pending: Final = 0
    unacknowledged: Final = 0
    unacknowledged_bytes: Final = 0

    def __init__(self, first_entry_id: int = 0, length: int = 0) -> None:
        """``length``: payload bytes before the first entry."""
        self.next_entry_id = first_entry_id
        self.length = length
        self.highest_sent = first_entry_id - 1
        self.last_add_confirmed = EntryId(first_entry_id - 1) if first_entry_id else None

    def debt(self) -> Debt:
        """Nothing is owed."""
        return NO_DEBT


EMPTY_PIPELINE: Final = EmptyPipeline()
