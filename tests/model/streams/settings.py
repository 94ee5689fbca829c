"""The settings of the model in which a stream is taken over, and rules of terms broken on purpose (rules T1 to T12)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from model.engine import leftovers
from model.engine.exchange import Add
from model.engine.renaming import bookie_id
from model.engine.sealing import LEDGER
from model.engine.setting import Placement, Setting
from model.ledgers.bookie import Bookie, BookieState
from model.ledgers.canaries import Canary
from model.ledgers.client import Client
from model.ledgers.promises import Promises
from model.ledgers.settings import LARGE, Job
from model.streams.broken_streams import (
    AcknowledgesWhileRenewing,
    AddsBeforeItsTermStands,
    AnyLacCounts,
    ChangesWhateverIsOpen,
    CommitsStreamFragmentsEarly,
    CountsLacsOfLaterTerms,
    FencesBeforeItBegins,
    FencesLikeAFlag,
    FencesTheNextTerm,
    ForgetsTermsInAPowerCut,
    GoesOnBesideALaterTerm,
    LastFenceCounts,
    ReadsTermsWithoutFence,
    RollsAboveTheLac,
    TakesOverOneShort,
    TakesRivalsTermForItsOwn,
    TermOfTheLacItself,
)
from model.streams.floored_bookie import FenceEndsDoubt, FlooredBookie
from model.streams.long_writer import Renewing, RenewingAndRolling, Rolling
from model.streams.promises import StreamPromises
from model.streams.taker import Taker
from model.streams.writer import StreamWriter, payload_of, sealed_at
from octavo.metadata.ledger.debts import FullCopies
from octavo.metadata.ledger.model import LedgerState
from octavo.metadata.stream.model import StreamFragment, StreamKey, StreamMetadata
from octavo.protocol.entries import Digest, header_of
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums

_CREATED_AT = datetime(2024, 2, 29, tzinfo=UTC)
_KEY = StreamKey(Digest.CRC32C, b"v" * 32, b"s" * 16)


@dataclass(frozen=True)
class StreamSetting(Setting):
    """A setting of one stream."""

    promises: type[StreamPromises] = StreamPromises

    def make_promises(self) -> Promises:
        return self.promises(self.quorums, self.payloads, self.bookie)


def stream_metadata(quorums: Quorums, kept: FullCopies | None = None) -> StreamMetadata:
    """A stream whose first term is open, on the first bookies; ``kept``: its books of copies."""
    fragment = StreamFragment(
        first_entry_id=place(1, 0),
        first_position=0,
        bookies=tuple(map(bookie_id, range(quorums.ensemble_size))),
        write_quorum=quorums.write_quorum,
        ack_quorum=quorums.ack_quorum,
        opened_at_ms=0,
    )
    return StreamMetadata(
        ledger_id=LEDGER,
        owner="creator",
        fragments=(fragment,),
        keys=(_KEY,),
        created_at=_CREATED_AT,
        full_copies=kept,
    )


def taken_over(
    what: str,
    sizes: tuple[int, int, int],
    *,
    writer: type[StreamWriter] | None = StreamWriter,
    taker: type[Taker] = Taker,
    bookie: type[Bookie] = Bookie,
    promises: type[StreamPromises] = StreamPromises,
    spares: int = 0,
    entries: int = 1,
    takers: Sequence[int] = (1,),
    enders: int = 0,
    reads_ahead: int | None = 1,
    reads_at_once: bool = False,
    stays: bool = False,
    kept: FullCopies | None = None,
    **budget: int,
) -> Callable[[], StreamSetting]:
    """A writer of the first term, and clients that take over at any moment, each to write this number of entries.
    ``enders``: clients that only put the stream at rest."""
    quorums = Quorums(*sizes)
    bookies = quorums.ensemble_size + spares
    horizon = max(entries, *takers, 0)

    def clients(placement: Placement) -> Sequence[Client]:
        writers: list[Client] = []
        if writer is not None:
            writers.append(writer(placement.metadata, bookies=bookies, entries=entries, stays=stays))
        ends = [0] * enders
        return [
            *writers,
            *(
                taker(
                    quorums, bookies=bookies, horizon=horizon, entries=count, reads_ahead=reads_ahead,
                    reads_at_once=reads_at_once, stays=stays, only_ends=at >= len(takers), index=len(writers) + at,
                )
                for at, count in enumerate((*takers, *ends))
            ),
        ]  # fmt: skip

    count = (writer is not None) + len(takers) + enders
    return lambda: StreamSetting(
        f"stream: E={sizes[0]} Qw={sizes[1]} Qa={sizes[2]}, {what}",
        quorums,
        bookies,
        lambda: [Placement(stream_metadata(quorums, kept), (BookieState(),) * bookies)],
        clients,
        (),
        budget={name.replace("_", " "): times for name, times in budget.items()},
        bookie=bookie(syncs=bool({"power_cuts", "kills"} & set(budget))),
        interchangeable_clients=tuple((at,) for at in range(count)),
        symmetric=not quorums.striped,
        settles=False,
        promises=promises,
    )


def left_behind(what: str, *, entries: int = 1, takers: Sequence[int], **given: Any) -> Callable[[], StreamSetting]:
    """Takeovers after a dead writer of the first term: of everything that it can leave behind
    (:mod:`model.engine.leftovers`)."""
    quorums = leftovers.QUORUMS

    def clients(_: Placement) -> Sequence[Client]:
        horizon = max(entries, *takers)
        return [
            Taker(
                quorums,
                bookies=leftovers.BOOKIES,
                horizon=horizon,
                entries=count,
                reads_ahead=1,
                index=at,
                writes_as=1 + at,
            )
            for at, count in enumerate(takers)
        ]

    return lambda: StreamSetting(
        f"stream: E=3 Qw=3 Qa=2, {what}",
        quorums,
        leftovers.BOOKIES,
        lambda: map(_in_the_first_term, leftovers.placements(entries, replaced_are_asked=False, **given)),
        clients,
        (),
        interchangeable_clients=tuple((at,) for at in range(len(takers))),
        settles=False,
    )


def _in_the_first_term(placement: Placement) -> Placement:
    """What the writer of a ledger left, left by the writer of the first term of a stream."""
    ledger = placement.metadata
    quorums = Quorums(ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum)
    stream = stream_metadata(quorums)
    first = stream.last_fragment
    for fragment in ledger.fragments[1:]:
        length = sum(len(payload_of(0, offset)) for offset in range(fragment.first_entry_id))
        stream = stream.with_fragment(
            replace(
                first,
                first_entry_id=place(1, fragment.first_entry_id),
                first_position=int(fragment.first_entry_id),
                bookies=fragment.bookies,
                length_before=length,
            )
        )
    bookies = tuple(
        replace(bookie, held=tuple(map(_at_its_place, bookie.held)), fenced_term=int(bookie.fenced))
        for bookie in placement.bookies
    )
    messages = tuple(
        replace(message, request=Add(tuple(map(_at_its_place, message.request.entries)), recovery=False, term=1))
        for message in placement.messages
        if isinstance(message.request, Add)
    )
    is_begun = ledger.state is LedgerState.IN_RECOVERY
    acknowledged = -1 if placement.acknowledged < 0 else place(1, placement.acknowledged)
    return Placement(stream.in_recovery() if is_begun else stream, bookies, messages, acknowledged)


def _at_its_place(sealed: bytes) -> bytes:
    header = header_of(sealed)
    offset, confirmed = header.entry_id, header.last_add_confirmed_plus_one - 1
    before = sum(len(payload_of(0, one)) for one in range(offset))
    return sealed_at(place(1, offset), 0, place(1, 0) + confirmed, before)


STREAM_JOBS: tuple[Job, ...] = (
    Job(taken_over("writer of 1 entry, 1 takeover", (2, 2, 1)), quick=True),
    Job(taken_over("writer of 1 entry, 1 takeover", (2, 2, 2)), quick=True),
    Job(taken_over("2 takeovers that write 1 entry each", (2, 2, 1), writer=None, takers=(1, 1)), quick=True),
    Job(taken_over("writer of 1 entry, 1 takeover; 1 power cut", (1, 1, 1), power_cuts=1), quick=True),
    Job(taken_over("3 takeovers of 1 entry each", (1, 1, 1), writer=None, takers=(1, 1, 1)), quick=True),
    Job(taken_over("writer of 1 entry that renews its term, 1 takeover", (2, 2, 1), writer=Renewing), quick=True),
    Job(
        taken_over(
            "writer of 2 entries that renews its term, 2 takeovers",
            (1, 1, 1),
            writer=Renewing,
            entries=2,
            takers=(1, 0),
        ),
    ),
    Job(
        taken_over(
            "writer of 1 entry that renews its term, 1 takeover; 1 lost metadata answer",
            (2, 2, 2),
            writer=Renewing,
            lost_settlements=1,
        ),
    ),
    Job(taken_over("writer of 2 entries that renews its term, 1 takeover", (2, 2, 1), writer=Renewing, entries=2)),
    Job(taken_over("writer of 2 entries that renews its term, 1 takeover", (2, 2, 2), writer=Renewing, entries=2)),
    Job(
        taken_over(
            "writer of 1 entry that renews its term, 1 takeover; 1 wipe",
            (2, 2, 2),
            writer=Renewing,
            bookie=FlooredBookie,
            wipes=1,
        ),
    ),
    Job(
        taken_over(
            "2 takeovers, 1 recovery that rests; 1 wipe",
            (1, 1, 1),
            writer=None,
            takers=(1, 0),
            enders=1,
            bookie=FlooredBookie,
            wipes=1,
        ),
    ),
    Job(taken_over("writer of 2 entries that rolls, 1 takeover", (2, 2, 2), writer=Rolling, entries=2)),
    Job(
        taken_over(
            "writer of 2 entries that renews its term and rolls, 1 takeover",
            (2, 2, 2),
            writer=RenewingAndRolling,
            entries=2,
        ),
    ),
    Job(
        taken_over(
            "2 takeovers, 1 recovery that rests; 1 power cut",
            (1, 1, 1),
            writer=None,
            takers=(1, 1),
            enders=1,
            power_cuts=1,
        ),
    ),
    Job(taken_over("writer of 1 entry, 1 takeover; 1 lost metadata answer", (2, 2, 1), lost_settlements=1)),
    Job(taken_over("writer of 1 entry, 1 takeover", (3, 3, 2))),
    Job(taken_over("2 takeovers that write nothing", (3, 3, 2), writer=None, takers=(0, 0)), quick=True),
    Job(taken_over("2 takeovers, of which one writes 1 entry", (3, 3, 2), writer=None, takers=(1, 0))),
    Job(taken_over("2 takeovers that write 1 entry each", (3, 3, 2), writer=None, takers=(1, 1))),
    Job(taken_over("writer of 1 entry, 2 takeovers", (2, 2, 1), takers=(1, 0)), states_max=LARGE),
    Job(taken_over("writer of 1 entry, 2 takeovers", (2, 2, 2), takers=(1, 0)), states_max=LARGE),
    Job(taken_over("writer of 1 entry, 1 takeover, 1 recovery that rests", (2, 2, 1), enders=1), states_max=LARGE),
    Job(taken_over("writer of 1 entry, 1 spare, 1 takeover; 1 break", (2, 2, 2), spares=1, breaks=1), states_max=LARGE),
    Job(taken_over("writer of 1 entry, 1 takeover; 1 power cut", (2, 2, 1), power_cuts=1), states_max=LARGE),
    Job(taken_over("3 takeovers of 1 entry each", (2, 2, 1), writer=None, takers=(1, 1, 1)), states_max=LARGE),
    Job(
        left_behind(
            "1 takeover after a writer of 1 entry, fences, late adds", takers=(1,), fences=True, late_adds=True
        ),
        quick=True,
    ),
    Job(
        left_behind(
            "1 takeover after a writer of 2 entries; fragments at 0 and 1",
            entries=2,
            takers=(1,),
            histories=[leftovers.HISTORIES[1]],
        ),
        states_max=LARGE,
    ),
    Job(left_behind("2 takeovers after a writer of 1 entry", takers=(1, 1)), states_max=LARGE, longest=True),
    Job(
        taken_over(
            "3 takeovers of 1 entry each, 1 recovery that rests; 1 power cut",
            (2, 2, 1),
            writer=None,
            takers=(1, 1, 1),
            enders=1,
            power_cuts=1,
        ),
        walks=2000,
        steps_max=500,
    ),
    Job(
        taken_over(
            "writer of 2 entries that renews its term and rolls, 1 spare, 2 takeovers; 1 break, 1 power cut",
            (3, 3, 2),
            writer=RenewingAndRolling,
            entries=2,
            spares=1,
            takers=(1, 1),
            breaks=1,
            power_cuts=1,
        ),
        walks=2000,
        steps_max=500,
    ),
    Job(
        taken_over(
            "writer of 2 entries, 2 spares, 2 takeovers; 2 breaks, 1 lost metadata answer",
            (4, 3, 2),
            entries=2,
            spares=2,
            takers=(1, 1),
            breaks=2,
            lost_settlements=1,
        ),
        walks=2000,
        steps_max=500,
    ),
    Job(
        taken_over(
            "writer of 2 entries, 1 spare, 2 takeovers, 1 recovery that rests; 2 breaks, 1 power cut",
            (3, 3, 2),
            entries=2,
            spares=1,
            takers=(1, 1),
            enders=1,
            breaks=2,
            power_cuts=1,
        ),
        walks=2000,
        steps_max=500,
    ),
)


def canary(name: str, promise: str, sizes: tuple[int, int, int], broken: dict[str, Any], **given: Any) -> Canary:
    """One broken rule, in a setting given as for :func:`taken_over`."""

    def make(is_broken: bool) -> Setting:
        return taken_over(f"{name}", sizes, **(given | (broken if is_broken else {})))()

    return Canary(f"stream: {name}", promise, make)


STREAM_CANARIES: tuple[Canary, ...] = (
    canary("any LAC counts for any term", "N4", (3, 3, 2), {"promises": AnyLacCounts}),
    canary("a LAC's term is that of the LAC itself", "N4", (3, 3, 2), {"promises": TermOfTheLacItself}),
    canary(
        "adds before the term is known to stand",
        "N2",
        (2, 2, 1),
        {"taker": AddsBeforeItsTermStands},
        writer=None,
        takers=(1, 1),
    ),
    canary(
        "a writer's change looks at the state only",
        "I1",
        (2, 2, 1),
        {"writer": ChangesWhateverIsOpen},
        spares=1,
        breaks=1,
        lost_settlements=1,
    ),
    canary(
        "recovery reads of a term that do not fence",
        "I7",
        (3, 3, 2),
        {"taker": ReadsTermsWithoutFence},
        reads_at_once=True,
        takers=(0,),
    ),
    canary("coverage of a term off by one", "I7", (3, 3, 2), {"taker": TakesOverOneShort}, takers=(0,)),
    canary("a fence that names the term to be opened", "T2", (2, 2, 1), {"taker": FencesTheNextTerm}),
    canary("a fence before the takeover has begun", "T2", (2, 2, 1), {"taker": FencesBeforeItBegins}),
    canary(
        "a rival's term taken for one's own",
        "N2",
        (2, 2, 1),
        {"taker": TakesRivalsTermForItsOwn},
        writer=None,
        takers=(1, 1),
    ),
    canary(
        "a takeover that commits its ensemble changes early",
        "I1",
        (2, 2, 2),
        {"taker": CommitsStreamFragmentsEarly},
        spares=1,
        breaks=1,
        takers=(0,),
    ),
    canary("a fence that stops every term", "T2", (2, 2, 1), {"bookie": FencesLikeAFlag}),
    canary(
        "a late fence that lifts a higher one",
        "I7",
        (1, 1, 1),
        {"bookie": LastFenceCounts},
        writer=None,
        takers=(1, 0),
        enders=1,
    ),
    canary(
        "adds and acknowledgements while a renewal is under way",
        "I7",
        (2, 2, 1),
        {"writer": AcknowledgesWhileRenewing},
        writer=Renewing,
        entries=2,
        takers=(),
    ),
    canary(
        "a roll that begins above LAC + 1",
        "I5",
        (2, 2, 2),
        {"writer": RollsAboveTheLac},
        writer=Rolling,
        entries=2,
        takers=(0,),
    ),
    canary(
        "a takeover that counts LACs of later terms",
        "taker 1 fails an assertion",
        (2, 2, 1),
        {"taker": CountsLacsOfLaterTerms},
        writer=None,
        takers=(1, 1),
    ),
    canary(
        "a takeover that goes on beside a later term",
        "T3",
        (2, 2, 1),
        {"taker": GoesOnBesideALaterTerm},
        writer=None,
        takers=(1, 1),
    ),
    canary(
        "a fence that ends the doubt above its term",
        "I7",
        (1, 1, 1),
        {"bookie": FenceEndsDoubt},
        bookie=FlooredBookie,
        writer=None,
        takers=(1, 0),
        enders=1,
        wipes=1,
    ),
    canary("a term's fence that is not durable", "I7", (1, 1, 1), {"bookie": ForgetsTermsInAPowerCut}, power_cuts=1),
)
