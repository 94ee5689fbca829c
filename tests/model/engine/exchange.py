"""What travels in the model: requests to bookies and to the metadata, and their answers. Values.

The network loses, delays and reorders: a message in flight may arrive at any time, in any order, or never. A request
whose sender has given it up is *orphaned*: it may still arrive, and its answer is dropped.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Self

from octavo.metadata.ledger.changes import MetadataChange
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.stream.changes import StreamChange
from octavo.metadata.stream.model import StreamMetadata
from octavo.protocol.entries import header_of
from octavo.protocol.errors import OctavoError
from octavo.protocol.places import offset_of, term_of

STORE = -1
"""The metadata store, as a message's server; bookies are 0, 1, ..."""


@dataclass(frozen=True, slots=True)
class Add:
    """Store these sealed entries; ``recovery`` also where the ledger is fenced. ``deferred``: the answer does not wait
    for the disk (rule W10)."""

    entries: tuple[bytes, ...]
    recovery: bool
    deferred: bool = False
    boot: int | None = None
    """The process of the bookie that it is sent to; None: any, as no client cares."""
    term: int = 0
    """Of the entries; 0 where a ledger has one writer."""


@dataclass(frozen=True, slots=True)
class Force:
    """Make durable what this process of the bookie has answered (rule W10)."""

    boot: int


@dataclass(frozen=True, slots=True)
class Hello:
    """A new connection: which process of the bookie is there?"""


@dataclass(frozen=True, slots=True)
class Read:
    """The entries ``first..last``."""

    first: int
    last: int
    fence: bool
    term: int = 0
    """The one that is over, if it fences."""


@dataclass(frozen=True, slots=True)
class ReadLac:
    """What the bookie knows of the last add confirmed."""

    fence: bool
    term: int = 0
    """The one that is over, if it fences."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Which of these does the bookie lack? (rule G5)"""

    entry_ids: tuple[int, ...]
    """Those of a range that the bookie's position is to hold."""


@dataclass(frozen=True, slots=True)
class WriteLac:
    """An explicit LAC."""

    sealed: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the metadata, in the compare-and-set loop."""

    change: MetadataChange | StreamChange


@dataclass(frozen=True, slots=True)
class MarkSure:
    """The repair agent of a bookie in doubt tells its own bookie of which ids it is unsure from now on (rule D2)."""

    unsure_from: int | None
    """The first of them; None: none is left."""


@dataclass(frozen=True, slots=True)
class Fence:
    """What remains of a fencing read whose client no longer waits for the answer."""

    term: int = 0


type Request = Add | Force | Hello | Read | ReadLac | Missing | WriteLac | MarkSure | Fence | Change


@dataclass(frozen=True, slots=True)
class Done:
    """Added, and durable, unless it was deferred; or forced."""


@dataclass(frozen=True, slots=True)
class Welcome:
    """Answer to :class:`Hello`."""

    boot: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Not done. ``reason`` is one of the constants below."""

    reason: str


FENCED = "fenced"
IN_DOUBT = "in doubt"
DUPLICATE = "other bytes are held"


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer: the connection broke, or the time was over. The request may have arrived, or arrive yet."""


@dataclass(frozen=True, slots=True)
class Found:
    """Answer to :class:`Read`. Every id up to ``last_covered`` is in ``entries``, in ``unknown``, or absent."""

    last_covered: int
    entries: tuple[bytes, ...]
    unknown: tuple[int, ...]

    def cut_off_after(self, entry_id: int) -> Self:
        """The answer up to an id, as limits on an answer's size may cut it."""
        entries = tuple(sealed for sealed in self.entries if header_of(sealed).entry_id <= entry_id)
        return replace(
            self, last_covered=entry_id, entries=entries, unknown=tuple(one for one in self.unknown if one <= entry_id)
        )


@dataclass(frozen=True, slots=True)
class Lac:
    """Answer to :class:`ReadLac`: what the writer sealed last, as far as the bookie knows."""

    entry: bytes | None
    explicit: bytes | None
    in_doubt: bool


@dataclass(frozen=True, slots=True)
class Lacks:
    """Answer to :class:`Missing`: these; the others are durable."""

    entry_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """The change was made, or what it wanted stands there, or what replaces it for good: this stands there now."""

    metadata: Any
    """:class:`LedgerMetadata` or :class:`StreamMetadata`, as the setting has it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The change cannot be made any more."""

    metadata: Any
    """As above."""
    error: type[OctavoError] | None = None
    """Of what kind the refusal is, for clients that care."""


type Answer = Done | Welcome | Refused | Failed | Found | Lac | Lacks | Changed | Conflict


@dataclass(frozen=True, slots=True)
class Place:
    """A tag that names a position of an ensemble: ``number`` and ``tenure`` are its client's own."""

    position: int
    number: int
    tenure: int
    attempt: int = 0
    """Of a client that begins again."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request on its way to a server, or its answer on the way back."""

    client: int | None
    """The client that waits for the answer; None when no client does."""
    server: int
    """A bookie, or :data:`STORE`."""
    tag: Hashable
    """The client's own, to know what is answered. Names no bookie, and no position but as a :class:`Place`."""
    request: Request
    answer: Answer | None = None
    """None on the way there."""

    def answered(self, answer: Answer) -> Self:
        """The answer on its way back."""
        return replace(self, answer=answer)

    def orphaned(self) -> Self | None:
        """The request without a client that waits for its answer; None if it has no other effect."""
        request = self.request
        if isinstance(request, Force | Hello | Missing):
            return None
        if isinstance(request, Read | ReadLac):
            if not request.fence:
                return None
            request = Fence(request.term)
        return replace(self, client=None, tag=None, request=request)


