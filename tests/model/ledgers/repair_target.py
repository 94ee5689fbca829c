"""A target of repair in the model: the production decisions (settled ranges, copying, ReplaceMember) in a client.

It reads the metadata, asks its own bookie what that holds soundly, copies the rest from the other members, and then
names its bookie by one compare-and-set on the metadata that it read before copying (rules C1 to C5). A conflict ends
it: another target would begin anew. It may crash at any time; what it has sent may arrive nevertheless.

A :class:`Refill` copies in the same way what its own bookie should hold, and then tells the bookie of which ids it is
unsure from now on, as production decides it (rules D2 and D3).
"""

from collections.abc import Hashable
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Self

from model.engine.exchange import STORE, Add, Change, Changed, Conflict, Done, Found, MarkSure, Message, Read
from model.engine.renaming import Renaming, bookie_id, bookie_index
from model.engine.sealing import sealed
from model.ledgers.client import Client, Event, Step
from octavo.metadata.ledger.changes import Decision, ReplaceMember
from octavo.metadata.ledger.decisions import Refuse, Settled, Write
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metadata.ledger.stored import SettledRange
from octavo.protocol.entries import header_of
from octavo.protocol.errors import MetadataConflictError
from octavo.protocol.ids import EntryId
from octavo.repair.base.settled import ranges_of_member, replaceable
from octavo.repair.copy.copying import Ask, CopyWindow, ids_of_runs
from octavo.repair.doubt.certainty import first_unsure_id


@dataclass(frozen=True)
class Look:
    """Reads the metadata and changes nothing."""

    def decide(self, _current: LedgerMetadata) -> Decision:
        return Settled()


@dataclass(frozen=True)
class NameTarget:
    """The target takes the place of another bookie in one range, if the metadata are what it read (rule C5)."""

    base: LedgerMetadata
    replacement: ReplaceMember

    def decide(self, current: LedgerMetadata) -> Decision:
        if current != self.base:
            return Refuse(MetadataConflictError("the metadata have changed"))
        return self.replacement.decide(current)


@dataclass(frozen=True)
class NameRegardless(NameTarget):
    """Broken: writes what it made of the metadata that it read, over whatever stands there."""

    def decide(self, current: LedgerMetadata) -> Decision:
        return self.replacement.decide(self.base)


