"""The model's bookie: what rules B1 to B4, F2 and W11 say of one ledger, and nothing of disks.

Where a setting counts power cuts, what is accepted is durable only after a *sync*, and answers that promise durability
wait for it (group commit: one sync makes all that was accepted before it durable). In other settings every step is
durable at once, as a bookie that never loses its power looks from outside.

Where ledgers have deferred sync (rule W10) bookies count their processes: a request that was sent to an earlier process
fails, because its connection ended with that process.

Each rule has a method of its own, so that a canary can break that one.
"""

from dataclasses import dataclass, replace

from model.engine.exchange import (
    DUPLICATE,
    FENCED,
    IN_DOUBT,
    Add,
    Answer,
    Done,
    Failed,
    Fence,
    Force,
    Found,
    Hello,
    Lac,
    Lacks,
    MarkSure,
    Message,
    Missing,
    Read,
    ReadLac,
    Refused,
    Request,
    Welcome,
    WriteLac,
)
from octavo.protocol.entries import header_of


@dataclass(frozen=True, slots=True)
class BookieState:
    """One bookie's part of the ledger."""

    held: tuple[bytes, ...] = ()
    """Sealed entries accepted, by id."""
    fenced: bool = False
    fenced_term: int = 0
    """If fenced: the terms up to this one are over (rule T7)."""
    explicit_lac: bytes | None = None
    damaged: frozenset[int] = frozenset()
    """Ids whose copy does not verify."""
    in_doubt: bool = False
    """Ordinary adds are refused for ever (rule D1)."""
    unsure_from: int | None = 0
    """In doubt: the first id that the bookie must not deny; None: repair has made it sure of all (rule D2)."""
    term_floor: int | None = None
    """In doubt about a stream: the doubt is over above this term (rule T12)."""
    unsynced: frozenset[int] = frozenset()
    """Ids accepted since the last sync."""
    fence_unsynced: bool = False
    durable_term: int | None = None
    """The fence before the one that is not synced; None: there was none."""
    trusted: frozenset[int] = frozenset()
    """Ids taken for synced though they are not; only canaries do."""
    waiting: tuple[Message, ...] = ()
    """Answers that leave after the next sync."""
    boot: int = 0
    """How often it has been started again; only bookies that count that."""
    slow: tuple[Message, ...] = ()
    """Requests taken up and not decided; only canaries do that in two steps."""

    def entry(self, entry_id: int) -> bytes | None:
        """The copy of an entry, damaged or not."""
        return next((sealed for sealed in self.held if header_of(sealed).entry_id == entry_id), None)

    def without_waiting(self, client: int) -> "BookieState":
        """The bookie without the answers that wait for one client."""
        return replace(
            self,
            waiting=tuple(message for message in self.waiting if message.client != client),
            slow=tuple(left for one in self.slow if (left := one.orphaned() if one.client == client else one)),
        )


def _by_id(sealed: bytes) -> int:
    return header_of(sealed).entry_id


