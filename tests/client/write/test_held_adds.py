"""Adds held until every lower id is there, against the obvious model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.client.write.front.held_adds import AlreadyAddedError, HeldAdds, TooFarAheadError


def test_ids_in_order_go_on_at_once() -> None:
    adds: HeldAdds[str] = HeldAdds(ahead_max=4, bytes_max=100)
    for entry_id in range(10):
        (gone,) = adds.offer(entry_id, b"x", str(entry_id))
        assert (gone.entry_id, gone.tag) == (entry_id, str(entry_id))
    assert adds.missing == 10


def test_the_missing_id_takes_with_it_what_was_held_right_behind() -> None:
    adds: HeldAdds[None] = HeldAdds(ahead_max=10, bytes_max=100)
    for entry_id in (2, 1, 5):
        assert adds.offer(entry_id, b"x", None) == []
    assert [add.entry_id for add in adds.offer(0, b"x", None)] == [0, 1, 2]
    assert (adds.missing, adds.held_ids) == (3, [5])


def test_an_id_is_taken_once() -> None:
    adds: HeldAdds[None] = HeldAdds(ahead_max=10, bytes_max=100)
    adds.offer(0, b"x", None)
    adds.offer(2, b"x", None)
    for entry_id in (0, 2):
        with pytest.raises(AlreadyAddedError):
            adds.offer(entry_id, b"x", None)


@pytest.mark.parametrize(("entry_id", "size", "reason"), [(4, 1, "at most 3"), (3, 7, "more than 10 bytes")])
def test_what_is_too_far_ahead_is_refused_and_the_missing_one_never(entry_id: int, size: int, reason: str) -> None:
    adds: HeldAdds[None] = HeldAdds(ahead_max=4, bytes_max=10)
    adds.offer(1, b"1234", None)
    with pytest.raises(TooFarAheadError, match=reason):
        adds.offer(entry_id, bytes(size), None)
    adds.check_invariants()
    assert len(adds.offer(0, bytes(1000), None)) == 2
    assert adds.offer(entry_id, bytes(size), None) == []


def test_what_is_given_up_is_gone() -> None:
    adds: HeldAdds[None] = HeldAdds(ahead_max=4, bytes_max=10)
    adds.offer(3, bytes(9), None)
    adds.offer(1, b"x", None)
    assert [add.entry_id for add in adds.give_up()] == [1, 3]
    assert adds.give_up() == []
    adds.offer(2, bytes(10), None)
    adds.check_invariants()


@given(
    st.integers(1, 6),
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 8)), max_size=60),
)
def test_whatever_order_ids_come_in_they_go_on_once_and_in_order(
    ahead_max: int, bytes_max: int, offers: list[tuple[int, int]]
) -> None:
    adds: HeldAdds[int] = HeldAdds(ahead_max=ahead_max, bytes_max=bytes_max)
    brought: dict[int, int] = {}
    gone: list[int] = []
    for number, (entry_id, size) in enumerate(offers):
        missing = next(candidate for candidate in range(17) if candidate not in brought)
        held_bytes = sum(size for held, size in brought.items() if held > missing)
        try:
            going = adds.offer(entry_id, bytes(size), number)
        except AlreadyAddedError:
            assert entry_id in brought
        except TooFarAheadError:
            assert entry_id not in brought
            assert entry_id > missing
            assert entry_id - missing >= ahead_max or held_bytes + size > bytes_max
        else:
            assert entry_id not in brought
            brought[entry_id] = size
            gone += [add.entry_id for add in going]
        adds.check_invariants()
        assert gone == list(range(adds.missing))
        assert adds.held_ids == sorted(brought.keys() - set(gone))
