"""What a bookie may say, by the clock and by its registration (rule B10)."""

import asyncio
from dataclasses import dataclass, replace

import pytest
from octavo.bookie.server.authority import NotRegisteredError, Standing
from octavo.bookie.server.replies import Replies
from octavo.bookie.server.request_counts import RequestCounts
from octavo.bookie.storage.ledger_state import PackedStates
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.metadata.cluster.registration import UNREGISTERED_SECONDS_MAX
from octavo.protocol.errors import BookieShuttingDownError, OctavoError
from octavo.protocol.frames import FrameDecoder, unpack_body
from octavo.protocol.messages import (
    Add,
    AddFlag,
    Forced,
    LacWritten,
    ListEntries,
    Op,
    Read,
    ReadFlag,
    ReadLac,
    Request,
    decode_reply,
)

LEASE = 10.0


@dataclass
class Lease:
    """A registration whose end a test decides."""

    now: "Now"
    ends_at: float
    slept: bool = False

    @property
    def remaining_seconds(self) -> float:
        return self.ends_at - self.now()


class Now:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
def lease(now: Now) -> Lease:
    return Lease(now, now() + LEASE)


@pytest.fixture
def standing(now: Now, lease: Lease) -> Standing:
    made = Standing(now)
    made.registered(lease)
    return made


def says(standing: Standing, now: Now) -> str:
    """The standing, by what the bookie may say."""
    assert standing.may_deny() <= standing.may_confirm(now()), "who may deny may confirm"
    return "sure" if standing.may_deny() else "alone" if standing.may_confirm(now()) else "away"


def test_a_bookie_is_sure_until_its_registration_may_have_ended(standing: Standing, now: Now) -> None:
    now.seconds += LEASE - 0.01
    assert says(standing, now) == "sure"
    now.seconds += 0.01
    assert says(standing, now) == "alone"


def test_a_renewal_is_noticed_when_it_is_needed(standing: Standing, now: Now, lease: Lease) -> None:
    lease.ends_at += 5
    now.seconds += LEASE + 1
    assert now() >= standing.sure_until
    assert says(standing, now) == "sure"
    assert standing.sure_until == lease.ends_at


def test_alone_ends(standing: Standing, now: Now, lease: Lease) -> None:
    now.seconds = lease.ends_at + UNREGISTERED_SECONDS_MAX - 0.01
    assert says(standing, now) == "alone"
    now.seconds += 0.01
    assert says(standing, now) == "away"
    standing.registered(Lease(now, now() + LEASE))
    assert says(standing, now) == "sure"


def test_a_process_that_slept_is_away_until_it_has_registered(standing: Standing, now: Now, lease: Lease) -> None:
    now.seconds += LEASE
    lease.slept = True
    assert says(standing, now) == "away"
    standing.registered(Lease(now, now() + LEASE))
    assert says(standing, now) == "sure"


def test_a_bookie_that_has_not_registered_yet_is_alone(now: Now) -> None:
    assert says(Standing(now), now) == "alone"


def test_an_id_that_is_lost_is_lost(standing: Standing, now: Now) -> None:
    standing.lost()
    assert says(standing, now) == "away"
    standing.registered(Lease(now, now() + LEASE))
    assert says(standing, now) == "away"


@pytest.fixture
def ledgers() -> LedgerTable:
    """This bookie has taken part in ledger 7."""
    table = LedgerTable(PackedStates(), hot_max=10)
    state = table.get(7)
    state.ledger_key, state.highest_plus_one = b"key", 5
    return table


ADD = Add(7, b"key", AddFlag(0), 0, [])
READ = Read(7, b"key", ReadFlag(0), 0, 0, 9, 1, (0,), 10, 1000)
READ_LAC = ReadLac(7, b"key", ReadFlag(0), 0, None, 0, 0, 0)


