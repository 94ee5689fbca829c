"""Who may have something looked up while answers fill the memory set aside for them: the rules, by tables."""

import random

import pytest
from octavo.bookie.memory.answer_budget import (
    GRANT_BYTES_MIN,
    STALLED_SECONDS_MAX,
    STALLED_SECONDS_MIN,
    AnswerBudget,
    Grant,
    Share,
)

MIB = 1 << 20
ENTRY = 4 * MIB


def holding(budget: AnswerBudget, *unsent: int, now: float = 0.0) -> list[Share]:
    """Shares with these numbers of unsent bytes."""
    shares = [Share() for _ in unsent]
    for share, size in zip(shares, unsent, strict=True):
        budget.observe(share, unsent=size, taken=0, now=now)
    return shares


@pytest.mark.parametrize(
    ("own", "others", "may"),
    [
        # A connection that holds nothing needs room for one largest entry, whatever the others hold.
        (0, 0, True),
        (0, 96, True),
        (0, 97, False),
        # A connection that holds something may hold a sixth of what is free: 100 MiB less all that is held.
        (1, 0, True),
        (11, 0, False),
        (10, 0, True),
        (1, 68, True),
        (1, 70, False),
        (8, 20, True),
        (8, 21, False),
    ],
)
def test_a_look_up_begins_if_there_is_room_and_its_share_is_small_beside_it(own: int, others: int, may: bool) -> None:
    budget = AnswerBudget(100 * MIB)
    (share,) = holding(budget, own * MIB)
    holding(budget, others * MIB)
    grant = budget.grant(share, MIB, entry_bytes_min=ENTRY)
    assert (grant is not None) == may
    assert share.held == own * MIB + (ENTRY if may else 0)
    budget.check_invariants()


@pytest.mark.parametrize(
    ("free", "wanted", "granted"),
    [
        (256 * MIB, MIB, MIB),
        (256 * MIB, 7 * MIB, 4 * MIB),
        (64 * MIB, 4 * MIB, MIB),
        (8 * MIB, 4 * MIB, 128 * 1024),
        (ENTRY, 4 * MIB, GRANT_BYTES_MIN),
        (ENTRY, 0, 0),
    ],
)
def test_answers_get_smaller_as_room_gets_scarce(free: int, wanted: int, granted: int) -> None:
    budget = AnswerBudget(256 * MIB)
    holding(budget, 256 * MIB - free)
    assert budget.grant(Share(), wanted, entry_bytes_min=ENTRY) == Grant(granted, max(granted, ENTRY))


def test_what_comes_beside_the_entries_is_reserved_too() -> None:
    budget, share = AnswerBudget(100 * MIB), Share()
    grant = budget.grant(share, 6 * MIB, entry_bytes_min=ENTRY, other_bytes=ENTRY)
    assert grant == Grant(100 * MIB // 64, 2 * ENTRY)
    budget.release(share, grant)
    assert (budget.held, budget.holding) == (0, [])


def test_a_client_that_reads_its_answers_is_served_however_many_others_stall() -> None:
    """Each stalled peer takes whatever it is given, in turns, until none gets anything; then a fast one comes."""
    for peers in (1, 2, 10, 100, 300):
        budget = AnswerBudget(256 * MIB)
        shares = [Share() for _ in range(peers)]
        served = True
        while served:
            served = False
            for share in shares:
                if grant := budget.grant(share, MIB, entry_bytes_min=ENTRY):
                    budget.release(share, grant)
                    budget.observe(share, unsent=share.unsent + grant.bytes_max, taken=0, now=0.0)
                    served = True
                budget.check_invariants()
        assert budget.held <= budget.bytes_max
        quick = budget.grant(Share(), MIB, entry_bytes_min=ENTRY)
        assert quick is not None, peers
        assert quick.bytes_max >= GRANT_BYTES_MIN


def test_never_more_is_held_than_there_is_whatever_happens() -> None:
    rng = random.Random(1)
    for _ in range(50):
        budget = AnswerBudget(rng.randrange(32, 300) * MIB)
        shares = [Share() for _ in range(rng.randrange(1, 40))]
        grants: list[tuple[Share, Grant]] = []
        for step in range(400):
            share = rng.choice(shares)
            chance = rng.random()
            if chance < 0.6:
                if grant := budget.grant(
                    share, rng.randrange(8 * MIB), entry_bytes_min=ENTRY, other_bytes=rng.choice((0, ENTRY))
                ):
                    grants.append((share, grant))
            elif chance < 0.85 and grants:
                share, grant = grants.pop(rng.randrange(len(grants)))
                budget.release(share, grant)
                budget.observe(share, unsent=share.unsent + rng.randrange(grant.reserved), taken=0, now=step)
            elif chance < 0.95:
                budget.observe(share, unsent=rng.randrange(share.unsent + 1), taken=step, now=step)
            else:
                budget.forget(share)
                grants = [(other, grant) for other, grant in grants if other is not share]
            budget.check_invariants()
            assert budget.held <= budget.bytes_max


@pytest.mark.parametrize(
    ("seconds", "wanted", "out"),
    [
        (STALLED_SECONDS_MIN - 1, True, []),
        (STALLED_SECONDS_MIN, False, []),
        (STALLED_SECONDS_MIN, True, ["large"]),
        (STALLED_SECONDS_MAX, False, ["small", "large"]),
        (STALLED_SECONDS_MAX, True, ["small", "large"]),
    ],
)
def test_a_client_that_reads_nothing_is_evicted_late_or_sooner_when_its_memory_is_wanted(
    seconds: float, wanted: bool, out: list[str]
) -> None:
    budget = AnswerBudget(100 * MIB)
    small, large, slow, busy = holding(budget, MIB, 20 * MIB, 30 * MIB, 0)
    assert budget.grant(busy, MIB, entry_bytes_min=ENTRY)  # it holds something, but nothing that it could take
    for second in range(1, int(seconds) + 1):
        budget.observe(slow, unsent=30 * MIB, taken=second, now=second)
        budget.observe(small, unsent=MIB, taken=0, now=second)
    names = {small: "small", large: "large", slow: "slow", busy: "busy"}
    assert [names[share] for share in budget.stalled(seconds, memory_is_wanted=wanted)] == out


def test_time_in_which_there_was_nothing_to_take_does_not_count() -> None:
    budget = AnswerBudget(100 * MIB)
    (share,) = holding(budget, MIB)
    budget.observe(share, unsent=0, taken=MIB, now=1.0)
    budget.observe(share, unsent=MIB, taken=MIB, now=1000.0)
    assert budget.stalled(1000.0 + STALLED_SECONDS_MAX - 1, memory_is_wanted=True) == [share]
    assert not budget.stalled(1000.0 + STALLED_SECONDS_MIN - 1, memory_is_wanted=True)
