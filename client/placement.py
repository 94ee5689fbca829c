"""Placement: which bookies a new ledger's ensemble is made of. Pure; chance comes in as an argument.

Every writable bookie is as likely as any other, and so is every order: position decides which bookie serves a stripe
first, so a fixed order would load the first ones more.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId


class Chance(Protocol):
    """As much of :class:`random.Random` as placement needs."""

    def sample[T](self, population: Sequence[T], k: int) -> list[T]:
        """``k`` distinct members of the population, in random order."""


def place_ensemble(
    writable: Collection[BookieId],
    ensemble_size: int,
    *,
    rng: Chance,
    avoid: Collection[BookieId] = (),
) -> tuple[BookieId, ...]:
    """``ensemble_size`` distinct bookies of ``writable``, none of ``avoid``, at random.

    The same ``rng`` state and the same bookies, in whatever order they come, give the same ensemble. Raises
    :class:`NotEnoughBookiesError` saying how many there are.
    """
    candidates = sorted(set(writable) - set(avoid))
    if len(candidates) < ensemble_size:
        avoided = sorted(set(writable) & set(avoid))
        besides = f" ({', '.join(avoided)} must not be used)" if avoided else ""
        raise NotEnoughBookiesError(
            f"{ensemble_size} writable bookies are needed, there are {len(candidates)}{besides}; start more bookies or "
            "choose a smaller ensemble"
        )
    return tuple(rng.sample(candidates, ensemble_size))
