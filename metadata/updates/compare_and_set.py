"""The compare-and-set loop by which clients change what the store holds (rules M1, W5, W9, F1 and F6)."""

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from octavo.metadata.ledger.decisions import Refuse, Settled
from octavo.metadata.store.values import Version, Versioned
from octavo.protocol.errors import MetadataConflictError

ATTEMPTS_MAX: Final = 100
"""Attempts of one update. Every lost attempt means that another client made progress, and few clients change the same
ledger or log: that many conflicts in a row mean that something writes it in a loop."""


async def settle_change[T, W](
    known: Versioned[T] | None,
    *,
    read: Callable[[], Awaitable[Versioned[T]]],
    decide: Callable[[T], W | Settled | Refuse],
    write: Callable[[W, Version], Awaitable[Versioned[T]]],
    what: str,
) -> Versioned[T]:
    """Decide on what is stored and compare-and-set, until a decision is carried out; returns what is then stored.

    ``known`` is what the caller believes to be stored; a write may be decided on it, a refusal or a settled change
    only on what ``read`` returns. ``write`` raises :class:`MetadataConflictError` when another version is stored.
    ``what`` names the thing in errors.

    Raises the error of a refusal, what ``read`` and ``write`` raise, and :class:`MetadataConflictError` after
    :data:`ATTEMPTS_MAX` lost rounds.
    """
    for _ in range(ATTEMPTS_MAX):
        current = known if known is not None else await read()
        decision = decide(current.value)
        if isinstance(decision, Settled | Refuse) and known is not None:
            known = None  # decide on what is stored, not on what the caller believes
            continue
        if isinstance(decision, Refuse):
            raise decision.error
        if isinstance(decision, Settled):
            return current
        known = None
        with contextlib.suppress(MetadataConflictError):
            return await write(decision, current.version)
    raise MetadataConflictError(
        f"{what} changed {ATTEMPTS_MAX} times while this client tried to change it",
        may_have_happened=False,
    )
