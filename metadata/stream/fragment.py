"""A fragment of a stream: a run of entries of one term on one ensemble. Pure."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import field
from itertools import pairwise
from typing import Any, Self

from octavo.metadata.encoding import NO_FIELDS
from octavo.metadata.ledger.archive_word import ArchiveWords, words_problem
from octavo.metadata.ledger.checks import quorum_problem
from octavo.metadata.ledger.debts import Debt
from octavo.protocol.entries import Digest
from octavo.protocol.ids import ID_MAX, BookieId, EntryId, is_bookie_id
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.places import FIRST_TERM, OFFSET_MAX, last_place, offset_of, term_of
from octavo.protocol.quorums import Quorums, quorums_of


@dataclass(frozen=True, slots=True)
class StreamKey:
    """How the entries of some fragments are sealed. A stream has more than one key once its password was changed."""

    digest: Digest
    verifier: bytes
    """:func:`octavo.protocol.entries.make_verifier` of password and digest with :attr:`salt` (rule F0)."""
    salt: bytes
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamFragment:
    """A run of entries of one term that share one ensemble, quorums and key."""

    first_entry_id: EntryId
    """A place. Its term is that of the fragment."""
    first_position: int
    """Of the entry at that place."""
    bookies: tuple[BookieId, ...]
    """The ensemble; E is their number."""
    write_quorum: int
    ack_quorum: int
    key: int = 0
    """Index in the keys of the stream. Never falls from one fragment to the next."""
    length_before: int = 0
    """Total of the payload bytes at all positions before the first one, truncated ones included."""
    opened_at_ms: int
    """When it was begun, in milliseconds of the metadata store's clock. Never falls from one fragment to the next."""
    leader_term: int = 0
    """The first of the terms that one client opened one after another: it has renewed its term, or has taken the stream
    over from itself, and goes on with the same adds (rule T11). 0 stands for the fragment's own term."""
    debt: Debt | None = None
    """Places whose entries may have fewer copies than the write quorum (rule I9). None: not recorded
    (:mod:`octavo.metadata.ledger.debts`)."""
    archive: ArchiveWords = ()
    """The objects that hold its entries (rule J4); none: they are on bookies only."""
    unknown_fields: Mapping[str, Any] = field(default_factory=lambda: NO_FIELDS, compare=False, repr=False)
    """Stored fields that this version does not know, as decoded JSON: kept as long as the fragment is kept."""

    @property
    def term(self) -> int:
        """The term of its entries."""
        return term_of(self.first_entry_id)

    @property
    def quorums(self) -> Quorums:
        """E, Qw and Qa."""
        return quorums_of(len(self.bookies), self.write_quorum, self.ack_quorum)

    @property
    def form(self) -> tuple[int, int, int, int]:
        """E, Qw, Qa and the number of the key: the same for all fragments of a term (rule T13)."""
        return len(self.bookies), self.write_quorum, self.ack_quorum, self.key

    @property
    def first_term(self) -> int:
        """The first term of the client that wrote it (:attr:`leader_term`)."""
        return self.leader_term or self.term


def position_in(fragment: StreamFragment, entry_id: int) -> int:
    """The position of a place of ``fragment``; one below its first position for the place below its first one."""
    return fragment.first_position + entry_id - fragment.first_entry_id


class Fragments(tuple[StreamFragment, ...]):
    """Fragments of a stream, in order: each is one that metadata can hold, and follows the one before it. Both are
    checked when the sequence is made, and not again in every version of the metadata that shares it. Raises ValueError
    that names the fragment."""

    text: str | None = None
    """The stored form, once it was made or read."""
    text_before: str | None = None
    """That of all but the last fragment, if the last one was added to them."""

    def __new__(cls, fragments: Iterable[StreamFragment]) -> Self:
        made = super().__new__(cls, fragments)
        for fragment in made:
            _check_fragment(fragment)
        for one, following in pairwise(made):
            _check_follows(one, following)
        return made

    def followed_by(self, fragment: StreamFragment) -> Self:
        """With one more at the end, which alone is checked."""
        _check_fragment(fragment)
        for last in self[-1:]:
            _check_follows(last, fragment)
        made = super().__new__(type(self), (*self, fragment))
        made.text_before = self.text if self else None
        return made


