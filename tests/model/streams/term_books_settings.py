"""The settings of the model in which a stream with full copies is taken over, and rules of full copies
broken on purpose (rules G1 to G5, I9)."""

from collections.abc import Callable, Mapping
from typing import Any

from model.engine.setting import Setting
from model.ledgers.canaries import Canary
from model.ledgers.settings import LARGE, Job
from model.streams.asking_taker import (
    AskingTaker,
    AsksTheOldMembers,
    OwesNothing,
    RecordsNothing,
    TakesSilenceForCopies,
)
from model.streams.broken_streams import TellsOfCopiesBeforeTheSync
from model.streams.settings import StreamSetting, taken_over
from model.streams.term_books import (
    ChangesTermsBeforeTheCopy,
    CountsTermsFromTheLac,
    ForgetfulBooks,
    OwesWhatTheReplacedLacksOfATerm,
    RenewingAndRollingBooks,
    RenewingBooks,
    RenewsBeforeTheCopies,
    RenewsWithoutOwing,
    RestsWithoutOwing,
    RollingBooks,
    RollsWithoutOwing,
    TermBooks,
)
from octavo.metadata.ledger.debts import FullCopies

type Sizes = tuple[int, int, int]

_RECORDED, _REQUIRED = FullCopies.RECORDED, FullCopies.REQUIRED
_ONE_OF_TWO, _BOTH, _STRIPED, _THREE = (2, 2, 1), (2, 2, 2), (3, 2, 1), (3, 3, 2)


def with_books(kept: FullCopies, what: str, sizes: Sizes, **given: Any) -> Callable[[], StreamSetting]:
    """As :func:`taken_over`, of a stream with full copies."""
    books: dict[str, Any] = {"writer": TermBooks, "taker": AskingTaker}
    return taken_over(f"{kept.value}: {what}", sizes, kept=kept, **(books | given))


def _both(what: str, sizes: Sizes, *, job: Mapping[str, Any], **given: Any) -> tuple[Job, ...]:
    """The setting with either kind of books."""
    return tuple(Job(with_books(kept, what, sizes, **given), **job) for kept in (_RECORDED, _REQUIRED))


_QUICK: Mapping[str, Any] = {"quick": True}
_BOUNDED: Mapping[str, Any] = {"states_max": LARGE}
_WALKS: Mapping[str, Any] = {"walks": 2000, "steps_max": 500}

BOOKS_JOBS: tuple[Job, ...] = (
    *_both("writer of 1 entry, 1 takeover", _ONE_OF_TWO, job=_QUICK),
    *_both("writer of 1 entry, 1 takeover", _BOTH, job=_QUICK),
    *_both("writer of 1 entry, 1 takeover that writes nothing", _STRIPED, job=_QUICK, takers=(0,)),
    *_both("2 takeovers that write 1 entry each", _ONE_OF_TWO, job=_QUICK, writer=None, takers=(1, 1)),
    *_both(
        "writer of 1 entry, 1 recovery that rests; 1 power cut",
        _ONE_OF_TWO,
        job=_QUICK,
        takers=(),
        enders=1,
        power_cuts=1,
    ),
    *_both(
        "writer of 1 entry that renews its term, 1 takeover",
        _ONE_OF_TWO,
        job=_QUICK,
        writer=RenewingBooks,
    ),
    *_both(
        "writer of 2 entries that rolls, 1 spare; 1 break",
        _ONE_OF_TWO,
        job=_BOUNDED,
        writer=RollingBooks,
        entries=2,
        spares=1,
        takers=(),
        breaks=1,
    ),
    Job(
        with_books(
            _RECORDED,
            "writer of 2 entries that keeps none and rolls, 1 spare; 1 break",
            _ONE_OF_TWO,
            writer=ForgetfulBooks,
            entries=2,
            spares=1,
            takers=(),
            breaks=1,
        ),
        states_max=LARGE,
    ),
    *_both(
        "writer of 1 entry that renews its term, 1 takeover; 1 lost metadata answer",
        _ONE_OF_TWO,
        job=_BOUNDED,
        writer=RenewingBooks,
        lost_settlements=1,
    ),
    *_both("writer of 1 entry, 1 takeover; 1 power cut", _ONE_OF_TWO, job=_BOUNDED, power_cuts=1),
    *_both("writer of 1 entry, 1 spare, 1 takeover; 1 break", _ONE_OF_TWO, job=_BOUNDED, spares=1, breaks=1),
    *_both("writer of 1 entry, 1 spare, 1 takeover; 1 break", _BOTH, job=_BOUNDED, spares=1, breaks=1),
    *_both("writer of 1 entry, 1 takeover that writes nothing", _THREE, job=_BOUNDED, takers=(0,)),
    *_both(
        "writer of 2 entries, 1 spare, 1 takeover; 2 breaks",
        _ONE_OF_TWO,
        job=_WALKS,
        entries=2,
        spares=1,
        breaks=2,
    ),
    *_both(
        "writer of 2 entries that renews its term and rolls, 1 spare, 2 takeovers; 2 breaks, 1 power cut",
        _THREE,
        job=_WALKS,
        writer=RenewingAndRollingBooks,
        entries=2,
        spares=1,
        takers=(1, 1),
        breaks=2,
        power_cuts=1,
    ),
)