class Bookie:
    """The rules. Holds no state: every method takes one and gives the next."""

    def __init__(self, *, syncs: bool, counts_boots: bool = False) -> None:
        self.syncs = syncs
        self.counts_boots = counts_boots

    # --- requests -------------------------------------------------------------------------------------------------

    def receive(self, state: BookieState, message: Message) -> tuple[BookieState, tuple[Message, ...]]:
        """Take a request up and decide it in one step; the answers that leave now."""
        request = message.request
        if isinstance(request, Add | Force) and request.boot not in (None, state.boot):
            return state, () if message.client is None else (message.answered(Failed()),)
        after, answer = self.accept(state, message.request)
        return self.reply(after, message, answer)

    def reply(
        self, state: BookieState, message: Message, answer: Answer | None
    ) -> tuple[BookieState, tuple[Message, ...]]:
        """Let the answer leave now, or after the sync it promises."""
        if message.client is None or answer is None:
            return state, ()
        answered = message.answered(answer)
        if self.must_wait(state, message.request, answer):
            waiting = (answered, *(other for other in state.waiting if other != answered))
            return replace(state, waiting=tuple(sorted(waiting, key=repr))), ()
        return state, (answered,)

    def must_wait(self, state: BookieState, request: Request, answer: Answer) -> bool:
        """Whether the answer promises something that is not durable yet (rules B1, B2 and F2)."""
        if not self.syncs or isinstance(answer, Refused):
            return False
        if isinstance(request, Add):
            return not request.deferred and any(
                header_of(sealed).entry_id in state.unsynced for sealed in request.entries
            )
        if isinstance(request, Force | Missing):
            return bool(state.unsynced)
        # A fence's answer leaves after everything that it has seen is durable: the journal is written in order.
        return self.fences(request) and (state.fence_unsynced or bool(state.unsynced))

    def fences(self, request: Request) -> bool:
        """Whether the request also fences."""
        return isinstance(request, Fence) or (isinstance(request, Read | ReadLac) and request.fence)

    def accept(self, state: BookieState, request: Request) -> tuple[BookieState, Answer | None]:
        """One synchronous step: decide on the state as it is, and give the state after it."""
        if isinstance(request, Add):
            return self.add(state, request)
        if isinstance(request, Force | Hello):
            return state, self.answer_of_process(state, request)
        if isinstance(request, WriteLac):
            return self.write_lac(state, request), None
        if isinstance(request, MarkSure):
            return replace(state, unsure_from=request.unsure_from), Done()
        if self.fences(request):
            state = self.fence(state, self.term_over(request))
        return state, self.look_up(state, request)

    def look_up(self, state: BookieState, request: Request) -> Answer | None:
        """The answer to a read; None to a fence by itself."""
        if isinstance(request, Read):
            return self.read(state, request)
        if isinstance(request, Missing):
            return self.missing(state, request)
        return self.last_add_confirmed(state) if isinstance(request, ReadLac) else None

    def answer_of_process(self, state: BookieState, request: Force | Hello) -> Answer:
        """Which process this is; whether it makes durable what it has answered (rule W10)."""
        if isinstance(request, Hello):
            return Welcome(state.boot)
        return Refused(FENCED) if state.fenced else Done()

    def term_over(self, request: Request) -> int:
        """The term that a fence ends."""
        assert isinstance(request, Fence | Read | ReadLac)
        return request.term

    def fence(self, state: BookieState, term: int = 0) -> BookieState:
        """From this step on ordinary adds of the terms up to this one are refused (rules F2 and T7)."""
        if self.is_over(state, term):
            return state
        durable = state.durable_term if state.fence_unsynced else state.fenced_term if state.fenced else None
        return replace(
            state,
            fenced=True,
            fenced_term=term,
            fence_unsynced=self.syncs,
            durable_term=durable if self.syncs else None,
        )

    def is_over(self, state: BookieState, term: int) -> bool:
        """Whether the term, or a later one, has been fenced (rule T7)."""
        return state.fenced and term <= state.fenced_term

    def refusal(self, state: BookieState, request: Add) -> Refused | None:
        """Why an add may not be taken (rules F2 and B4)."""
        if request.recovery:
            return None
        if self.is_over(state, request.term):
            return Refused(FENCED)
        return Refused(IN_DOUBT) if state.in_doubt else None

    def add(self, state: BookieState, request: Add) -> tuple[BookieState, Answer]:
        refusal = self.refusal(state, request)
        return (state, refusal) if refusal is not None else self.store(state, request)

    def store(self, state: BookieState, request: Add) -> tuple[BookieState, Answer]:
        """All entries or none; the same bytes again are a success, other bytes are not (rule W11)."""
        held = {header_of(sealed).entry_id: sealed for sealed in state.held}
        fresh: set[int] = set()
        for sealed in request.entries:
            entry_id = header_of(sealed).entry_id
            if entry_id in held and entry_id not in state.damaged:
                if held[entry_id] != sealed:
                    return state, Refused(DUPLICATE)
                continue
            held[entry_id] = sealed
            fresh.add(entry_id)
        if not fresh:
            return state, Done()
        after = replace(
            state,
            held=tuple(sorted(held.values(), key=_by_id)),
            damaged=state.damaged - fresh,
            unsynced=state.unsynced | fresh if self.syncs else state.unsynced,
        )
        return after, Done()

    def write_lac(self, state: BookieState, request: WriteLac) -> BookieState:
        """The highest explicit LAC is kept (rule W2)."""
        known = state.explicit_lac
        if known is not None and header_of(known).entry_id >= header_of(request.sealed).entry_id:
            return state
        return replace(state, explicit_lac=request.sealed)

    def read(self, state: BookieState, request: Read) -> Found:
        """The entries held; an entry that may have been lost is unknown, never absent (rules R2 and B4)."""
        entries, unknown = [], []
        for entry_id in range(request.first, request.last + 1):
            sealed = state.entry(entry_id)
            if sealed is not None and entry_id not in state.damaged:
                entries.append(sealed)
            elif self.cannot_tell(state, entry_id):
                unknown.append(entry_id)
        return Found(request.last, tuple(entries), tuple(unknown))

    def missing(self, state: BookieState, request: Missing) -> Lacks:
        """What is not held, by the index, which does not tell what has rotted (rule G5)."""
        return Lacks(tuple(entry_id for entry_id in request.entry_ids if state.entry(entry_id) is None))

    def cannot_tell(self, state: BookieState, entry_id: int) -> bool:
        """Whether an entry that the bookie cannot show may have been held (rules R2 and B4)."""
        return self.is_unsure(state, entry_id) or entry_id in state.damaged

    def is_unsure(self, state: BookieState, entry_id: int) -> bool:
        """Whether the bookie may have held and lost the entry (rule D2)."""
        return state.in_doubt and state.unsure_from is not None and entry_id >= state.unsure_from

    def last_add_confirmed(self, state: BookieState) -> Lac:
        """The newest intact entry and the explicit LAC; the writer sealed both."""
        intact = [sealed for sealed in state.held if header_of(sealed).entry_id not in state.damaged]
        unsure = state.in_doubt and state.unsure_from is not None
        return Lac(intact[-1] if intact else None, state.explicit_lac, unsure)

    def readable(self, state: BookieState, last_add_confirmed: int) -> tuple[bytes, ...]:
        """What the bookie shows to an ordinary reader whose LAC comes from this bookie (rules R1 and I3)."""
        return tuple(sealed for sealed in state.held if header_of(sealed).entry_id <= last_add_confirmed)

    def decide(self, state: BookieState, message: Message) -> tuple[BookieState, tuple[Message, ...]]:
        """Work off a request taken up before: nothing is, all is decided in the step that accepts it."""
        raise AssertionError("no request is left undecided")

    def note_floor(self, state: BookieState, term: int) -> BookieState:
        """Learn the term of the stream from the metadata as they are now. Only bookies do that that know floors."""
        return state

    # --- faults -----------------------------------------------------------------------------------------------------

    def sync(self, state: BookieState) -> tuple[BookieState, tuple[Message, ...]]:
        """Everything accepted is durable; the answers that waited leave."""
        synced = replace(state, unsynced=frozenset(), fence_unsynced=False, durable_term=None, waiting=())
        return synced, state.waiting

    def cut_power(self, state: BookieState) -> BookieState:
        """What was not synced is gone (rules B1 and B2)."""
        return replace(
            state,
            held=tuple(sealed for sealed in state.held if header_of(sealed).entry_id not in state.unsynced),
            fenced=state.durable_term is not None if state.fence_unsynced else state.fenced,
            fenced_term=(state.durable_term or 0) if state.fence_unsynced else state.fenced_term,
            unsynced=frozenset(),
            fence_unsynced=False,
            durable_term=None,
            trusted=frozenset(),
            waiting=(),
            slow=(),
            boot=state.boot + self.counts_boots,
        )

    def kill(self, state: BookieState) -> BookieState:
        """The process dies and starts again: what it had written but not synced is found, and made durable before
        the port opens (rule B1)."""
        boot = state.boot + self.counts_boots
        return replace(
            state, unsynced=frozenset(), fence_unsynced=False, durable_term=None, waiting=(), slow=(), boot=boot
        )

    def wipe(self, state: BookieState) -> BookieState:
        """The disk is lost, and the bookie knows that it may have lost something (rule B4)."""
        return BookieState(in_doubt=True)

    def damage(self, state: BookieState, entry_id: int) -> BookieState:
        """A copy rots."""
        return replace(state, damaged=state.damaged | {entry_id})
