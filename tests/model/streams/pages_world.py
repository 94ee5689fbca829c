"""The metadata of one stream alone, with the production changes (rules U1 to U4 and U8).

Paging out, repair, truncation, takeover, rolls, sweeps and deletion come in every order, each in the steps in which a
client makes it.

A *plain* stream without pages goes through the same changes beside it. In every state:

- N6: each page that the root names exists, and is what the root says;
- N3: the fragments in pages and tail are those of the plain stream, with the same positions, places and bookies: no
  change by another client is lost;
- N5: start, term, positions and revision never go back.

What a client has read is part of the state, so every client may be late by any number of steps. A compare-and-set loop
is one step: to read again after a lost race is the same as to come later.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from octavo.metadata.ledger.changes import ReplaceMember
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.stream.changes import (
    BeginTakeover,
    ChangeFragment,
    OpenTerm,
    PageOut,
    ReplacePages,
    StreamChange,
    TermEnd,
    Truncate,
)
from octavo.metadata.stream.model import StreamMetadata, StreamState
from octavo.metadata.stream.page_reference import PageReference
from octavo.metadata.stream.pages import (
    check_page,
    decode_page,
    is_left_over,
    page_document,
    plan_paging,
    repaired_page,
)
from octavo.protocol.errors import InvalidArgumentError, MetadataError
from octavo.protocol.ids import BookieId, EntryId
from support.metadata.stream_metadata import open_stream, stream_fragment

type Documents = frozenset[tuple[str, bytes]]
type Local = tuple[object, ...]
"""What a client knows between two steps."""


class State(NamedTuple):
    """The stored metadata, and what each client knows."""

    root: StreamMetadata | None
    """None after the deletion."""
    plain: StreamMetadata
    documents: Documents
    clients: tuple[Local, ...]


class Step(NamedTuple):
    """One step of a client."""

    client: int
    what: str


class Stored(NamedTuple):
    """The store as a client finds it in one step."""

    root: StreamMetadata | None
    plain: StreamMetadata
    documents: Documents

    def value(self, name: str) -> bytes | None:
        """A document."""
        return next((value for known, value in self.documents if known == name), None)

    def with_document(self, name: str, value: bytes) -> "Stored":
        """Created, unless it exists."""
        if self.value(name) is not None:
            return self
        return self._replace(documents=self.documents | {(name, value)})

    def without_document(self, name: str) -> "Stored":
        """Deleted."""
        return self._replace(documents=frozenset(one for one in self.documents if one[0] != name))

    def settled(self, change: StreamChange, same: StreamChange | None) -> "Stored":
        """After the compare-and-set loop of a change; ``same`` is the change for the plain stream."""
        if self.root is None:
            return self
        decision = change.decide(self.root)
        if not isinstance(decision, Write):
            return self
        plain = self.plain
        if same is not None:
            decided = same.decide(plain)
            # A fragment that was truncated may still lie in a page: the plain stream has nothing to repair then.
            if isinstance(decided, Write):
                plain = decided.metadata
        return self._replace(root=decision.metadata, plain=plain)


class Client:
    """A client: :meth:`step` gives the store and what the client knows after its next step; None when it has ended."""

    name = ""

    def step(self, stored: Stored, local: Local) -> tuple[str, Stored, Local] | None:
        """``local`` is empty at first."""
        raise NotImplementedError


_ENDED: Local = ("ended",)


class Pager(Client):
    """Reads the root and its last page; makes a page; names it; deletes the page that it replaced. ``times``: again
    from the start after that. ``merges``: into the last page; otherwise each page is new, as if the last were full."""

    name = "pager"

    def __init__(
        self,
        times: int = 1,
        *,
        change: type[PageOut] = PageOut,
        names_first: bool = False,
        merges: bool = True,
        check: Callable[[StreamMetadata, PageReference, bytes], None] = check_page,
    ) -> None:
        self._times = times
        self._check = check
        self._merges = merges
        self._change = change
        self._names_first = names_first

    def step(self, stored: Stored, local: Local) -> tuple[str, Stored, Local] | None:  # noqa: PLR0911 - one a step
        if local == _ENDED:
            return None
        done = local[0] if local else 0
        assert isinstance(done, int)
        match local[1:]:
            case ():
                return self._read(stored, done)
            case ("planned", change, value):
                assert isinstance(change, PageOut)
                assert isinstance(value, bytes)
                made = stored.with_document(_document(change), value)
                if self._names_first:
                    return "names its page", stored.settled(change, None), (done, "made", change, value)
                return "makes its page", made, (done, "made", change, value)
            case ("made", change, value):
                assert isinstance(change, PageOut)
                assert isinstance(value, bytes)
                if self._names_first:
                    return "makes its page", stored.with_document(_document(change), value), self._next(done)
                after = stored.settled(change, None)
                if after.root is not None and change.page in after.root.pages and change.replaced is not None:
                    name = page_document(after.root.ledger_id, change.replaced)
                    return "names its page", after, (done, "replaced", name)
                return "names its page, if it may", after, self._next(done)
            case ("replaced", name):
                return "deletes the page before", stored.without_document(str(name)), self._next(done)
        raise AssertionError(local)

    def _read(self, stored: Stored, done: int) -> tuple[str, Stored, Local]:
        root = stored.root
        if root is None:
            return "finds no stream", stored, _ENDED
        last = None
        if root.pages and self._merges:
            last = stored.value(page_document(root.ledger_id, root.pages[-1]))
            if last is None:
                return "finds no page", stored, _ENDED  # impossible: the invariant tells
            self._check(root, root.pages[-1], last)
        plan = plan_paging(root, last)
        if plan is None:
            return "finds nothing to page out", stored, self._next(done)
        change = self._change(plan.moved, plan.replaced, plan.page.reference)
        return "reads the root", stored, (done, "planned", change, plan.page.value)

    def _next(self, done: int) -> Local:
        return (done + 1,) if done + 1 < self._times else _ENDED


def _document(change: PageOut) -> str:
    return page_document(LEDGER_ID, change.page)


class Repairer(Client):
    """Takes the place of a bookie in the first fragment, wherever it lies."""

    name = "repairer"

    def __init__(self, position: int = 0, *, mutates: bool = False) -> None:
        """``position``: of an entry of the fragment. ``mutates``: changes the page instead of naming another one."""
        self._position = position
        self._mutates = mutates

    def step(self, stored: Stored, local: Local) -> tuple[str, Stored, Local] | None:
        match local:
            case ():
                return self._read(stored)
            case ("tail", change):
                assert isinstance(change, ReplaceMember)
                return "names itself in the tail", stored.settled(change, change), _ENDED
            case ("planned", old, new, value, change):
                made = stored.with_document(page_document(LEDGER_ID, new), value)  # type: ignore[arg-type]
                return "makes a page", made, ("made", old, new, change)
            case ("made", old, new, change):
                after = stored.settled(ReplacePages(((old, new),)), change)  # type: ignore[arg-type]
                named = after.root is not None and new in after.root.pages
                return "names its page, if it may", after, ("named", old) if named else _ENDED
            case ("named", old):
                return "deletes the old page", stored.without_document(page_document(LEDGER_ID, old)), _ENDED  # type: ignore[arg-type]
        return None

    def _read(self, stored: Stored) -> tuple[str, Stored, Local]:  # noqa: PLR0911 - one for what it may find
        root = stored.root
        if root is None or self._position < root.start:
            return "finds nothing to repair", stored, _ENDED
        page = root.page_at(self._position)
        if page is None:
            if root.fragment_at(self._position) == root.last_fragment and not root.has_end:
                return "finds nothing settled", stored, _ENDED
            return "reads the root", stored, ("tail", self._change(root))
        value = stored.value(page_document(LEDGER_ID, page))
        if value is None:
            return "finds no page", stored, _ENDED
        part = decode_mutated(root, page, value) if self._mutates else decode_page(root, page, value)
        change = self._change(part)
        decision = change.decide(part)
        if isinstance(decision, Settled | Refuse):
            return "finds nothing to do", stored, _ENDED
        new = repaired_page(root, page, decision.metadata)
        if self._mutates:
            name = page_document(LEDGER_ID, page)
            plain = change.decide(stored.plain)
            assert isinstance(plain, Write)
            mutated = stored.without_document(name).with_document(name, new.value)
            return "changes the page itself", mutated._replace(plain=plain.metadata), _ENDED
        return "reads root and page", stored, ("planned", page, new.reference, new.value, change)

    def _change(self, part: StreamMetadata) -> ReplaceMember:
        fragment = part.fragment_at(self._position)
        last = part.last_id_of(fragment)
        assert last is not None
        return ReplaceMember(fragment.first_entry_id, last, 0, fragment.bookies[0], BookieId("new"))


class Truncator(Client):
    """Reads the root and the page in which the position lies; truncates; deletes the pages that have left the root."""

    name = "truncator"

    def __init__(self, before: int, *, change: type[Truncate] = Truncate) -> None:
        self._before = before
        self._change = change

    def step(self, stored: Stored, local: Local) -> tuple[str, Stored, Local] | None:
        match local:
            case ():
                root = stored.root
                if root is None or self._before <= root.start:
                    return "finds nothing to truncate", stored, _ENDED
                page = root.page_at(self._before)
                if page is None:
                    place = root.place_at(self._before)
                else:
                    value = stored.value(page_document(LEDGER_ID, page))
                    if value is None:
                        return "finds no page", stored, _ENDED
                    place = decode_page(root, page, value).place_at(self._before)
                return f"finds position {self._before}", stored, ("found", self._change(self._before, place), root)
            case ("found", change, root):
                assert isinstance(change, Truncate)
                assert isinstance(root, StreamMetadata)
                after = stored.settled(change, Truncate(change.before, change.place))
                gone = set(root.pages) - set(after.root.pages if after.root is not None else ())
                return "truncates", after, ("gone", frozenset(page_document(LEDGER_ID, one) for one in gone))
            case ("gone", names):
                assert isinstance(names, frozenset)
                for name in sorted(names):
                    stored = stored.without_document(name)
                return "deletes pages", stored, _ENDED
        return None


class Writer(Client):
    """Begins a fragment after one entry, as the writer of the term it has read."""

    name = "writer"

    def __init__(self, rolls: int = 1) -> None:
        self._rolls = rolls

    def step(self, stored: Stored, local: Local) -> tuple[str, Stored, Local] | None:
        if local == _ENDED:
            return None
        done = local[0] if local else 0
        assert isinstance(done, int)
        root = stored.root
        if len(local) < 2:
            if root is None or root.state is not StreamState.OPEN:
                return "has lost its term", stored, _ENDED
            last = root.last_fragment
            following = replace(
                last,
                first_entry_id=EntryId(last.first_entry_id + 1),
                first_position=last.first_position + 1,
                length_before=last.length_before + 10,
            )
            return "has added an entry", stored, (done, ChangeFragment(last, following))
        change = local[1]
        assert isinstance(change, ChangeFragment)
        after = stored.settled(change, change)
        return "rolls", after, (done + 1,) if done + 1 < self._rolls else _ENDED


class Taker(Client):
    """Takes the stream over: what the recovery finds is the last fragment with one entry."""

    name = "taker"

    def step(self, stored: Stored, local: Local) -> tuple[str, Stored, Local] | None:
        match local:
            case ():
                if stored.root is None:
                    return "finds no stream", stored, _ENDED
                begin = BeginTakeover(stored.root.term)
                after = stored.settled(begin, begin)
                assert after.root is not None
                return "begins a takeover", after, ("begun", after.root.last_fragment)
            case ("begun", base):
                root = stored.root
                end = TermEnd(EntryId(base.first_entry_id), base.length_before + 10)  # type: ignore[attr-defined]
                change = OpenTerm(base, (), end, "taker", base)  # type: ignore[arg-type]
                return "opens the next term", stored if root is None else stored.settled(change, change), _ENDED
        return None


class Sweeper(Client):
    """Reads the root, and deletes one page after the other that it finds left over."""

    name = "sweeper"

    def __init__(self, is_left: Callable[[StreamMetadata, str], bool] = is_left_over) -> None:
        self._is_left = is_left

    def step(self, stored: Stored, local: Local) -> tuple[str, Stored, Local] | None:
        match local:
            case ():
                return "reads the root", stored, _ENDED if stored.root is None else ("read", stored.root)
            case ("read", root):
                assert isinstance(root, StreamMetadata)
                left = sorted(name for name, _ in stored.documents if self._is_left(root, name))
                if not left:
                    return "finds nothing left over", stored, _ENDED
                return f"deletes {left[0]}", stored.without_document(left[0]), local
        return None


class Deleter(Client):
    """Deletes the root, then the pages that there are."""

    name = "deleter"

    def step(self, stored: Stored, local: Local) -> tuple[str, Stored, Local] | None:
        match local:
            case ():
                return "deletes the root", stored._replace(root=None), ("deleted",)
            case ("deleted",):
                return "deletes the pages", stored._replace(documents=frozenset()), _ENDED
        return None


def decode_mutated(root: StreamMetadata, page: PageReference, value: bytes) -> StreamMetadata:
    """A page that may have been changed on purpose: it need not have the digest of its name."""
    return decode_page(root, replace(page, token=hashlib.sha256(value).hexdigest()[:24]), value)


def check_nothing(_root: StreamMetadata, _page: PageReference, _value: bytes) -> None:
    """Likewise."""


BEGINNING = open_stream(*(stream_fragment(1, at, at, "abc", 10 * at) for at in range(4)))
LEDGER_ID = BEGINNING.ledger_id


@dataclass(frozen=True)
class PagesWorld:
    """The model; see the module."""

    clients: tuple[Client, ...]
    beginning: StreamMetadata = BEGINNING
    decode: Callable[[StreamMetadata, PageReference, bytes], StreamMetadata] = decode_page
    _walks: dict[tuple[StreamMetadata, Documents], str | tuple[object, ...]] = field(default_factory=dict, hash=False)

    def initial_states(self) -> Iterable[State]:
        """Nothing has been paged out yet."""
        return [State(self.beginning, self.beginning, frozenset(), ((),) * len(self.clients))]

    def successors(self, state: State) -> Sequence[tuple[Step, State]]:
        """The next step of each client."""
        stored = Stored(state.root, state.plain, state.documents)
        found: list[tuple[Step, State]] = []
        for at, client in enumerate(self.clients):
            step = client.step(stored, state.clients[at])
            if step is not None:
                what, after, local = step
                clients = (*state.clients[:at], local, *state.clients[at + 1 :])
                found.append((Step(at, what), State(*after, clients)))
        return found

    def representative(self, state: State) -> State:
        """Itself: no two clients are equal."""
        return state

    def violation(self, state: State) -> str | None:
        """Which promise the state breaks."""
        root = state.root
        if root is None:
            return None
        fragments = self._fragments(root, state.documents)
        if isinstance(fragments, str):
            return f"N6: {fragments}"
        if root.start < state.plain.start or root.term < state.plain.term or root.revision < 0:
            return f"N5: the start {state.plain.start} has fallen to {root.start}"
        if fragments != state.plain.fragments or root.start_place != state.plain.start_place:
            return "N3: the fragments are not those of all changes that were made"
        return None

    def _fragments(self, root: StreamMetadata, documents: Documents) -> str | tuple[object, ...]:
        """All fragments from the start on; or what is wrong with a page."""
        known = self._walks.get((root, documents))
        if known is None:
            known = self._walks[root, documents] = self._walk(root, dict(documents))
        return known

    def _walk(self, root: StreamMetadata, documents: dict[str, bytes]) -> str | tuple[object, ...]:
        found: list[object] = []
        for page in root.pages:
            value = documents.get(page_document(LEDGER_ID, page))
            if value is None:
                return f"page {page.name} does not exist"
            try:
                part = self.decode(root, page, value)
            except (MetadataError, InvalidArgumentError) as error:
                return str(error)
            found += part.truncated(root.start).fragments
        return (*found, *root.fragments)

    def stuck(self, state: State) -> str | None:
        """When all clients have ended, a sweep leaves the named pages, and those of the present revision."""
        if state.root is None:
            return None  # what a pager has made since is for the auditor (rule U8)
        left = [name for name, _ in state.documents if not is_left_over(state.root, name)]
        named = {page_document(LEDGER_ID, page) for page in state.root.pages}
        late = [name for name in left if name not in named and not _is_of(name, state.root.revision)]
        return f"pages left for ever: {late}" if late else None

    def describe_action(self, state: State, action: Step) -> str:
        """The client and what it does."""
        return f"{self.clients[action.client].name} {action.client}: {action.what}"

    def describe_state(self, state: State) -> list[str]:
        """The root and the documents."""
        root = state.root
        lines = ["no stream"] if root is None else [
            f"{root.state.value}, term {root.term}, revision {root.revision}, start {root.start}, "
            f"pages {[page.name for page in root.pages]}, tail {[one.first_position for one in root.fragments]}"
        ]  # fmt: skip
        return [*lines, f"documents {sorted(name for name, _ in state.documents)}"]

    @cached_property
    def names(self) -> str:
        """The clients, for a report."""
        return ", ".join(client.name for client in self.clients)


def _is_of(name: str, revision: int) -> bool:
    return int(name.rsplit("/", 1)[1].split("-", maxsplit=1)[0]) >= revision
