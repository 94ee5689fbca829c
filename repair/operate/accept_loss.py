"""Closes a ledger whose end cannot be known, at the word of an operator (rule O4). A stream is put at rest.

Recovery stops when Qa or more members of a write set cannot tell whether they had an entry. If those members are gone
for good, no waiting helps: the bookies that had the entry will never say so. An operator may then count bookies
as denying every entry of which they cannot tell. Acknowledged entries may be lost by that; the decision is recorded.
A bookie in doubt is asked nevertheless: whatever it still has is kept. A retired one is not, and counts as fenced and
as denying everything.

Only a bookie that never confirms an ordinary add of the ledger again may be given up: one that is retired, because it
never starts and never registers again, and one in doubt whose floor is above the ledger, because the floor stands for
ever (rule D1). In both cases a process that was the bookie before may have been paused, or be cut off from the
metadata: it confirms adds for at most ``UNREGISTERED_SECONDS_MAX`` after its registration (rule B10). So the loss is
accepted when that time has passed since the retirement, or since the doubt was noticed; or at once, if the operator has
seen that the process has ended. What such a process confirmed before that is part of the loss that is accepted. A
bookie that is merely missing, or whose doubt began before the ledger was created, could serve on unfenced, and confirm
adds of a writer that was cut off while the ledger was closed without them (rule I7). Of a stream only a retired bookie
may be given up: one in doubt takes adds of the terms above its floor (rule T12).
"""

import contextlib
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from octavo.client.choose.placer import Placer
from octavo.client.options import ClientOptions
from octavo.client.recover.ender import Ender
from octavo.client.wire.pool import ConnectionPool
from octavo.metadata.cluster.registration import UNREGISTERED_SECONDS_MAX
from octavo.metadata.cluster.repair_states import BookieCondition, Condition
from octavo.metadata.ledger.stored import StoredLedger
from octavo.metadata.store.store import MetadataStore
from octavo.metadata.stream.any_metadata import EitherMetadata
from octavo.metadata.updates.garbage_hold import read_hold
from octavo.protocol.entries import derive_secrets, verifier_matches
from octavo.protocol.errors import LedgerRecoveryError, MetadataConflictError, UnauthorizedError
from octavo.protocol.ids import BookieId, LedgerId
from octavo.repair.base.ask_bookie import facts_of
from octavo.repair.base.documents import AcceptedLoss, accepted_name
from octavo.repair.operate.operators import RepairRefusedError, read_states

_NAME: Final = "octavo repair accept-loss"

SILENT_AFTER_SECONDS: Final = UNREGISTERED_SECONDS_MAX + 600
"""Time after which a process that has lost its bookie's id confirms nothing any more. Ten minutes more than it allows
itself: longer than any lease, and for clocks of which one goes a little slower than the other."""


