"""The registrations and locks that one process holds: one session, renewed while the event loop runs.

A lease is lost when its holder releases it, when another handle takes it over, when the store says that the session has
ended, or when the lease time has passed since the start of the last successful renewal. The holder judges the last case
by its own clock: other processes may already have seen the lease end although the store does not answer this one.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from octavo.metadata.cluster.registration import BookieRegistration, encode_registration
from octavo.metadata.own_tasks import result_of, when_cancelled
from octavo.metadata.store.driver import Kind, RecordStore, Unchanged
from octavo.metadata.store.signal import Signal
from octavo.metadata.store.values import LeaseEnd
from octavo.protocol.errors import (
    ClientClosedError,
    InvalidArgumentError,
    LeaseLostError,
    MetadataError,
    MetadataUnavailableError,
    OctavoError,
)

LEASE_SECONDS_DEFAULT = 10.0
"""How long the registrations and locks of a dead process outlive it. Long enough to survive a pause of a busy machine,
short enough that placement soon stops offering a dead bookie."""

RENEWALS_PER_LEASE: Final = 3
"""Renewals are this often due in a lease time, and each may wait this part of it for its answer."""

_RETRIES_PER_RENEWAL: Final = 4
"""A renewal that was not answered is repeated after this part of the time between renewals: the store may have been
silent for most of the lease time, and a lease must outlast that."""

DELETIONS_MAX: Final = 256
"""Released records that are deleted at a time: a store makes them in one transaction, or on one connection."""

_TURNS_OF_AN_ANSWER: Final = 4
"""Turns of the event loop from the moment in which an answer is there until the task that waits for it goes on."""


class HeldLease:
    """A :class:`octavo.metadata.store.values.Lease`."""

    def __init__(self, keeper: "LeaseKeeper", kind: Kind, key: str, session: str, fencing_number: int) -> None:
        self._keeper = keeper
        self._kind = kind
        self._key = key
        self.session = session
        self._fencing_number = fencing_number
        self._ended = Signal()
        self._sleeps = keeper.sleeps
        self._end: LeaseEnd | None = None
        self._when_lost: tuple[Callable[[], object], ...] = ()

    def __repr__(self) -> str:
        return f"<lease on {self._kind.value} {self._key}, {'lost' if self.lost else 'held'}>"

    @property
    def thing(self) -> tuple[Kind, str]:
        """Kind and key of the record that is held."""
        return self._kind, self._key

    @property
    def fencing_number(self) -> int:
        return self._fencing_number

    @property
    def lost(self) -> bool:
        return self._ended.is_set() or self._keeper.out_of_time(self.session)

    @property
    def remaining_seconds(self) -> float:
        return 0.0 if self._ended.is_set() else self._keeper.remaining_seconds(self.session)

    @property
    def slept(self) -> bool:
        return self._keeper.sleeps != self._sleeps

    @property
    def loss(self) -> LeaseEnd | None:
        if self._end is None and self._keeper.out_of_time(self.session):
            return self._keeper.ran_out()
        return self._end

    async def wait_lost(self) -> None:
        await self._ended.wait()

    def when_lost(self, act: Callable[[], object]) -> None:
        if self._ended.is_set():
            asyncio.get_running_loop().call_soon(act)
        else:
            self._when_lost = (*self._when_lost, act)

    async def release(self) -> None:
        if not self._ended.is_set():
            self.end(LeaseEnd("it was released"))
            await self._keeper.give_up(self)

    async def update(self, registration: BookieRegistration) -> None:
        """Publish a changed registration. Only for a bookie's lease."""
        if registration.bookie_id != self._key:
            raise InvalidArgumentError(
                f"this is the registration of bookie {self._key}, not of {registration.bookie_id}"
            )
        if not self.lost and await self._keeper.announce(self, encode_registration(registration)):
            return
        self.end(self.loss or LeaseEnd("another process has registered"))
        raise LeaseLostError(f"bookie {self._key}: its registration is lost; register again")

    def end(self, how: LeaseEnd) -> None:
        """Mark the lease as lost. The first reason counts."""
        self._end = self._end or how
        self._ended.set()
        told, self._when_lost = self._when_lost, ()
        for act in told:
            act()

    def on_forked(self) -> None:
        """In a forked child (rule H1): nothing of what the parent would do is done."""
        self._when_lost = ()
        self.end(LeaseEnd("the process was forked, and the child holds none"))


