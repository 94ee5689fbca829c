"""Interchanges of equals: bookies of the first ensemble among each other, spare bookies, clients that do the same.

Where every bookie of an ensemble holds every entry (E = Qw), nothing in the protocol tells one position from another.
So two states that differ only by an interchange of positions are equally good, and one of them is enough. A renaming
moves the bookies of the first ensemble among its positions; *positions* move with them, and every later ensemble is
rewritten in the moved order, so that a client that identifies bookies by position finds the same world.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import permutations, product
from typing import Any, Protocol, Self, cast, runtime_checkable

from octavo.metadata.ledger.changes import ChangeEnsemble, CloseLedger, FinishRecovery
from octavo.metadata.ledger.model import Fragment, LedgerMetadata
from octavo.metadata.stream.changes import ChangeFragment, LayToRest, OpenTerm, RenewTerm, Rest
from octavo.metadata.stream.model import StreamFragment, StreamMetadata
from octavo.protocol.ids import BookieId

BOOKIE_NAMES = "abcdefgh"


def bookie_id(index: int) -> BookieId:
    """The name of a bookie, a letter."""
    return BookieId(BOOKIE_NAMES[index])


def bookie_index(name: BookieId) -> int:
    """The inverse of :func:`bookie_id`."""
    return BOOKIE_NAMES.index(name)


_NAMING_BOOKIES = (
    *(LedgerMetadata, Fragment, ChangeEnsemble, CloseLedger, FinishRecovery),
    *(StreamMetadata, StreamFragment, ChangeFragment, Rest, RenewTerm, OpenTerm, LayToRest),
)
_FIELDS = {"bookies", "ensemble", "base", "fragment", "fragments"}
"""Those of the fields of these that name bookies."""


@runtime_checkable
class Renameable(Protocol):
    """A change of the metadata that the harness has made up."""

    def renamed(self, renaming: "Renaming") -> Self:
        """The same under other names."""


@dataclass(frozen=True)
class Renaming:
    """``bookies[i]`` and ``clients[i]`` are the new numbers of bookie and client ``i``."""

    bookies: tuple[int, ...]
    clients: tuple[int, ...]
    ensemble_size: int

    @cached_property
    def bookies_before(self) -> tuple[int, ...]:
        """The old number of each new one."""
        return tuple(self.bookies.index(number) for number in range(len(self.bookies)))

    @cached_property
    def clients_before(self) -> tuple[int, ...]:
        """The old number of each new one."""
        return tuple(self.clients.index(number) for number in range(len(self.clients)))

    @property
    def is_identity(self) -> bool:
        """Whether nothing moves."""
        return list(self.bookies) == sorted(self.bookies) and list(self.clients) == sorted(self.clients)

    def position(self, position: int) -> int:
        """Where a position of an ensemble moves."""
        return self.bookies[position]

    def ensemble(self, names: tuple[BookieId, ...]) -> tuple[BookieId, ...]:
        """An ensemble with its positions moved and its bookies renamed."""
        moved = list(names)
        for position, name in enumerate(names):
            moved[self.position(position)] = bookie_id(self.bookies[bookie_index(name)])
        return tuple(moved)

    def value[T](self, value: T) -> T:
        """Metadata, or a change of metadata, or anything that names no bookie."""
        return cast("T", self._renamed(value))

    def _renamed(self, value: Any) -> Any:
        if isinstance(value, Renameable):
            return value.renamed(self)
        if not isinstance(value, _NAMING_BOOKIES):
            return value
        renamed: dict[str, Any] = {}
        for name in _FIELDS & {one.name for one in fields(value)}:
            old = getattr(value, name)
            if name in ("bookies", "ensemble"):
                renamed[name] = self.ensemble(old)
            else:
                renamed[name] = tuple(map(self._renamed, old)) if name == "fragments" else self._renamed(old)
        return replace(value, **renamed)


def interchanges(
    bookies: int, ensemble_size: int, interchangeable_clients: tuple[tuple[int, ...], ...]
) -> list[Renaming]:
    """Every renaming: the first ``ensemble_size`` bookies among themselves, the spares, each group of like clients."""
    spares = range(ensemble_size, bookies)
    groups = [permutations(group) for group in interchangeable_clients]
    client_orders = [
        tuple(moved for _, moved in sorted(pair for old, new in zip(interchangeable_clients, choice, strict=True)
                                           for pair in zip(old, new, strict=True)))
        for choice in product(*groups)
    ]  # fmt: skip
    return [
        Renaming((*members, *others), clients, ensemble_size)
        for members in permutations(range(ensemble_size))
        for others in permutations(spares)
        for clients in client_orders
    ]
