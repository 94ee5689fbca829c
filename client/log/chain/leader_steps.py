"""How a client becomes the leader of a log: a machine that names the next effect and takes its result. Pure.

Theory of operation (rules L1, P4). One effect is under way at a time::

    READ -> ALLOCATE -> BEGIN -> RECOVER -> CREATE -> APPEND -> LEADING
                          |         |         |         |
                          +---------+---------+---------+--> WITHDRAW -> DELETE -> READ again, or STOPPED

* READ: the list and its version. A healing writer stops here if the newest segment is not its own.
* ALLOCATE, BEGIN: a ledger id, noted in the list's ``making`` before the ledger exists, so that a candidate that dies
  leaves nothing that no list names.
* RECOVER: the segments that are not known to be closed (at most the last two) are fenced and closed. After that no
  writer of theirs is told success for anything that is not in them, and every first position is known.
* CREATE, APPEND: the ledger is created and appended to the list, if the newest segment is still the one that was read
  and the ledger is still in ``making``. Only now may adds be served: the compare-and-set decides, not the lock.
* A rival's segment, met in BEGIN or APPEND, or any failure: the ledger is taken out of ``making`` (unless it turns out
  to be listed: a lost answer that had succeeded), then deleted, then the candidate starts again or stops.

What the machine never does: serve adds before its segment is listed; append to a list that was changed since the
recovery; delete a ledger that the list may name.
"""

import enum
from collections.abc import Mapping
from dataclasses import field

from octavo.client.log.chain.changes import AppendSegment, BeginSegment, LogChange, Withdraw
from octavo.client.log.documents.chain import LogDocument, Segment, SegmentEnd
from octavo.protocol.errors import LogDamagedError, NoSuchLogError, NotLeaderError, OctavoError
from octavo.protocol.ids import LedgerId
from octavo.protocol.light_dataclass import dataclass


class Stage(enum.Enum):
    """The step that is under way."""

    READ = "reads the list"
    ALLOCATE = "allocates a ledger id"
    BEGIN = "notes the ledger that it will create"
    RECOVER = "recovers the last segments"
    CREATE = "creates the ledger"
    APPEND = "appends the ledger to the list"
    WITHDRAW = "takes the ledger out of the list of those being made"
    DELETE = "deletes the ledger"
    LEADING = "leads"
    STOPPED = "gave up"


# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadList:
    """Read the list, not from a stale replica (rule M3); then :meth:`LeaderSteps.on_list`."""


@dataclass(frozen=True, slots=True)
class Allocate:
    """Get a ledger id that no client was or will be given; then :meth:`LeaderSteps.on_allocated`."""


@dataclass(frozen=True, slots=True)
class Change:
    """Make this change of the list; then :meth:`LeaderSteps.on_changed`."""

    change: LogChange


