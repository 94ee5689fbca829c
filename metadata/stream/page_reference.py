"""A page of older fragments, as the metadata of its stream name it. Pure.

A *page* is a document that holds some consecutive fragments of a stream (:mod:`octavo.metadata.stream.pages`). The
metadata name it with what must be known without reading it: which positions and places it has, how many fragments and
bytes, and when the first of them was begun. A page is never changed; the metadata name another one instead.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, Protocol, Self

from octavo.protocol.ids import ID_MAX, EntryId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.places import OFFSET_MAX, offset_of, term_of

_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,15})-([0-9a-f]{1,64})")

_NUMBERS: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class PageReference:
    """One page, as the metadata of its stream name it."""

    revision: int
    """That of the metadata for which the page was made. Naming it raised the revision (rule U2)."""
    token: str
    """Tells pages of one revision apart: a digest of what the page holds, in hexadecimal digits."""
    fragments: int
    """How many it holds; at least one."""
    first_entry_id: EntryId
    """The first place."""
    first_position: int
    last_entry_id: EntryId
    """The last place that holds an entry."""
    length_before: int
    """Payload bytes at all positions before the first one."""
    length_after: int
    """Payload bytes at all positions up to the last one."""
    opened_at_ms: int
    """When the first fragment was begun."""
    unknown: tuple[Any, ...] = ()
    """What a newer version has stored behind these, as decoded JSON: kept as long as the page is named."""

    @property
    def name(self) -> str:
        """The last word of the document's name."""
        return f"{self.revision}-{self.token}"

    @property
    def lowest_term(self) -> int:
        """The term of its first fragment."""
        return term_of(self.first_entry_id)

    @property
    def highest_term(self) -> int:
        """The term of its last fragment."""
        return term_of(self.last_entry_id)

    def to_fields(self) -> list[Any]:
        """The stored form."""
        return [
            *(self.name, self.fragments, self.first_entry_id, self.first_position, self.last_entry_id),
            *(self.length_before, self.length_after, self.opened_at_ms, *self.unknown),
        ]

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """From the stored form. Raises ValueError or TypeError."""
        name, *numbers = fields
        found = parse_page_name(name)
        numbers, unknown = numbers[:_NUMBERS], numbers[_NUMBERS:]
        if found is None or len(numbers) < _NUMBERS or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("a page's fields are of wrong types")
        count, first_entry_id, first_position, last_entry_id, length_before, length_after, opened_at_ms = numbers
        return cls(
            revision=found[0],
            token=found[1],
            fragments=count,
            first_entry_id=EntryId(first_entry_id),
            first_position=first_position,
            last_entry_id=EntryId(last_entry_id),
            length_before=length_before,
            length_after=length_after,
            opened_at_ms=opened_at_ms,
            unknown=tuple(unknown),
        )


def parse_page_name(name: object) -> tuple[int, str] | None:
    """The revision and the token in the last word of a page's name; None if it is not such a name."""
    found = _NAME.fullmatch(name) if isinstance(name, str) else None
    return None if found is None else (int(found[1]), found[2])


class Pages(tuple[PageReference, ...]):
    """The pages of a stream, in order: each is one that metadata can name, and follows the one before it. Both are
    checked when the sequence is made, and not again in every version of the metadata that shares it. Raises ValueError
    that names the page."""

    revision_min: int
    """The least revision of metadata that name these pages."""
    text: str | None = None
    """The stored form, once it was made: all versions of the metadata that share the pages share it."""

    def __new__(cls, pages: Iterable[PageReference] = ()) -> Self:
        made = super().__new__(cls, pages)
        made.revision_min = max((page.revision for page in made), default=-1) + 1
        for page in made:
            problem = _page_problem(page)
            if problem is not None:
                raise ValueError(f"page {page.name} {problem}")
        for page, following in pairwise(made):
            check_after_page(page, following)
        return made


class _Part(Protocol):
    """A page or a fragment."""

    @property
    def first_entry_id(self) -> EntryId: ...
    @property
    def first_position(self) -> int: ...
    @property
    def length_before(self) -> int: ...
    @property
    def opened_at_ms(self) -> int: ...


def check_after_page(page: PageReference, following: _Part) -> None:
    """Check that a page or fragment can follow the page. Raises ValueError."""
    problem = _after_page_problem(
        page, following.first_entry_id, following.first_position, following.length_before, following.opened_at_ms
    )
    if problem is not None:
        raise ValueError(f"what follows page {page.name}, from position {following.first_position}, {problem}")


def _page_problem(page: PageReference) -> str | None:
    """Why no stream can name the page; None when one can."""
    begins_stream = (offset_of(page.first_entry_id), page.length_before) == (0, 0)
    problems = (
        (_NAME.fullmatch(page.name) is None, "has no name of a page"),
        (page.fragments < 1, "holds no fragment"),
        (page.lowest_term < 1 or page.last_entry_id < page.first_entry_id, "does not lie between its places"),
        (max(offset_of(page.first_entry_id), offset_of(page.last_entry_id)) > OFFSET_MAX, "has an id that is no place"),
        (not 0 <= page.first_position <= ID_MAX, "has a position that is out of range"),
        (not 0 <= page.length_before <= page.length_after, "has a length that is out of range"),
        (page.opened_at_ms < 0, "has a negative start time"),
        (page.first_position == 0 and not begins_stream, "has something before position 0"),
    )
    return next((problem for applies, problem in problems if applies), None)


def _after_page_problem(
    page: PageReference, first_entry_id: int, first_position: int, length_before: int, opened_at_ms: int
) -> str | None:
    """Why a page or fragment that begins like this cannot follow the page; None when it can."""
    same_term = term_of(first_entry_id) == page.highest_term
    begins_term = term_of(first_entry_id) > page.highest_term and offset_of(first_entry_id) == 0
    one_term = same_term and page.lowest_term == page.highest_term
    places = first_entry_id - page.first_entry_id
    problems = (
        (
            same_term and first_entry_id != page.last_entry_id + 1,
            "does not start at the next place of its term",
        ),
        (not same_term and not begins_term, "is of another term, and does not begin a later one"),
        (
            first_position < page.first_position + page.fragments,
            "leaves a fragment of the page before it empty",
        ),
        (
            one_term and places != first_position - page.first_position,
            "has a position that does not fit its place",
        ),
        (length_before != page.length_after, "does not have the length that the page before it ends with"),
        (opened_at_ms < page.opened_at_ms, "was begun before the one before it"),
    )
    return next((problem for applies, problem in problems if applies), None)


def pages_bytes(pages: Sequence[PageReference]) -> int:
    """Bytes that the references take in the stored form, up to a few."""
    return sum(len(page.name) + sum(len(str(number)) + 1 for number in page.to_fields()[1:]) + 5 for page in pages)
