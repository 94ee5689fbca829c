"""Finds out whether an add in doubt was made, as far as metadata and bookies show (rule P6).

An add was sent to positions that never change. They are in the log if they lie below the end of its writer's term, but
for those that an operator has given up since: their segment was lost, no entry will ever be there, and the add is as
good as never made. That holds whether or not the term is over.
"""

from collections.abc import Awaitable, Callable, Sequence

from octavo.client.log.seam.view import LogView
from octavo.protocol.errors import Doubt, InvalidArgumentError, LogDamagedError, OctavoError


def doubt_of(error: object, view: LogView) -> Doubt | None:
    """The doubt about an add to this log that failed with ``error``; None if nothing of it was sent. Raises
    :class:`InvalidArgumentError` for any other error."""
    if not isinstance(error, OctavoError):
        raise InvalidArgumentError(f"this is no error of an add to a log: {error!r}")
    doubt = error.doubt
    if doubt is None:
        if not error.may_have_happened:
            return None
        raise InvalidArgumentError("the error is not of an add that was sent to a log")
    if doubt.log_id != view.log_id:
        raise InvalidArgumentError(f"the add was to another log than {view.name} ({view.log_id})")
    return doubt


async def count_added(view: LogView, doubt: Doubt, read: Callable[[int, int], Awaitable[object]]) -> int | None:
    """How many payloads of the add are in the log, counted from its beginning; None while that is not known. ``read``
    reads a range of positions. Raises as ``Log.added``."""
    while True:
        await view.read_metadata()
        stop = await view.end_of_term(doubt.term)
        if stop is not None:
            count: int | None = max(0, doubt.sent - max(0, doubt.position + 1 - stop))
            break
        count = await _seen(view, doubt, read)
        if count is None:
            break
        # A takeover may have begun before the end was asked and be unknown here: what was seen may be the next
        # leader's entry. It is the add only if its term was the present one after that (rule P6).
        await view.read_metadata()
        if view.term == doubt.term:
            break
    return count and _kept(view, doubt.position + 1 - doubt.sent, count)


async def _seen(view: LogView, doubt: Doubt, read: Callable[[int, int], Awaitable[object]]) -> int | None:
    """The same while the term goes on, and before any position is given up."""
    if view.term != doubt.term:
        return None
    if view.gap_at(doubt.position) is not None:
        return doubt.sent
    end: int | None
    try:
        # Not by the end that the handle remembers: an operator may have accepted the loss of what lies before it.
        end = await view.end_now(doubt.position + 1)
    except OctavoError:
        end = None
    if end is not None and doubt.position >= end:
        return None
    try:
        await read(doubt.position, doubt.position)  # an entry of another ledger is not this add
    except LogDamagedError:
        raise
    except OctavoError:
        pass  # it was truncated, or no bookie answers now; where it is below the end, that is known all the same
    return None if end is None else doubt.sent


def _kept(view: LogView, first: int, count: int) -> int:
    """How many of these positions, counted from the first one, were not given up."""
    lost = first_lost(first, count, view.gaps)
    if lost is None:
        return count
    if lost[1] < first + count - 1:
        raise LogDamagedError(
            f"log {view.name}: of the add at positions {first} to {first + count - 1} the positions {lost[0]} to "
            f"{lost[1]} were lost and given up, and those behind them are in the log: add only the payloads that are "
            "lost again, if their order does not matter",
            may_have_happened=True,
        )
    return lost[0] - first


def check_kept(view: LogView, position: int) -> None:
    """Raise :class:`LogDamagedError` for a position that was given up."""
    gap = view.gap_at(position)
    if gap is not None:
        raise LogDamagedError(
            f"log {view.name}: positions {gap[0]} to {gap[1]} were lost and given up; read on at {gap[1] + 1}"
        )


def first_lost(first: int, count: int, gaps: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Of so many positions from ``first`` on those that were given up first, both inclusive; None if none was. ``gaps``
    are in order, and neighbouring ones count as one."""
    last, found = first + count - 1, None
    for gap_first, gap_last in gaps:
        if gap_last < first or gap_first > last:
            continue
        if found is None:
            found = max(first, gap_first), min(last, gap_last)
        elif gap_first <= found[1] + 1:
            found = found[0], max(found[1], min(last, gap_last))
    return found