class RepairTarget(Client):
    """Repairs the first settled range in which bookie ``me`` can take the place of bookie ``old``."""

    acknowledges_nothing = True

    def __init__(self, *, old: int, me: int, index: int = 0, crashes: bool = False) -> None:
        super().__init__(index, f"target {index}")
        self._old, self._me, self._crashes = old, me, crashes
        self._base: LedgerMetadata | None = None
        self._range: SettledRange | None = None
        self._window: CopyWindow | None = None
        self._copied: tuple[bytes, ...] = ()
        self._phase = "looks"

    def copy(self) -> Self:
        other = copy(self)
        other._window = deepcopy(self._window)
        return other

    def key(self) -> Hashable:
        return self._phase, self._old, self._me, self._base, self._copied, self._asked()

    def _asked(self) -> Hashable:
        return None if self._window is None else (self._window.next_ask(), self._window.unsound())

    # --- what the canaries change -------------------------------------------------------------------------------------

    def ranges(self, metadata: LedgerMetadata) -> tuple[SettledRange, ...]:
        """The ranges that it may repair."""
        return replaceable(metadata, bookie_id(self._old), bookie_id(self._me))

    def replacement(self, settled: SettledRange, position: int) -> "ReplaceMember":
        """The change that names it."""
        return ReplaceMember(
            EntryId(settled.first), EntryId(settled.last), position, bookie_id(self._old), bookie_id(self._me)
        )

    def member(self) -> int:
        """The bookie whose entries it copies."""
        return self._old

    def position(self, settled: SettledRange) -> int:
        """The position whose entries it copies."""
        return settled.bookies.index(bookie_id(self.member()))

    def held(self, answer: Found) -> set[int]:
        """The ids that its own bookie holds, of what that bookie says."""
        return {int(header_of(sealed).entry_id) for sealed in answer.entries}

    def sealed_for_me(self) -> tuple[bytes, ...]:
        """What it stores of what it has copied."""
        return self._copied

    def store(self) -> list[Message]:
        """What it sends once every entry has been copied."""
        if not self._copied:
            return self._name()
        self._phase = "stores"
        return [Message(self.index, self._me, "store", Add(self.sealed_for_me(), recovery=True))]

    # --- events -------------------------------------------------------------------------------------------------------

    def begin(self) -> list[Message]:
        return [Message(self.index, STORE, "look", Change(Look()))]

    def on(self, event: Event) -> list[Message]:
        if self.finished:
            return []
        if isinstance(event, Step) or isinstance(event.request, MarkSure):
            return self._give_up()
        if isinstance(event.request, Change):
            return self._settled(event)
        if isinstance(event.request, Add):
            return self._stored(event)
        return self._looked(event) if event.tag == "held" else self._answered(event)

    def _stored(self, event: Message) -> list[Message]:
        if self._phase != "stores":
            return []
        return self._name() if isinstance(event.answer, Done) else self._give_up()

    def _settled(self, event: Message) -> list[Message]:
        if self._phase != "looks" or isinstance(event.answer, Conflict):
            return self._give_up()
        assert isinstance(event.answer, Changed)
        self._base = event.answer.metadata
        ranges = [one for one in self.ranges(self._base) if not one.is_empty]
        if not ranges:
            return self.nothing_to_copy()
        self._range = settled = ranges[0]
        self._phase = "looks at what it holds"
        return [Message(self.index, self._me, "held", Read(settled.first, settled.last, fence=False))]

    def nothing_to_copy(self) -> list[Message]:
        """No entry is to be copied."""
        return self._give_up()

    def _looked(self, event: Message) -> list[Message]:
        if self._phase != "looks at what it holds" or not isinstance(event.answer, Found):
            return self._give_up()
        assert self._base is not None and self._range is not None  # noqa: PT018
        quorums, settled = self._base.quorums, self._range
        position, held = self.position(settled), self.held(event.answer)
        ids = ids_of_runs([(settled.first, settled.last)], quorums.ensemble_size, quorums.residues_at(position))
        others = [at for at in range(quorums.ensemble_size) if settled.bookies[at] != bookie_id(self._me)]
        self._window = CopyWindow(quorums, position, [one for one in ids if one not in held], others)
        self._phase = "copies"
        return self._ask()

    def _ask(self) -> list[Message]:
        assert self._window is not None and self._range is not None  # noqa: PT018
        ask = self._window.next_ask()
        if ask is not None:
            source = bookie_index(self._range.bookies[ask.position])
            return [Message(self.index, source, ask.position, Read(ask.first, ask.last, fence=False))]
        return self.store() if self._window.unsound() is None else self._give_up()

    def _answered(self, event: Message) -> list[Message]:
        window = self._window
        ask = None if window is None else window.next_ask()
        if self._phase != "copies" or window is None or not isinstance(ask, Ask) or event.tag != ask.position:
            return []
        if isinstance(event.answer, Found):
            given = {int(header_of(one).entry_id): one for one in event.answer.entries}
            unknown = [(one, one) for one in event.answer.unknown]
            wanted = window.on_answer(ask, event.answer.last_covered, given.keys(), unknown)
            self._copied = (*self._copied, *(given[one] for one in wanted))
        else:
            window.on_failed(ask)
        window.check_invariants()
        return self._ask()

    def _name(self) -> list[Message]:
        assert self._base is not None and self._range is not None  # noqa: PT018
        self._phase = "names"
        position = self._range.bookies.index(bookie_id(self.member()))
        return [Message(self.index, STORE, "name", Change(self.named(self._base, self._range, position)))]

    def named(self, base: LedgerMetadata, settled: SettledRange, position: int) -> NameTarget:
        """The compare-and-set that names it."""
        return NameTarget(base, self.replacement(settled, position))

    def _give_up(self) -> list[Message]:
        self._phase = "ended"
        return []

    def steps(self) -> list[Step]:
        return [Step("crashes")] if self._crashes and not self.finished else []

    def rename(self, step: Step, renaming: Renaming) -> Step:
        raise AssertionError("its settings are not symmetric")

    # --- for the promises ---------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        return self._phase == "ended"

    def unfinished_work(self, metadata: LedgerMetadata) -> str | None:
        return None if self.finished else f"the target {self._phase}"

    def describe(self) -> str:
        return f"{self.name} {self._phase}, has copied {len(self._copied)}"