def entry_text(sealed: bytes) -> str:
    """A sealed entry for a trace: id, payload, and the LAC sealed with it."""
    header = header_of(sealed)
    lac = header.last_add_confirmed_plus_one - 1
    payload = sealed[len(sealed) - 4 - header.payload_bytes : -4].decode("ascii", "replace")
    return f"{id_text(header.entry_id)}:{payload}" + (f"(LAC {id_text(lac)})" if lac >= 0 else "")


def id_text(entry_id: int) -> str:
    """An id for a trace; a place as ``(term,offset)``, and the one below the first of a term with the offset -1."""
    term = term_of(entry_id + 1)
    if not term:
        return str(entry_id)
    return f"({term},-1)" if offset_of(entry_id + 1) == 0 else f"({term},{offset_of(entry_id)})"


def _ids_text(entry_ids: tuple[int, ...]) -> str:
    return ", ".join(map(id_text, entry_ids)) or "nothing"


def entries_text(entries: tuple[bytes, ...]) -> str:
    return ", ".join(map(entry_text, entries)) or "nothing"


def request_text(request: Request) -> str:
    """A request for a trace."""
    if isinstance(request, Add):
        kind = "recovery add" if request.recovery else "deferred add" if request.deferred else "add"
        return f"{kind} of {entries_text(request.entries)}"
    if isinstance(request, Read):
        first, last = id_text(request.first), id_text(request.last)
        ids = first if first == last else f"{first}..{last}"
        return f"{'fencing read' if request.fence else 'read'} of {ids}"
    if isinstance(request, ReadLac):
        of_term = f" of term {request.term}" if request.term else ""
        return f"fence{of_term} and LAC read" if request.fence else "LAC read"
    if isinstance(request, WriteLac):
        return f"explicit LAC {id_text(header_of(request.sealed).entry_id)}"
    if isinstance(request, Change):
        return f"change {type(request.change).__name__}"
    return _question_text(request) if isinstance(request, MarkSure | Missing) else type(request).__name__.lower()


def _question_text(request: MarkSure | Missing) -> str:
    if isinstance(request, Missing):
        return f"which of {_ids_text(request.entry_ids)} are missing?"
    return "sure of all" if request.unsure_from is None else f"unsure from {request.unsure_from} on"


def answer_text(answer: Answer) -> str:
    """An answer for a trace."""
    if isinstance(answer, Found):
        unknown = f", unknown {list(answer.unknown)}" if answer.unknown else ""
        return f"{entries_text(answer.entries)} up to {id_text(answer.last_covered)}{unknown}"
    if isinstance(answer, Lac):
        known = [entry_text(answer.entry)] if answer.entry else []
        known += [f"explicit {id_text(header_of(answer.explicit).entry_id)}"] if answer.explicit else []
        return f"newest {', '.join(known) or 'nothing'}" + (", in doubt" if answer.in_doubt else "")
    if isinstance(answer, Refused):
        return f"refused, {answer.reason}"
    if isinstance(answer, Changed):
        return f"made; {metadata_text(answer.metadata)}"
    if isinstance(answer, Conflict):
        return f"conflict; {metadata_text(answer.metadata)}"
    return _plain_text(answer)


def _plain_text(answer: Done | Welcome | Failed | Lacks) -> str:
    if isinstance(answer, Lacks):
        return f"lacks {_ids_text(answer.entry_ids)}"
    if isinstance(answer, Welcome):
        return f"process {answer.boot}"
    return "done" if isinstance(answer, Done) else "failed"


def metadata_text(metadata: LedgerMetadata | StreamMetadata) -> str:
    """Metadata for a trace: ``OPEN [0: abc]``, ``CLOSED at 1 [0: abc] [1: abd]``, ``OPEN of term 2 [(2,0): abc]``."""
    if isinstance(metadata, StreamMetadata):
        end = f" at {id_text(metadata.last_entry_id)}" if metadata.last_entry_id is not None else ""
        parts = " ".join(f"[{id_text(one.first_entry_id)}: {''.join(one.bookies)}]" for one in metadata.fragments)
        return f"{metadata.state.name} of term {metadata.term}{end} {parts}"
    end = ""
    if metadata.is_closed:
        end = " empty" if metadata.last_entry_id is None else f" at {metadata.last_entry_id}"
    fragments = " ".join(f"[{part.first_entry_id}: {''.join(part.bookies)}]" for part in metadata.fragments)
    return f"{metadata.state.name}{end} {fragments}"


def possible_answers(request: Request) -> tuple[Answer, ...]:
    """One answer of each kind to a request of a bookie: a client that ignores them all has given it up."""
    if isinstance(request, Add | Force):
        return Done(), Refused(FENCED), Failed()
    if isinstance(request, Hello):
        return *map(Welcome, range(4)), Failed()
    if isinstance(request, Read):
        unknown = Found(request.last, (), tuple(range(request.first, request.last + 1)))
        return Found(request.last, (), ()), unknown, Failed()
    if isinstance(request, MarkSure):
        return Done(), Failed()
    if isinstance(request, Missing):
        return Lacks(()), Lacks(request.entry_ids), Failed()
    assert isinstance(request, ReadLac)
    return Lac(None, None, in_doubt=False), Failed()
