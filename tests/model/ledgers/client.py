"""What the model needs of a client: a state machine of Octavo, with the steps of its asyncio shell."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Self

from model.engine.exchange import Message
from model.engine.renaming import Renaming
from octavo.metadata.ledger.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a client may do of its own accord."""

    name: str
    """For traces, and for the client itself."""
    argument: Hashable = None
    """Numbers of positions or bookies are renamed by the client's :meth:`Client.rename`."""
    fault: str | None = None
    """Which of the budget's faults it is; None: none."""


BEGIN: Final = Step("begins")
"""The first event of every client, at the very beginning."""

type Event = Message | Step
"""A message with an answer, or a step of one's own."""


class Client(ABC):
    """One client of the ledger. Mutable; the model copies it before every event.

    It must not tell bookies apart but by what they answer, so that renamed histories lead to renamed clients; the
    model checks that.
    """

    def __init__(self, index: int, name: str) -> None:
        self.index = index
        self.name = name
        self.acknowledged_before = -1
        """The last entry that was acknowledged by a writer from before the setting; -1 for none."""

    def identity(self) -> Hashable:
        """Equal for clients that are the same and do the same for ever after."""
        return self.index, self.acknowledged_before, self.key()

    # --- for the model ----------------------------------------------------------------------------------------------

    @abstractmethod
    def copy(self) -> Self:
        """An independent client in the same state."""

    @abstractmethod
    def key(self) -> Hashable:
        """Everything that decides what it does next, but for its index."""

    def take(self, event: Event) -> list[Message]:
        """Take an event; the requests it sends then."""
        return self.begin() if event == BEGIN else self.on(event)

    @abstractmethod
    def begin(self) -> list[Message]:
        """The first thing it does, which it may as well do at once: only what is sent can be late."""

    @abstractmethod
    def on(self, event: Event) -> list[Message]:
        """Take any later event; the requests it sends then."""

    @abstractmethod
    def steps(self) -> list[Step]:
        """What it may do of its own accord, now."""

    @abstractmethod
    def rename(self, step: Step, renaming: Renaming) -> Step:
        """The same step under other names."""

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Nothing that still arrives matters to it."""

    @abstractmethod
    def unfinished_work(self, metadata: LedgerMetadata) -> str | None:
        """What it still waits for, when nothing can happen any more (rule I8); None when it is done."""

    @property
    def acknowledged(self) -> int:
        """The highest entry acknowledged to its caller; -1 before the first."""
        return -1

    acknowledges_nothing = False
    """Whether it is a client that acknowledges no entries, such as a recovery."""

    @property
    def may_add(self) -> bool:
        """Whether it may yet send an ordinary add or an explicit LAC."""
        return not (self.acknowledges_nothing or self.finished)

    @property
    def may_use_lacs(self) -> bool:
        """Whether what a bookie says of LACs may yet make a difference to it."""
        return not self.finished

    @property
    def did_not_happen_from(self) -> int | None:
        """It reported to its caller that no entry from this id on has happened (rule W6)."""
        return None

    @property
    def settled(self) -> LedgerMetadata | None:
        """The closed metadata that it reported to its caller."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """What it knows, for a trace."""