@pytest.mark.parametrize(
    ("request_", "served"),
    [
        (ADD, True),
        (replace(ADD, ledger_id=8), False),
        (replace(ADD, term=1), False),
        (replace(ADD, flags=AddFlag.RECOVERY), False),
        (READ, True),
        (replace(READ, flags=ReadFlag.FENCE), False),
        (READ_LAC, True),
        (replace(READ_LAC, flags=ReadFlag.FENCE), False),
        (ListEntries(7, 0, 9), False),
    ],
)
def test_what_is_served_alone(
    standing: Standing, now: Now, ledgers: LedgerTable, request_: Request, served: bool
) -> None:
    standing.check(request_, now(), ledgers)  # all of it while the bookie is sure
    now.seconds += LEASE + 1
    if served:
        standing.check(request_, now(), ledgers)
    else:
        with pytest.raises(NotRegisteredError, match="not registered"):
            standing.check(request_, now(), ledgers)


class Sent:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


@pytest.mark.parametrize(("slept", "confirmed"), [(False, True), (True, False)])
def test_an_add_that_was_accepted_before_a_pause_is_confirmed_only_if_it_may_be(
    standing: Standing, now: Now, lease: Lease, slept: bool, confirmed: bool
) -> None:
    """The process goes on in the middle of a turn, with the sync completed: the clock shows it."""
    counts = RequestCounts(now)
    replies = Replies(lambda: None, counts, standing)
    replies.connected(Sent())  # type: ignore[arg-type]
    replies.begin()
    now.seconds += LEASE + 1
    lease.slept = slept
    replies.added(1, replies.began_at, None)
    assert counts.add_seconds.count == confirmed
    assert sum(counts.refused.values()) == (not confirmed)


@pytest.mark.parametrize(("slept", "confirmed"), [(False, True), (True, False)])
async def test_what_a_pack_has_done_is_confirmed_only_if_it_may_be_when_the_answer_leaves(
    standing: Standing, now: Now, lease: Lease, slept: bool, confirmed: bool
) -> None:
    """The process is paused between the sync and the end of the turn, in which one answer is sent for all."""
    counts = RequestCounts(now)
    replies, sent = Replies(lambda: None, counts, standing), Sent()
    replies.connected(sent)  # type: ignore[arg-type]
    replies.begin_pack(5, 3)
    replies.added(5, replies.began_at, None)
    replies.added(6, replies.began_at, None)
    assert sent.data == b""
    now.seconds += LEASE + 1
    lease.slept = slept
    await asyncio.sleep(0)
    answers = [unpack_body(body) for body in FrameDecoder().feed(sent.data)]
    if confirmed:
        assert answers == [[5, int(Op.PACK), 0, [[5, 6]]]]
    else:
        assert [(request_id, type(error)) for request_id, error in map(decode_reply, answers)] == [
            (5, BookieShuttingDownError),
            (6, BookieShuttingDownError),
        ]
        assert all(
            isinstance(error, OctavoError) and error.may_have_happened for _, error in map(decode_reply, answers)
        )
    assert sum(counts.refused.values()) == (0 if confirmed else 2)
    assert replies.outstanding == 1
    await asyncio.sleep(0)
    assert len(list(FrameDecoder().feed(sent.data))) == len(answers), "nothing is answered twice"


async def forced() -> Forced:
    return Forced()


async def test_the_refusal_of_a_packs_request_names_its_own_operation(
    standing: Standing, now: Now, lease: Lease
) -> None:
    """Each kind that a pack may hold: what the counts and the answers say of it must not depend on the pack."""
    counts = RequestCounts(now)
    replies, sent = Replies(lambda: None, counts, standing), Sent()
    replies.connected(sent)  # type: ignore[arg-type]
    replies.begin_pack(5, 3)
    replies.added(5, replies.began_at, None)
    replies.finish(LacWritten(), 6)
    now.seconds += LEASE + 1
    lease.slept = True
    await replies.start(7, Op.FORCE, forced(), None)
    replies.send_done()
    assert [answer[:2] for answer in map(unpack_body, FrameDecoder().feed(sent.data))] == [
        [5, int(Op.ADD)],
        [6, int(Op.WRITE_LAC)],
        [7, int(Op.FORCE)],
    ]
    assert {op: count for (op, _), count in counts.refused.items()} == {Op.ADD: 1, Op.WRITE_LAC: 1, Op.FORCE: 1}
    assert replies.outstanding == 0
