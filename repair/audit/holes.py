"""Asks the members of a ledger what they lack of it (rule A11).

Entries are acknowledged by Qa bookies; the others may lack them, and nothing else would notice. Members are asked when
a ledger is first seen CLOSED, and again from time to time. A member answers from its index, without reading an entry.
"""

import asyncio

from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.ledger.stored import SettledRange, StoredLedger
from octavo.protocol.errors import ClientClosedError, OctavoError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.messages import CAPABILITY_REPAIR, Missing, MissingAnswer


@dataclass(frozen=True, slots=True)
class Holes:
    """The answers of the members of a ledger."""

    short: frozenset[BookieId] = frozenset()
    """Members that lack something that they should hold, or cannot tell."""
    silent: frozenset[BookieId] = frozenset()
    """Members that gave no answer: to be asked again."""


async def ask_members(
    pool: ConnectionPool, metadata: StoredLedger, members: frozenset[BookieId], *, timeout_seconds: float
) -> Holes:
    """Ask those of ``members`` that the settled ranges name. Raises :class:`ClientClosedError`."""
    wanted = {name for settled in metadata.settled_ranges() for name in settled.bookies if name in members}
    names = sorted(wanted)
    answers = await asyncio.gather(*(_lacks(pool, metadata, name, timeout_seconds) for name in names))
    return Holes(
        frozenset(name for name, lacks in zip(names, answers, strict=True) if lacks is True),
        frozenset(name for name, lacks in zip(names, answers, strict=True) if lacks is None),
    )


async def _lacks(pool: ConnectionPool, metadata: StoredLedger, member: BookieId, timeout_seconds: float) -> bool | None:
    """Whether a member lacks anything; None when it does not answer, or is too old to know the question."""
    try:
        connection = pool.get(member)
        await connection.wait_writable(timeout_seconds=timeout_seconds)
        if CAPABILITY_REPAIR not in connection.capabilities:
            return False
        for settled in metadata.settled_ranges():
            if member in settled.bookies and await _lacks_of(pool, metadata, settled, member, timeout_seconds):
                return True
    except ClientClosedError:
        raise
    except OctavoError:
        return None
    return False


async def _lacks_of(
    pool: ConnectionPool, metadata: StoredLedger, settled: SettledRange, member: BookieId, timeout_seconds: float
) -> bool:
    quorums = metadata.quorums_at(settled.first)
    residues = quorums.residues_at(settled.bookies.index(member))
    first = settled.first
    while first <= settled.last:
        request = Missing(LedgerId(metadata.ledger_id), first, settled.last, quorums.ensemble_size, residues)
        answer = await pool.get(member).request(request, timeout_seconds=timeout_seconds)
        if not isinstance(answer, MissingAnswer) or answer.last_covered < first:
            return False
        if answer.missing or answer.unknown:
            return True
        first = answer.last_covered + 1
    return False
