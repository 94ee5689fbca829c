"""A setting: the clients and bookies that take part, the states to start from, and the faults that may occur."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.engine.exchange import Message
from model.ledgers.bookie import Bookie, BookieState
from model.ledgers.client import Client
from model.ledgers.promises import Promises
from octavo.protocol.quorums import Quorums


@dataclass(frozen=True)
class Placement:
    """One state to start from."""

    metadata: Any
    """:class:`LedgerMetadata`; :class:`StreamMetadata` in the settings of streams."""
    bookies: tuple[BookieState, ...]
    messages: tuple[Message, ...] = ()
    acknowledged: int = -1
    """The last entry that a dead writer has acknowledged to its caller; -1 for none."""


@dataclass(frozen=True)
class Setting:
    """One setting; a :class:`~model.engine.world.World` explores it."""

    name: str
    quorums: Quorums
    bookies: int
    placements: Callable[[], Iterable[Placement]]
    clients: Callable[[Placement], Sequence[Client]]
    """Fresh clients, in order of their indexes."""
    payloads: tuple[bytes, ...]
    """The payloads that are or have been written, by entry id."""
    budget: dict[str, int] = field(default_factory=dict)
    """How often each of :data:`model.engine.states.FAULTS` may happen; 0 for faults that are not named."""
    lost: int = 0
    """Copies that faults had taken before it begins."""
    bookie: Bookie = field(default_factory=lambda: Bookie(syncs=False))
    interchangeable_clients: tuple[tuple[int, ...], ...] = ((0,),)
    """Groups of clients that behave alike; every client is in one group."""
    symmetric: bool = True
    """Whether bookies can be interchanged: E = Qw, and no client tells one from another."""
    reduced: bool = True
    """Whether a client that no other can affect acts first (:meth:`model.engine.world.World.independent_client`)."""
    settles: bool = True
    """Whether inevitable steps are taken at once (:mod:`model.engine.inevitable`), which knows nothing of terms."""

    def make_promises(self) -> Promises:
        """What must hold."""
        return Promises(self.quorums, self.payloads, self.bookie)
