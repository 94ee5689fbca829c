"""What a writer has from its first add on, and what stands in for it before."""

from collections import deque
from typing import Any, Final, NamedTuple, NoReturn

from octavo.client.supervisor import Supervisor
from octavo.client.write.lac_teller import LacTeller
from octavo.client.write.replication import Replication
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


class _NoDeque(deque[Any]):
    """Empty, and nothing can be appended: whoever wants to makes a deque first."""

    def append(self, _item: object) -> NoReturn:
        raise AssertionError("there is no deque yet")


NO_DEQUE: Final[deque[Any]] = _NoDeque()
"""What stands where a writer has nothing queued: thousands of ledgers that are written little need no deques, which are
a good part of their memory and of the garbage collector's work."""