def _canary(name: str, kept: FullCopies, broken: dict[str, Any], *, promise: str = "I9", **given: Any) -> Canary:
    """One broken rule, in a setting with E = Qw = 2 and Qa = 1."""

    def make(is_broken: bool) -> Setting:
        return with_books(kept, name, _ONE_OF_TWO, **(given | (broken if is_broken else {})))()

    return Canary(f"stream: {name}", promise, make)


BOOKS_CANARIES: tuple[Canary, ...] = (
    _canary("a takeover that owes nothing", _RECORDED, {"taker": OwesNothing}, takers=(0,)),
    _canary("a takeover that owes nothing, where copies are required", _REQUIRED, {"taker": OwesNothing}, takers=(0,)),
    _canary("a takeover that does not record what it is told", _RECORDED, {"taker": RecordsNothing}, takers=(0,)),
    _canary("no answer taken for all copies", _RECORDED, {"taker": TakesSilenceForCopies}, takers=(0,)),
    _canary(
        "the members asked that a takeover has replaced",
        _RECORDED,
        {"taker": AsksTheOldMembers},
        takers=(0,),
        spares=1,
        breaks=1,
    ),
    _canary(
        "copies told of before they are durable",
        _RECORDED,
        {"bookie": TellsOfCopiesBeforeTheSync},
        takers=(0,),
        power_cuts=1,
    ),
    _canary("a term taken for full that is acknowledged", _REQUIRED, {"writer": CountsTermsFromTheLac}, takers=()),
    _canary(
        "a term's ensemble changed before the joiner has the copies",
        _REQUIRED,
        {"writer": ChangesTermsBeforeTheCopy},
        promise="I1",
        takers=(),
        entries=2,
        spares=1,
        breaks=1,
    ),
    _canary(
        "a change of a term's ensemble that owes what the replaced bookie lacks",
        _RECORDED,
        {"writer": OwesWhatTheReplacedLacksOfATerm},
        takers=(),
        entries=2,
        spares=1,
        breaks=1,
    ),
    _canary(
        "a roll that owes nothing",
        _RECORDED,
        {"writer": RollsWithoutOwing},
        writer=RollingBooks,
        takers=(),
        entries=2,
    ),
    _canary("a rest that owes nothing", _RECORDED, {"writer": RestsWithoutOwing}, takers=()),
    _canary("a renewal that owes nothing", _RECORDED, {"writer": RenewsWithoutOwing}, writer=RenewingBooks, takers=()),
    _canary(
        "a renewal before the copies that are required",
        _REQUIRED,
        {"writer": RenewsBeforeTheCopies},
        writer=RenewingBooks,
        takers=(),
    ),
)
