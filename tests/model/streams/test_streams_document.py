"""docs/streams.md: its examples are played. The history of a stream's metadata goes through the real changes, the
takeover through the model with the production machines, where every promise holds after each step.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from model.engine.exchange import id_text
from model.engine.renaming import BOOKIE_NAMES, bookie_id, bookie_index
from model.engine.world import World
from model.streams.settings import stream_metadata, taken_over
from octavo.metadata.ledger.decisions import Write
from octavo.metadata.stream.changes import (
    BeginTakeover,
    ChangeFragment,
    OpenTerm,
    RenewTerm,
    Rest,
    StreamChange,
    TermEnd,
    Truncate,
)
from octavo.metadata.stream.model import StreamFragment, StreamMetadata, position_in
from octavo.protocol.ids import EntryId
from octavo.protocol.places import place
from octavo.protocol.quorums import Quorums
from support.tree import ROOT

DOCUMENT = (ROOT / "docs" / "streams.md").read_text(encoding="utf-8")


def block(heading: str) -> list[str]:
    """The lines of the first code block below a heading."""
    found = re.search(rf"\n#+ {re.escape(heading)}\n.*?\n```\n(.*?)\n```\n", DOCUMENT, re.DOTALL)
    assert found is not None, heading
    return found[1].splitlines()


# --- positions and places ---------------------------------------------------------------------------------------------


def fragment_text(fragment: StreamFragment) -> str:
    bookies = "".join(BOOKIE_NAMES[bookie_index(name)] for name in fragment.bookies)
    return f"[{fragment.first_position} = {id_text(fragment.first_entry_id)}: {bookies}]"


def stream_text(stream: StreamMetadata) -> str:
    fragments = " ".join(map(fragment_text, stream.fragments))
    end = "" if stream.end_position is None else f", end {stream.end_position}"
    start = f", start {stream.start}" if stream.start else ""
    return f"{stream.state.name} of term {stream.term}{end}{start} {fragments}"


def changed(stream: StreamMetadata, change: StreamChange) -> StreamMetadata:
    decision = change.decide(stream)
    assert isinstance(decision, Write), decision
    return decision.metadata


def fragment_from(base: StreamFragment, entry_id: EntryId, members: tuple[int, ...]) -> StreamFragment:
    position = position_in(base, entry_id)
    bookies = tuple(map(bookie_id, members))
    return replace(base, first_entry_id=entry_id, first_position=position, bookies=bookies, length_before=position)


def history() -> Iterator[tuple[str, StreamMetadata]]:
    """A stream of entries of one byte, so that its length is the number of its entries."""
    stream = stream_metadata(Quorums(3, 3, 2))
    yield "created", stream
    base = stream.last_fragment
    stream = changed(stream, ChangeFragment(base, fragment_from(base, place(1, 5), (0, 1, 3))))
    yield "d replaces c", stream
    base = stream.last_fragment
    stream = changed(stream, ChangeFragment(base, fragment_from(base, place(1, 8), (0, 1, 3))))
    yield "roll", stream
    stream = changed(stream, BeginTakeover(1))
    yield "BeginTakeover(1)", stream
    last = stream.last_fragment
    stream = changed(stream, OpenTerm(last, (), TermEnd(place(1, 9), 10), "second", last))
    yield "OpenTerm(2)", stream
    last = stream.last_fragment
    stream = changed(stream, RenewTerm(last, TermEnd(place(2, 2), 13), "second again", last))
    yield "RenewTerm(3)", stream
    last = stream.last_fragment
    nothing_written = TermEnd(EntryId(place(3, 0) - 1), 13)
    stream = changed(stream, Rest(last, nothing_written))
    yield "Rest", stream
    stream = changed(stream, OpenTerm(last, (), nothing_written, "third", last))
    yield "OpenTerm(4)", stream
    stream = changed(stream, Truncate(6))
    yield "Truncate(6)", stream


def test_the_history_of_a_stream_is_what_the_changes_make() -> None:
    assert block("Positions and places") == [f"{name:<17} {stream_text(stream)}" for name, stream in history()]


def test_the_positions_of_that_history_have_the_places_of_the_table() -> None:
    *_, (_, stream) = history()
    rows = re.findall(r"^\| (\d+) \| (\(\d+,\d+\)) \| ([0-9,]+) \|", DOCUMENT, re.MULTILINE)
    assert len(rows) >= 4
    for position, text, number in rows:
        known = stream.place_at(int(position))
        assert known is not None
        assert id_text(known) == text
        assert known == int(number.replace(",", ""))


# --- takeover ---------------------------------------------------------------------------------------------------------


def test_the_takeover_of_the_example_can_be_played_and_breaks_no_promise() -> None:
    world = World(taken_over("the example", (3, 3, 2), takers=(2,))())
    [state] = map(world.representative, world.initial_states())
    steps = [line.split(maxsplit=1)[1] for line in block("Example") if line[:3].strip().isdecimal()]
    assert len(steps) > 20
    for step in steps:
        [state] = [after for action, after in world.successors(state) if world.describe_action(state, action) == step]
        assert world.violation(state) is None
    last = [line.strip() for line in block("Example") if line.startswith("    ")]
    described = world.describe_state(state)
    assert [line for line in described if line.startswith(("metadata", "bookie"))] == last
