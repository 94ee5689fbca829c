"""Makes the copies that a recovered ledger lacks, or finds out which, before its end is written (rule G5).

Recovery writes entries back until Qa bookies have them, and never looks at those that were acknowledged before. Of a
ledger with full copies, every member of the last fragment and of the fragments that recovery made is therefore asked
what it lacks of them, up to the end. What another member has is copied, as recovery adds, which any bookie takes. What
then lacks a copy, or may lack one because its member did not answer, is returned as debt. The takeover of a stream only
asks, because it must not wait.

In a cluster with access control the question needs the role ``repair``. A member that denies it counts as one that does
not answer.
"""

import asyncio
from collections.abc import Iterator, Sequence

from octavo.client.options import ClientOptions
from octavo.client.wire.pool import ConnectionPool
from octavo.client.write.front.batching import frames_of
from octavo.metadata.ledger.debts import NO_DEBT, Debt
from octavo.metadata.ledger.term import StoredFragment, Term
from octavo.protocol.entries import LedgerSecrets, Opener
from octavo.protocol.errors import (
    BookieUnavailableError,
    ClientClosedError,
    OctavoError,
    UnsupportedOperationError,
)
from octavo.protocol.ids import BookieId, EntryId
from octavo.protocol.light_dataclass import dataclass
from octavo.protocol.limits import ENTRIES_PER_FRAME_MAX, FRAME_PAYLOAD_BYTES_TARGET
from octavo.protocol.messages import (
    CAPABILITY_REPAIR,
    Add,
    Added,
    AddFlag,
    Missing,
    MissingAnswer,
    Read,
    ReadAnswer,
    ReadFlag,
    Reply,
    Request,
)


@dataclass(frozen=True, slots=True)
class Owed:
    """The debt of one fragment, and its reason."""

    first_entry_id: EntryId
    """The first id of the fragment."""
    debt: Debt
    short: tuple[tuple[BookieId, str], ...]
    """The members that lack copies, with what they answered."""


