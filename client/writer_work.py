"""What a writer has from its first add on, and what stands in for it before."""

from typing import Final, NamedTuple

from octavo.client.lac_teller import LacTeller
from octavo.client.replication import Replication
from octavo.client.supervisor import Supervisor
from octavo.protocol.entries import Sealer
from octavo.protocol.ids import EntryId


class Work(NamedTuple):
    """What adding takes."""

    supervisor: Supervisor
    replication: Replication
    sealer: Sealer
    lac_teller: LacTeller


class NothingPushed:
    """What a pipeline says before the first add."""

    last_add_confirmed: Final[EntryId | None] = None
    next_entry_id: Final = 0
    pending: Final = 0
    length: Final = 0
    highest_sent: Final = -1


NOTHING_PUSHED: Final = NothingPushed()