@dataclass(frozen=True, slots=True)
class Recover:
    """Recover and close these ledgers, all of them; then :meth:`LeaderSteps.on_recovered` with their ends, None for one
    that does not exist."""

    segments: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Create:
    """Create the ledger; then :meth:`LeaderSteps.on_done`."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the ledger if it exists; then :meth:`LeaderSteps.on_done`."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class Lead:
    """Adds may be served: the segment stands in the list, and its first position is known."""

    segment: Segment
    document: LogDocument


@dataclass(frozen=True, slots=True)
class Stop:
    """Give up, and raise this."""

    error: OctavoError


type Effect = ReadList | Allocate | Change | Recover | Create | Delete | Lead | Stop


@dataclass(slots=True)
class LeaderSteps:
    """See the module. :attr:`effect` is what to do now; every ``on_`` method takes its outcome and sets the next."""

    owner: str
    """The token of this writer; its segments carry it."""
    now_ms: int
    """Noted in the segment as the time of its making."""
    healing: bool = False
    """The writer takes over from itself: it stops if the newest segment is another writer's, and keeps its term."""
    attempts_max: int = 8
    """Rounds lost to rivals after which the candidate gives up."""
    stage: Stage = Stage.READ
    effect: Effect = field(default_factory=ReadList)
    attempts: int = 1
    ledger_id: LedgerId | None = None
    _document: LogDocument | None = None
    ends: Mapping[LedgerId, SegmentEnd] = field(default_factory=dict)
    """How the segments before ended, once they are recovered."""
    _term: int = 0
    _failure: OctavoError | None = None
    _restart: bool = False

    @property
    def disturbs_others(self) -> bool:
        """Whether the effect would stop a client that leads. It names the list that was read, which must be from a time
        at which this client was to lead (rule P3). Cleaning up disturbs no leader."""
        return self.stage in (Stage.BEGIN, Stage.RECOVER, Stage.CREATE, Stage.APPEND)

    # --- outcomes -----------------------------------------------------------------------------------------------------

    def on_list(self, document: LogDocument) -> None:
        """The list as it stands."""
        assert self.stage is Stage.READ, self.stage
        newest = document.newest
        if self.healing and (newest is None or newest.owner != self.owner):
            self._stop(
                NotLeaderError(
                    f"log {document.name}: this client no longer leads (another client has taken it over)",
                    may_have_happened=False,
                )
            )
            return
        self._document, self.ends = document, {}
        self._term = newest.term if self.healing and newest is not None else document.term + 1
        self._go(Stage.ALLOCATE, Allocate())

    def on_allocated(self, ledger_id: LedgerId) -> None:
        """The id of the next segment."""
        assert self.stage is Stage.ALLOCATE, self.stage
        self.ledger_id = ledger_id
        self._go(Stage.BEGIN, Change(BeginSegment(ledger_id, self.owner, self._base)))

    def on_changed(self, document: LogDocument) -> None:
        """The change has been made or was found made; ``document`` is what stands in the store."""
        match self.stage:
            case Stage.BEGIN:
                self._document = document
                segments = document.unclosed()
                if segments:
                    self._go(Stage.RECOVER, Recover(segments))
                else:
                    self._create()
            case Stage.APPEND:
                self._lead(document)
            case Stage.WITHDRAW:
                self._withdrawn(document)
            case _:
                raise AssertionError(f"no change was asked for: {self.stage}")

    def on_recovered(self, ends: Mapping[LedgerId, SegmentEnd | None]) -> None:
        """The ledgers are closed, with these ends; None for a ledger that does not exist."""
        assert self.stage is Stage.RECOVER, self.stage
        assert self._document is not None, "recovery follows the reading"
        known: dict[LedgerId, SegmentEnd] = {}
        for ledger_id, end in ends.items():
            if end is None:
                self._fail(
                    LogDamagedError(
                        f"log {self._document.name}: ledger {ledger_id}, one of its last segments, does not exist; it "
                        "was deleted by hand. Restore its metadata, or give its positions up with `octavo log give-up "
                        f"{self._document.name} --ledger {ledger_id}`"
                    )
                )
                return
            known[ledger_id] = end
        self.ends = known
        self._create()

    def on_done(self) -> None:
        """The ledger has been created, or deleted."""
        match self.stage:
            case Stage.CREATE:
                assert self.ledger_id is not None, "an id was allocated"
                append = AppendSegment(
                    self.ledger_id, self.owner, self._term, self.now_ms, self._base, self.ends, is_takeover=True
                )
                self._go(Stage.APPEND, Change(append))
            case Stage.DELETE:
                self._after_withdrawal()
            case _:
                raise AssertionError(f"neither creating nor deleting: {self.stage}")

    def on_failed(self, error: OctavoError) -> None:
        """The effect under way failed. Where it may have happened, the list tells before anything is deleted."""
        if self.stage is Stage.WITHDRAW and isinstance(error, NoSuchLogError):
            # No list can name the ledger any more, and the client that deleted the log may not have found it.
            assert self.ledger_id is not None, "there is something to withdraw"
            self._failure, self._restart = error, False
            self._go(Stage.DELETE, Delete(self.ledger_id))
            return
        if self.stage in (Stage.WITHDRAW, Stage.DELETE):
            # The ledger stays in `making` or `dropped`, where the next leader finds it.
            self._stop(self._failure or error)
            return
        self._fail(error)

    # --- going on -----------------------------------------------------------------------------------------------------

    @property
    def _base(self) -> LedgerId | None:
        assert self._document is not None, "the list has been read"
        return self._document.newest.ledger_id if self._document.newest is not None else None

    def _create(self) -> None:
        assert self.ledger_id is not None, "an id was allocated"
        self._go(Stage.CREATE, Create(self.ledger_id))

    def _lead(self, document: LogDocument) -> None:
        segment = next((s for s in document.segments if s.ledger_id == self.ledger_id), None)
        if segment is None or segment is not document.newest or segment.first_position is None:
            # Listed and overtaken already, or truncated: a rival led in between.
            self.ledger_id = None
            self._failure = NotLeaderError(
                f"log {document.name} has been taken over by another client", may_have_happened=False
            )
            self._again()
            return
        self.stage, self.effect = Stage.LEADING, Lead(segment, document)

    def _fail(self, error: OctavoError) -> None:
        """Clean up after ``error``, then start again if it was a rival's doing, or stop."""
        self._failure = error
        self._restart = isinstance(error, NotLeaderError)
        if self.ledger_id is None:
            self._after_withdrawal()
        else:
            self._go(Stage.WITHDRAW, Change(Withdraw(self.ledger_id)))

    def _withdrawn(self, document: LogDocument) -> None:
        assert self.ledger_id is not None, "there is something to withdraw"
        if document.is_listed(self.ledger_id):
            # The append had succeeded, and its answer was lost.
            self._lead(document)
        else:
            self._go(Stage.DELETE, Delete(self.ledger_id))

    def _after_withdrawal(self) -> None:
        self.ledger_id = None
        if self._restart:
            self._again()
        else:
            assert self._failure is not None, "a withdrawal has a reason"
            self._stop(self._failure)

    def _again(self) -> None:
        if self.attempts >= self.attempts_max:
            assert self._failure is not None, "a round was lost"
            self._stop(self._failure)
            return
        self.attempts += 1
        self._go(Stage.READ, ReadList())

    def _stop(self, error: OctavoError) -> None:
        self.stage, self.effect = Stage.STOPPED, Stop(error)

    def _go(self, stage: Stage, effect: Effect) -> None:
        self.stage, self.effect = stage, effect
