import random
from collections import Counter

import pytest
from octavo.client.placement import place_ensemble
from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId

BOOKIES = [BookieId(f"b{number}") for number in range(6)]
ELSEWHERE = BookieId("elsewhere")


def test_an_ensemble_is_distinct_writable_bookies_and_none_to_avoid() -> None:
    rng = random.Random(1)
    for _ in range(200):
        ensemble = place_ensemble(BOOKIES, 3, rng=rng, avoid=[BOOKIES[0], ELSEWHERE])
        assert len(set(ensemble)) == 3
        assert set(ensemble) <= set(BOOKIES) - {"b0"}


def test_every_bookie_is_as_likely_at_every_position() -> None:
    rng = random.Random(2)
    seen = [Counter[BookieId]() for _ in range(3)]
    for _ in range(6000):
        for position, bookie_id in enumerate(place_ensemble(BOOKIES, 3, rng=rng)):
            seen[position][bookie_id] += 1
    assert all(850 < counter[bookie_id] < 1150 for counter in seen for bookie_id in BOOKIES)


def test_the_order_in_which_bookies_are_listed_does_not_matter() -> None:
    assert place_ensemble(BOOKIES, 4, rng=random.Random(3)) == place_ensemble(BOOKIES[::-1], 4, rng=random.Random(3))


def test_too_few_bookies_are_counted_in_the_error() -> None:
    with pytest.raises(NotEnoughBookiesError, match=r"3 writable bookies are needed, there are 2") as caught:
        place_ensemble(BOOKIES[:3], 3, rng=random.Random(0), avoid=BOOKIES[1:2])
    assert "b1" in caught.value.message
    assert caught.value.retryable
