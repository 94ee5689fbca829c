"""Values that a metadata store gives: versions, values with their versions, watches, and leases."""

from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, NewType, Protocol, Self

from octavo.metadata.cluster.registration import BookieRegistration
from octavo.protocol.errors import OctavoError

Version = NewType("Version", int)
"""Version of one stored value."""


class Versioned[T](NamedTuple):
    """A value as read, and the version to expect when changing it."""

    value: T
    version: Version


class Watch[T](Protocol):
    """Follows one stored value: ``async with store.watch_ledger(id) as watch: async for value in watch``.

    The first value is the current one, as of entering or later. After every change the watch gives the latest value; it
    may skip intermediate values but never the last one. The iteration waits while the store cannot be reached. It
    raises :class:`ClientClosedError` when the store is closed, :class:`MetadataError` when the value cannot be
    understood. Any number of watches of one value cost as much as one. A watch is for one task; leaving the block ends
    it.

    Where a task would do nothing but wait, :meth:`begin` costs less: it calls back with each value until :meth:`stop`.
    A watch is entered, or begun, once.
    """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> T: ...

    def begin(self, on_value: Callable[[T], object], on_end: Callable[[OctavoError], object]) -> Self:
        """Call ``on_value`` with each value, never inside this call. If the iteration would raise, or ``on_value``
        does, the watch ends, and ``on_end`` is called with the error."""

    def stop(self) -> None:
        """Call nothing any more; also if the watch has ended by itself."""


class LeaseEnd(NamedTuple):
    """How a lease was lost."""

    reason: str
    """For people."""
    ran_out: bool = False
    """It was not renewed in time: another process need not have wanted what it was for."""
    cancelled: bool = False
    """The program has cancelled the task that renews it (rule H2)."""


class Lease(Protocol):
    """A registration or lock, held as long as its handle is open and renews it."""

    @property
    def lost(self) -> bool:
        """Whether it is certainly no longer held: released, taken over, or not renewed for the lease time. False
        promises nothing about the next instant: effects outside the store must carry the fencing number."""

    @property
    def loss(self) -> LeaseEnd | None:
        """How it was lost; None while :attr:`lost` is false."""

    @property
    def fencing_number(self) -> int:
        """Greater than that of every earlier holder of the same registration or lock."""

    @property
    def remaining_seconds(self) -> float:
        """For how long it is held for certain, whether or not it is renewed again: no other handle can have taken it
        meanwhile, but by taking over a registration. Not above 0 when it may have ended."""

    @property
    def slept(self) -> bool:
        """Whether this process did not run for the lease time or longer, at a stretch, since the lease was made: it was
        stopped, or its host suspended, or its event loop blocked."""

    async def wait_lost(self) -> None:
        """Return once :attr:`lost` is true. Any number of tasks may wait."""

    def when_lost(self, act: Callable[[], object]) -> None:
        """Call ``act`` once when :meth:`wait_lost` would return; never inside this call. It may not raise. In a forked
        child it is not called."""

    async def release(self) -> None:
        """Release it. Does nothing when it is already lost."""


class BookieLease(Lease, Protocol):
    """A bookie's registration."""

    async def update(self, registration: BookieRegistration) -> None:
        """Publish a changed registration. Raises :class:`LeaseLostError` when the registration is lost; register
        again."""


class LockHolder(NamedTuple):
    """The holder of a lock; in an election, the leader."""

    holder: str
    fencing_number: int