def followed(fragments: tuple[StreamFragment, ...], fragment: StreamFragment) -> tuple[StreamFragment, ...]:
    """With one more at the end. If it cannot stand there, that is left for the stream itself to say."""
    if isinstance(fragments, Fragments):
        with contextlib.suppress(ValueError):
            return fragments.followed_by(fragment)
    return (*fragments, fragment)


def _check_follows(one: StreamFragment, following: StreamFragment) -> None:
    problem = following_problem(one, following)
    if problem is not None:
        raise ValueError(f"the fragment from position {following.first_position} {problem}")


def _check_fragment(fragment: StreamFragment) -> None:
    problem = _fragment_problem(fragment)
    if problem is not None:
        raise ValueError(f"the fragment from position {fragment.first_position}{problem}")
    for bookie_id in fragment.bookies:
        if not is_bookie_id(bookie_id):
            raise ValueError(f"{bookie_id!r} is not a bookie id")
    if fragment.key < 0:
        raise ValueError(f"the fragment from position {fragment.first_position} has no key")


def _fragment_problem(fragment: StreamFragment) -> str | None:
    first, bookies, term = fragment.first_entry_id, fragment.bookies, fragment.term
    if term < FIRST_TERM or offset_of(first) > OFFSET_MAX:
        return f" starts at {first}, which is no place"
    if not 0 <= fragment.first_position <= ID_MAX or fragment.length_before < 0 or fragment.opened_at_ms < 0:
        return " has a number that is out of range"
    if fragment.leader_term and not FIRST_TERM <= fragment.leader_term < term:
        return f" continues term {fragment.leader_term}, which is no earlier one"
    problem = quorum_problem(len(bookies), fragment.write_quorum, fragment.ack_quorum)
    if problem is not None:
        return f": {problem}"
    if len(set(bookies)) != len(bookies):
        return f": its ensemble must be distinct bookies, not {list(bookies)}"
    problem = words_problem(fragment.archive) if fragment.archive else None
    return None if problem is None else f": {problem}"


def check_archived(fragments: Iterable[StreamFragment], archived_before: int | None) -> None:
    """Check that no fragment from this place on has words (rule J4). Raises ValueError."""
    stop = -1 if archived_before is None else archived_before
    for fragment in fragments:
        if fragment.archive and fragment.first_entry_id >= stop:
            raise ValueError(
                f"the fragment from position {fragment.first_position} has words, but lies behind the archived front"
            )


def following_problem(one: StreamFragment, following: StreamFragment) -> str | None:
    """Why ``following`` cannot follow ``one``; None when it can."""
    term, next_term = term_of(one.first_entry_id), term_of(following.first_entry_id)
    same_term = term == next_term
    positions = following.first_position - one.first_position
    places = following.first_entry_id - one.first_entry_id
    begins_term = next_term > term and offset_of(following.first_entry_id) == 0
    problems = (
        (positions < 1, "must come after the one before it, which cannot be empty"),
        (
            one.first_entry_id + positions - 1 > last_place(term),
            "leaves more positions to the one before it than its term has places",
        ),
        (same_term and places != positions, "does not start at the place that follows in its term"),
        (not same_term and not begins_term, "is of another term, and does not begin a later one"),
        (following.length_before < one.length_before, "has less before it than the one before it"),
        (following.key < one.key, "has an older key than the one before it"),
        (
            same_term and following.form != one.form,
            "has other quorums or another key than the one before it, which is of the same term",
        ),
        (following.first_term < one.first_term, "continues a term of another client than the one before it"),
        (following.opened_at_ms < one.opened_at_ms, "was begun before the one before it"),
    )
    return next((problem for applies, problem in problems if applies), None)
