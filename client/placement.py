"""Placement: which bookies a new ledger's ensemble is made of. Pure; chance comes in as an argument.

Every writable bookie is as likely as any other, and so is every order: position decides which bookie serves a stripe
first, so a fixed order would load the first ones more.
"""

import random
from collections.abc import Collection

from octavo.protocol.errors import NotEnoughBookiesError
from octavo.protocol.ids import BookieId


def place_ensemble(
    writable: Collection[BookieId],
    ensemble_size: int,
    *,
    rng: random.Random,
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