class LeaseKeeper:
    """The session of one handle, and all leases in it. ``clock`` gives seconds that never go back and keep counting
    while the host is suspended; ``new_token`` gives a name for a session."""

    def __init__(
        self,
        records: RecordStore,
        lease_seconds: float,
        clock: Callable[[], float],
        new_token: Callable[[], str],
    ) -> None:
        self._records = records
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._new_token = new_token
        self._closed = False
        self._session: str | None = None
        self._renewed_at = 0.0
        """Clock time at which the latest successful renewal started."""
        self._beginning = asyncio.Lock()
        self._leases: dict[tuple[Kind, str], HeldLease] = {}
        self._unreleased: dict[tuple[Kind, str], str] = {}
        """Records of no lease that may stand in the store, because it did not answer when they were released, or made.
        The session keeps them until they are deleted: no handle could take the lock while this process runs. With the
        session of each."""
        self._deleting: asyncio.Future[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._renewal_wanted = asyncio.Event()
        self._cleaning: set[asyncio.Task[None]] = set()
        self.answered = True
        """Whether the store answered when the session was last begun or renewed; True before that."""
        self._stood_still = False
        """Since the latest successful renewal this process has done something much later than it was due."""
        self._awake_at = clock()
        """Clock time at which the task that renews ran last. It runs at least twice per lease."""
        self._sleeps = 0

    @property
    def sleeps(self) -> int:
        """How often this process has not run for the lease time or longer, at a stretch."""
        asleep = self._renewing is not None and self._clock() - self._awake_at >= self._lease_seconds
        return self._sleeps + asleep

    def _note_awake(self) -> None:
        now = self._clock()
        self._sleeps += now - self._awake_at >= self._lease_seconds
        self._awake_at = now

    def remaining_seconds(self, session: str) -> float:
        """For how long the session lasts for certain, as far as this process can tell."""
        if session != self._session:
            return 0.0
        return self._renewed_at + self._lease_seconds - self._clock()

    def out_of_time(self, session: str) -> bool:
        """Whether the session has ended as far as this process can tell."""
        return session != self._session or self._clock() >= self._renewed_at + self._lease_seconds

    def ran_out(self) -> LeaseEnd:
        """How the session has ended, once it is out of time."""
        return self._ran_out(self._clock())

    def _ran_out(self, now: float) -> LeaseEnd:
        """How the session has ended, which was still to be renewed at this time."""
        late_seconds = now - self._renewed_at
        if late_seconds < self._lease_seconds and self.answered:
            return LeaseEnd("the metadata store has ended its session", ran_out=True)
        cause = "was the event loop blocked, or the process stopped?"
        if not self.answered and not self._stood_still:
            cause = "the metadata store did not answer, or had no space"
        return LeaseEnd(
            f"the lease of {self._lease_seconds:g} s was not renewed for {late_seconds:.1f} s: {cause}", ran_out=True
        )

    async def acquire(
        self, kind: Kind, key: str, value: bytes, *, take_over: bool, unchanged: Unchanged | None = None
    ) -> HeldLease | None:
        """Create a record in our session; None when another handle holds it, or when what was to be ``unchanged`` has
        changed. A cancelled call leaves nothing behind."""
        making = asyncio.create_task(self._make(kind, key, value, take_over, unchanged))
        try:
            return await result_of(making, f"taking {kind.value} {key}")
        except asyncio.CancelledError:
            cleaning = asyncio.create_task(_release_when_made(making))
            self._cleaning.add(cleaning)
            cleaning.add_done_callback(self._cleaning.discard)
            raise

    def release_soon(self, lease: HeldLease) -> None:
        """Release it in the background."""
        releasing = asyncio.create_task(_release(lease))
        self._cleaning.add(releasing)
        releasing.add_done_callback(self._cleaning.discard)

    async def give_up(self, lease: HeldLease) -> None:
        """Delete the record of a lease, unless another handle holds it by now. If this fails, each later renewal tries
        again."""
        if self._leases.get(lease.thing) is lease:
            del self._leases[lease.thing]
            self._unreleased[lease.thing] = lease.session
            await self._delete_unreleased(lease.thing)

    async def _delete_unreleased(self, thing: tuple[Kind, str] | None = None) -> None:
        """Delete what was released, all of it together: what is released meanwhile waits, and then goes together as
        well. A deletion must not meet a new lease on the same record, which waits for this. ``thing``: return once this
        one is deleted; None: everything.

        Those who wait go on in one turn. One after another they would go on in a turn each, and so would what each of
        them changes next, in a transaction of its own.
        """
        while self._deleting is not None:
            await asyncio.wait([self._deleting])
            if thing is not None and thing not in self._unreleased:
                return  # it went together with others
        released = list(self._unreleased.items())
        if not released:
            return
        self._deleting = deleting = asyncio.get_running_loop().create_future()
        try:
            for start in range(0, len(released), DELETIONS_MAX):
                deletions = [self._delete_released(*one) for one in released[start : start + DELETIONS_MAX]]
                for outcome in await asyncio.gather(*deletions, return_exceptions=True):
                    if outcome is not None:
                        raise outcome
        finally:
            self._deleting = None
            deleting.set_result(None)

    async def _delete_released(self, thing: tuple[Kind, str], session: str) -> None:
        if thing not in self._leases:
            await self._records.delete_in_session(*thing, session)
        if self._unreleased.get(thing) == session:
            del self._unreleased[thing]

    async def announce(self, lease: HeldLease, value: bytes) -> bool:
        """Change the record of a lease; False when the lease is lost."""
        return await self._records.set_in_session(*lease.thing, value, lease.session) is not None

    async def renew(self) -> None:
        """Renew now, and mark the leases that turn out to be lost. Does not raise when the store does not answer."""
        self._note_awake()
        session, began_at = self._session, self._clock()
        if session is None:
            return
        # A lease made while the renewal is under way may be missing from its answer; only these must be in it.
        made_before = dict(self._leases)
        try:
            held = await self._renewed(session)
        except (OctavoError, TimeoutError):
            self.answered = False
            self._note_time(due_at=began_at + self._lease_seconds / RENEWALS_PER_LEASE)
            if self._session == session and self.out_of_time(session):
                self._lose(session, self.ran_out())
            return
        if session != self._session:
            self.answered = True
            return
        if held is None:
            how = self._ran_out(began_at)
            self.answered = True
            self._lose(session, how)
            return
        self.answered, self._stood_still = True, False
        self._renewed_at = began_at
        gone = set(made_before) - held  # calls nothing for each of ten thousand locks that are held
        for thing in [thing for thing in made_before if thing in gone] if gone else ():
            lease = made_before[thing]
            if self._leases.get(thing) is lease:
                del self._leases[thing]
                lease.end(LeaseEnd("another process has taken it, or it was deleted by hand"))
        with contextlib.suppress(OctavoError, TimeoutError):
            async with asyncio.timeout(self._lease_seconds / RENEWALS_PER_LEASE):
                await self._delete_unreleased()

    async def _renewed(self, session: str) -> set[tuple[Kind, str]] | None:
        """As :meth:`RecordStore.renew_session`. Raises :class:`TimeoutError`, too."""
        renewing = asyncio.ensure_future(self._records.renew_session(session, self._lease_seconds))
        try:
            await asyncio.wait([renewing], timeout=self._lease_seconds / RENEWALS_PER_LEASE)
            for _ in range(_TURNS_OF_AN_ANSWER):
                if renewing.done():
                    break
                # A turn of a busy loop may take long, and the answer have come in the one in which the time was over.
                await asyncio.sleep(0)
            if renewing.done() and not renewing.cancelled():
                return renewing.result()
        finally:
            renewing.cancel()
        raise TimeoutError

    def renew_soon(self) -> None:
        """Renew without waiting for the next interval: the session may have ended."""
        self._renewal_wanted.set()

    def on_forked(self) -> None:
        """In a forked child (rule H1) no lease is held. The parent's session is not touched."""
        self._closed = True
        self._session = None
        for lease in self._leases.values():
            lease.on_forked()

    async def close(self) -> None:
        """Release everything. Does not raise when the store does not answer or is of no use any more: the session then
        expires by itself."""
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await asyncio.gather(*self._cleaning, return_exceptions=True)
        session = self._session
        if session is None:
            return
        self._lose(session, LeaseEnd("its holder has closed the metadata store"))
        with contextlib.suppress(MetadataUnavailableError, MetadataError):
            await self._records.end_session(session)

    async def _make(
        self, kind: Kind, key: str, value: bytes, take_over: bool, unchanged: Unchanged | None
    ) -> HeldLease | None:
        while True:
            session = await self._live_session()
            if (kind, key) in self._unreleased:
                await self._delete_unreleased((kind, key))
            try:
                version = await self._records.create_in_session(
                    kind, key, value, session, take_over=take_over, unchanged=unchanged
                )
            except MetadataUnavailableError:
                if session == self._session:
                    self._unreleased[kind, key] = session
                raise
            if version is not None:
                break
            # Another handle holds it, what was to be unchanged is not, or our session has ended without our knowing: a
            # renewal shows which.
            await self.renew()
            if session == self._session:
                return None
        lease = HeldLease(self, kind, key, session, version)
        previous = self._leases.get(lease.thing)
        if previous is not None:
            previous.end(LeaseEnd("its holder has replaced it"))
        self._leases[lease.thing] = lease
        return lease

    async def _live_session(self) -> str:
        async with self._beginning:
            if self._closed:
                raise ClientClosedError("the metadata store has been closed")
            if self._session is not None and self.out_of_time(self._session):
                self._lose(self._session, self.ran_out())
            if self._session is None:
                session, began_at = self._new_token(), self._clock()
                try:
                    await self._records.begin_session(session, self._lease_seconds)
                except MetadataUnavailableError:
                    self.answered = False
                    raise
                self.answered = True
                self._session, self._renewed_at = session, began_at
                if self._renewing is None:
                    self._awake_at = self._clock()
                    renewing = asyncio.create_task(self._keep_renewing(), name="renew leases")
                    self._renewing = when_cancelled(renewing, self._renewing_cancelled)
            return self._session

    def _lose(self, session: str, how: LeaseEnd) -> None:
        assert session == self._session
        self._session = None
        self._unreleased.clear()
        leases = list(self._leases.values())
        self._leases.clear()
        for lease in leases:
            lease.end(how)

    def _renewing_cancelled(self) -> None:
        """By :meth:`close`, or by the program: then the leases are not renewed any more, and their holders learn it
        now. The session ends by itself."""
        if not self._closed:
            self._renewing = None
            if self._session is not None:
                how = LeaseEnd("the program has cancelled the task that renews it", cancelled=True)
                self._lose(self._session, how)

    async def _keep_renewing(self) -> None:
        interval = self._lease_seconds / RENEWALS_PER_LEASE
        while True:
            delay = interval if self.answered else interval / _RETRIES_PER_RENEWAL
            if self._session is not None:
                # After failed renewals, wake up when the lease time is over to mark the leases as lost.
                remaining = self._renewed_at + self._lease_seconds - self._clock()
                delay = min(delay, max(remaining, interval / 10))
            self._renewal_wanted.clear()
            due_at = self._clock() + delay
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._renewal_wanted.wait()
            self._note_time(due_at)
            await self.renew()

    def _note_time(self, due_at: float) -> None:
        """Something that was due at this time is being done now."""
        if self._clock() >= due_at + self._lease_seconds / RENEWALS_PER_LEASE:
            self._stood_still = True


async def _release_when_made(making: "asyncio.Task[HeldLease | None]") -> None:
    # The caller was cancelled: it cannot take an error, and a lease that cannot be released ends with the session.
    with contextlib.suppress(OctavoError):
        lease = await making
        if lease is not None:
            await lease.release()


async def _release(lease: HeldLease) -> None:
    # If it fails, each later renewal tries again.
    with contextlib.suppress(OctavoError):
        await lease.release()


def check_lease_seconds(lease_seconds: float) -> None:
    """Raise :class:`InvalidArgumentError` unless this is a possible length of a lease. Drivers check before they
    open."""
    if lease_seconds <= 0:
        raise InvalidArgumentError(f"a lease must last longer than 0 seconds, not {lease_seconds}")