class BlockedRecovery:
    """One ledger whose recovery is blocked. Made for one command; :meth:`close` ends its connections."""

    def __init__(
        self, store: MetadataStore, ledger_id: LedgerId, password: bytes, cluster_id: str, options: ClientOptions
    ) -> None:
        rng = random.Random()
        self._store = store
        self._ledger_id = ledger_id
        self._secrets = derive_secrets(password, ledger_id)
        self._pool = ConnectionPool(store, cluster_id=cluster_id, options=options, rng=rng)
        placer = Placer(store, rng=rng, quarantined=self._pool.quarantined, watched=self._pool.registrations)
        self._ender = Ender(
            store=store, pool=self._pool, placer=placer, options=options, rng=rng,
            wall_clock=lambda: datetime.now(UTC), client_name=_NAME,
        )  # fmt: skip

    async def check(self, without: Sequence[BookieId], *, ended: bool = False) -> str:
        """Why the ledger cannot be recovered. ``ended``: the operator has seen that no process runs any more that has
        been one of these bookies, but for those that answer. Raises :class:`RepairRefusedError` when it can be, or has
        its end, or when a bookie may not be given up; :class:`UnauthorizedError`."""
        metadata = (await self._store.read_either(self._ledger_id)).value
        if metadata.has_end:
            state = metadata.state.value.replace("-", " ")
            raise RepairRefusedError(f"ledger {self._ledger_id} is {state}; nothing has to be accepted")
        key = metadata.key_at(metadata.last_fragment.first_entry_id)
        if not verifier_matches(key.verifier, self._secrets, key.digest, key.salt):
            raise UnauthorizedError(f"ledger {self._ledger_id}: wrong password")
        await self._check_given_up(metadata, without, ended=ended)
        try:
            await self._ender.end(await self._store.read_either(self._ledger_id), self._secrets)
        except LedgerRecoveryError as error:
            return error.message
        raise RepairRefusedError(f"ledger {self._ledger_id} was not blocked: it has been recovered without any loss")

    async def accept(
        self, without: Sequence[BookieId], *, reason: str, now_ms: int, ended: bool = False
    ) -> EitherMetadata:
        """Close the ledger without these bookies, or put the stream at rest without them, and record it. Raises
        :class:`LedgerRecoveryError` when other bookies are needed, too."""
        metadata = (await self._store.read_either(self._ledger_id)).value
        retired = await self._check_given_up(metadata, without, ended=ended)
        unsure = [name for name in without if name not in retired]
        current = await self._store.read_either(self._ledger_id)
        if current.value.term != metadata.term:
            raise RepairRefusedError(f"stream {self._ledger_id} has been taken over; nothing has to be accepted")
        closed = (await self._ender.end(current, self._secrets, without=retired, unsure=unsure)).value
        name = accepted_name(self._ledger_id, None if metadata.next_term is None else metadata.term)
        loss = AcceptedLoss(self._ledger_id, tuple(without), now_ms, closed.last_entry_id, reason)
        with contextlib.suppress(MetadataConflictError):  # accepted a second time: the first record stands
            await self._store.create_document(name, loss.encode())
        return closed

    async def close(self) -> None:
        """End the connections."""
        await self._pool.close()

    async def _check_given_up(
        self, metadata: StoredLedger, without: Sequence[BookieId], *, ended: bool
    ) -> list[BookieId]:
        """Those of the bookies that are retired; the others are in doubt."""
        hold = await read_hold(self._store)
        if hold is not None:
            raise RepairRefusedError(
                "the metadata may be older than the data, so bookies that they do not name may have what seems lost:"
                f" garbage collection is on hold: {hold.reason}; when no ledger is missing, end the hold with `octavo"
                " cluster release-garbage`"
            )
        retired: list[BookieId] = []
        states = await read_states(self._store)
        for name in without:
            if name not in metadata.last_fragment.bookies:
                raise RepairRefusedError(
                    f"bookie {name} is not in the last fragment of ledger {self._ledger_id}: giving it up changes"
                    " nothing"
                )
            match states.condition_of(name):
                case Condition.RETIRED if await self._store.read_cookie(name) is None:
                    await self._check_unregistered(name)
                    retired.append(name)
                case Condition.RETIRED:
                    raise RepairRefusedError(
                        f"the retirement of bookie {name} was interrupted, and can be taken back: complete it with "
                        f"`octavo repair retire {name} --lost`"
                    )
                case Condition.DOUBTFUL if metadata.next_term is None:
                    await self._check_floor(name)
                case Condition.DOUBTFUL:
                    raise RepairRefusedError(
                        f"bookie {name} is in doubt, and takes adds of later terms of streams: it could confirm adds "
                        f"that would be lost; {_retire_it(name)}"
                    )
                case _:
                    raise RepairRefusedError(
                        f"bookie {name} is neither retired nor in doubt: it could come back and confirm adds that would"
                        f" be lost; {_retire_it(name)}"
                    )
            if not ended:
                await self._check_silent(states.bookies[name], name)
        return retired

    async def _check_unregistered(self, name: BookieId) -> None:
        """Without its cookie a bookie cannot register any more (rule B10), but it may have done so just before."""
        registration = (await self._store.list_bookies()).get(name)
        if registration is not None:
            raise RepairRefusedError(
                f"bookie {name} is registered at {registration.address} although it is retired: it confirms adds that "
                "would be lost; stop it first"
            )

    async def _check_silent(self, entry: BookieCondition, name: BookieId) -> None:
        """A process that was the bookie, and was paused or cut off, confirms nothing any more (rule B10)."""
        silent_at_ms = entry.since_ms + SILENT_AFTER_SECONDS * 1000
        seconds = (silent_at_ms - await self._store.time_ms()) / 1000
        if seconds > 0:
            raise RepairRefusedError(
                f"bookie {name} has been {entry.condition.value} for less than {SILENT_AFTER_SECONDS / 3600:.1f} h: if "
                "its process was paused, or is cut off from the metadata, it may confirm adds that would be lost; try "
                f"again in {seconds / 60:.0f} min, or give --ended if you have seen that the process has ended, and "
                "can never go on"
            )

    async def _check_floor(self, name: BookieId) -> None:
        facts = await facts_of(self._pool, name)
        if facts is None:
            raise RepairRefusedError(
                f"bookie {name} is in doubt and does not answer: whether it refuses adds to ledger {self._ledger_id} is"
                f" not known; start it, or {_retire_it(name)}"
            )
        floor = facts.get("doubt_floor")
        if not isinstance(floor, int) or floor <= self._ledger_id:
            raise RepairRefusedError(
                f"bookie {name} is in doubt about older ledgers only and takes adds to ledger {self._ledger_id}: it"
                f" could confirm adds that would be lost; {_retire_it(name)}"
            )


def _retire_it(name: BookieId) -> str:
    return f"stop it and retire it first with `octavo repair retire {name} --lost`"