class Completing:
    """See the module. Works for the last fragment and those that recovery has made of it."""

    def __init__(
        self,
        term: Term,
        secrets: LedgerSecrets,
        *,
        pool: ConnectionPool,
        options: ClientOptions,
        only_asks: bool = False,
    ) -> None:
        """``only_asks``: no copies are made."""
        self._only_asks = only_asks
        self._term = term
        self._ledger_key = secrets.ledger_key
        self._opener = Opener(term.ledger_id, term.key.digest, secrets)
        self._pool = pool
        self._timeout_seconds = options.request_timeout_seconds
        self._quorums = term.quorums

    async def run(self, fragments: Sequence[StoredFragment], end: int, *, seconds: float) -> tuple[Owed, ...]:
        """Ask, and make copies, for so long at most; what each of the fragments owes then. ``fragments`` follow one
        another, and the last one ends at ``end``."""
        deadline = asyncio.get_running_loop().time() + seconds
        stops = [*(one.first_entry_id for one in fragments[1:]), end + 1]
        owed = [
            await self._complete(fragment, stop - 1, deadline)
            for fragment, stop in zip(fragments, stops, strict=True)
        ]  # fmt: skip
        return tuple(owed)

    async def _complete(self, fragment: StoredFragment, last: int, deadline: float) -> Owed:
        if last < fragment.first_entry_id:
            return Owed(fragment.first_entry_id, NO_DEBT, ())
        lacking = await asyncio.gather(
            *(self._complete_member(fragment, at, last, deadline) for at in range(len(fragment.bookies)))
        )
        debt, short = NO_DEBT, []
        for name, (runs, why) in zip(fragment.bookies, lacking, strict=True):
            for first, run_last in runs:
                debt = debt.joined(Debt(first, run_last))
            if runs:
                short.append((name, why))
        return Owed(fragment.first_entry_id, debt.within(fragment.first_entry_id, last), tuple(short))

    async def _complete_member(
        self, fragment: StoredFragment, position: int, last: int, deadline: float
    ) -> tuple[list[tuple[int, int]], str]:
        """The runs of ids that the member lacks or may lack, and why."""
        name, first = fragment.bookies[position], int(fragment.first_entry_id)
        done = first
        why = "lacks copies, and no other bookie has given them"
        lacking: list[tuple[int, int]] = []
        try:
            async with asyncio.timeout_at(deadline):
                await self._pool.get(name).wait_writable(timeout_seconds=self._timeout_seconds)
                if CAPABILITY_REPAIR not in self._pool.get(name).capabilities:
                    raise UnsupportedOperationError("cannot tell what it lacks")
                while done <= last:
                    question = Missing(self._term.ledger_id, done, last, *self._stripe(position))
                    answer = await self._ask(name, question, MissingAnswer)
                    covered = min(answer.last_covered, last)
                    if covered < done:
                        raise BookieUnavailableError(f"answered nothing of entry {done}")
                    for low, high in (*answer.missing, *answer.unknown):
                        pieces = _pieces(max(low, done), min(high, covered))
                        lacking += [
                            piece
                            for piece in pieces
                            if self._only_asks or not await self._copy(fragment, position, *piece)
                        ]
                    done = covered + 1
        except ClientClosedError:
            raise
        except TimeoutError:
            why = "did not get all copies in time"
        except OctavoError as error:
            why = error.message or type(error).__name__
        if done <= last:
            lacking.append((done, last))
        return lacking, why

    async def _copy(self, fragment: StoredFragment, position: int, first: int, last: int) -> bool:
        """Give a member the entries of one run; whether it has all of them now."""
        wanted = {one for one in range(first, last + 1) if self._quorums.write_mask(one) >> position & 1}
        found: dict[int, bytes] = {}
        for source, name in enumerate(fragment.bookies):
            if source != position and not wanted <= found.keys():
                found |= await self._read(name, source, first, last)
        entries = [found[one] for one in sorted(wanted & found.keys())]
        flags = AddFlag.RECOVERY | (AddFlag.PRIVATE if self._term.private else AddFlag.NONE)
        for start, stop in frames_of(entries):
            add = Add(self._term.ledger_id, self._ledger_key, flags, self._term.number, entries[start:stop])
            await self._ask(fragment.bookies[position], add, Added)
        return wanted <= found.keys()

    async def _read(self, source: BookieId, position: int, first: int, last: int) -> dict[int, bytes]:
        """The entries with these ids that a member has, verified. Fencing, as every read of a recovery: it may be of a
        bookie that recovery has chosen."""
        found: dict[int, bytes] = {}
        try:
            while first <= last:
                request = Read(
                    *(self._term.ledger_id, self._ledger_key, ReadFlag.FENCE, self._term.number, first, last),
                    *(*self._stripe(position), ENTRIES_PER_FRAME_MAX, 2 * FRAME_PAYLOAD_BYTES_TARGET),
                )
                answer = await self._ask(source, request, ReadAnswer)
                if answer.last_covered < first:
                    break
                for sealed in answer.entries:
                    found[self._opener.open(sealed).entry_id] = sealed
                first = answer.last_covered + 1
        except ClientClosedError:
            raise
        except OctavoError:
            return found  # another member may have the rest
        return found

    async def _ask[Answer: Reply](self, name: BookieId, request: Request, expected: type[Answer]) -> Answer:
        answer = await self._pool.get(name).request(request, timeout_seconds=self._timeout_seconds)
        if not isinstance(answer, expected):
            raise BookieUnavailableError(f"answered {type(answer).__name__} to {type(request).__name__}")
        return answer

    def _stripe(self, position: int) -> tuple[int, tuple[int, ...]]:
        return self._quorums.ensemble_size, self._quorums.residues_at(position)


def _pieces(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The ids in runs that bound what is held at a time."""
    for start in range(first, last + 1, ENTRIES_PER_FRAME_MAX):
        yield start, min(start + ENTRIES_PER_FRAME_MAX - 1, last)
