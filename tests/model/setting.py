"""What is explored: who takes part, how things stand at the beginning, what may go wrong."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from model.bookie import Bookie, BookieState
from model.client import Client
from model.exchange import Message
from octavo.metadata.model import LedgerMetadata
from octavo.protocol.quorums import Quorums


@dataclass(frozen=True)
class Placement:
    """How things stand at the beginning."""

    metadata: LedgerMetadata
    bookies: tuple[BookieState, ...]
    messages: tuple[Message, ...] = ()
    acknowledged: int = -1
    """The last entry that a writer which is no longer there was told is acknowledged; -1 for none."""


@dataclass(frozen=True)
class Setting:
    """One world."""

    name: str
    quorums: Quorums
    bookies: int
    placements: Callable[[], Iterable[Placement]]
    clients: Callable[[Placement], Sequence[Client]]
    """Fresh clients, in order of their indexes."""
    payloads: tuple[bytes, ...]
    """What is or has been written, by entry id."""
    budget: dict[str, int] = field(default_factory=dict)
    """How often each of :data:`model.states.FAULTS` may happen; what is not named does not."""
    bookie: Bookie = field(default_factory=lambda: Bookie(syncs=False))
    like_clients: tuple[tuple[int, ...], ...] = ((0,),)
    """Groups of clients that do the same; every client is in one."""
    symmetric: bool = True
    """Whether bookies can be interchanged: E = Qw, and no client tells one from another."""
    reduced: bool = True
    """Whether a client that nobody can affect goes first (:mod:`model.world`)."""