class Refill(RepairTarget):
    """Makes its bookie, which is in doubt, hold what it should, and sure of the ledger as far as that goes."""

    def __init__(self, *, me: int, index: int = 0) -> None:
        super().__init__(old=me, me=me, index=index)

    def ranges(self, metadata: LedgerMetadata) -> tuple[SettledRange, ...]:
        found = ranges_of_member(metadata, bookie_id(self._me))
        assert len(found) <= 1, "its settings have one settled range"
        return found

    def nothing_to_copy(self) -> list[Message]:
        return self._name()

    def _name(self) -> list[Message]:
        assert self._base is not None
        self._phase = "marks"
        return [Message(self.index, self._me, "mark", MarkSure(self.unsure_from(self._base)))]

    def unsure_from(self, metadata: LedgerMetadata) -> int | None:
        """The first id of which the bookie stays unsure, now that it holds what it should."""
        return first_unsure_id(metadata, bookie_id(self._me), holds_all=True)


class EndsDoubtOfOpenFragments(Refill):
    """Broken: makes the bookie sure of the last fragment of a ledger that is not closed (rule D3)."""

    def unsure_from(self, metadata: LedgerMetadata) -> int | None:
        return None


class CountsWhatRots(RepairTarget):
    """Broken: counts what its own bookie's index names, without reading it back (rule C3)."""

    def held(self, answer: Found) -> set[int]:
        return super().held(answer) | set(answer.unknown)


class CopiesForAnotherPosition(RepairTarget):
    """Broken: copies the entries of the next position (rule C3)."""

    def position(self, settled: SettledRange) -> int:
        return (super().position(settled) + 1) % len(settled.bookies)


class SealsCopiesAgain(RepairTarget):
    """Broken: seals what it copies again, with the newest LAC that it knows (rule C6)."""

    def sealed_for_me(self) -> tuple[bytes, ...]:
        assert self._range is not None
        return tuple(sealed(int(header_of(one).entry_id), self._range.last) for one in self._copied)


class NamesOnAnyVersion(RepairTarget):
    """Broken: names itself whatever the metadata have become since it read them (rule C5)."""

    def named(self, base: LedgerMetadata, settled: SettledRange, position: int) -> NameTarget:
        return NameRegardless(base, self.replacement(settled, position))


class NamesBeforeItStores(RepairTarget):
    """Broken: names itself before its copies are durable (rule C3)."""

    def store(self) -> list[Message]:
        return self._name()


class SkipsWhatOneDenies(RepairTarget):
    """Broken: leaves out an id that one source denies (rule C4)."""

    def _answered(self, event: Message) -> list[Message]:
        if self._phase == "copies" and isinstance(event.answer, Found) and not event.answer.entries:
            return self.store()
        return super()._answered(event)


@dataclass(frozen=True)
class NameAnywhere(NameTarget):
    """Broken: replaces a member of a range that is not settled."""

    def decide(self, current: LedgerMetadata) -> Decision:
        if current != self.base:
            return Refuse(MetadataConflictError("the metadata have changed"))
        # LedgerMetadata.with_member refuses this, too.
        last, new = current.last_fragment, self.replacement.new
        bookies = tuple(new if at == self.replacement.position else name for at, name in enumerate(last.bookies))
        return Write(replace(current, fragments=(*current.fragments[:-1], replace(last, bookies=bookies))))


class RepairsTheLastFragment(RepairTarget):
    """Broken: repairs the last fragment of a ledger that is not closed, as if it ended at what is copied (rule C2)."""

    def ranges(self, metadata: LedgerMetadata) -> tuple[SettledRange, ...]:
        last = metadata.last_fragment
        if bookie_id(self._old) not in last.bookies:
            return ()
        return (SettledRange(last.first_entry_id, last.first_entry_id, last.bookies, length_after=0),)

    def named(self, base: LedgerMetadata, settled: SettledRange, position: int) -> NameTarget:
        return NameAnywhere(base, self.replacement(settled, position))
