"""The interface of a metadata store: ledgers, bookies, cookies, named documents, locks.

Every driver guarantees:

* Every change is a compare-and-set on a version, or a create or delete that states what it expects (rule M1).
  Versions of one thing increase; they are compared for equality only.
* A change that has returned is durable and is visible to every later read of every handle. Reads are not stale (rule
  M3), with one exception: a ZooKeeper server that has just lost its quorum may answer from old data for a moment.
  A decision that destroys data on the strength of an absence uses :meth:`MetadataStore.confirm_absent`, which is never
  stale.
* :class:`MetadataUnavailableError` means that the store gave no answer. A requested change may have happened; the
  error's ``may_have_happened`` says which. A driver that can lose the answer to a change checks whether the change was
  made before it reports a conflict: the value it wanted, with the writer token it wrote, is its own write.
* Every method raises :class:`ClientClosedError` once :meth:`MetadataStore.close` has begun, and :class:`MetadataError`
  when a stored value cannot be understood (the error names it).
* Registrations and locks belong to one lease per handle. The handle renews it in the background while its event loop
  runs. A process that stops for longer than the lease (a stopped process, a lost connection) loses all of them at once,
  is notified (:meth:`Lease.wait_lost`) and may register or lock again.
* After a cancelled await the store stays usable; the change may or may not have been made.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol, Self

from octavo.metadata.cluster.registration import BookieRegistration, Cookie, KnownBookie
from octavo.metadata.ledger.model import LedgerMetadata
from octavo.metrics.histogram import Histogram
from octavo.protocol.ids import BookieId, LedgerId

if TYPE_CHECKING:
    from octavo.metadata.stream.any_metadata import EitherMetadata
    from octavo.metadata.stream.model import StreamMetadata

Version = NewType("Version", int)
"""Version of one stored value."""

LEASE_SECONDS_DEFAULT = 10.0
"""How long the registrations and locks of a dead process outlive it. Long enough to survive a pause of a busy machine,
short enough that placement soon stops offering a dead bookie."""


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
    """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> T: ...


class LeaseEnd(NamedTuple):
    """How a lease was lost."""

    reason: str
    """For people."""
    ran_out: bool = False
    """It was not renewed in time: another process need not have wanted what it was for."""


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


class MetadataStore(ABC):
    """A handle on a cluster's metadata, opened by :func:`octavo.metadata.open_metadata_store` and used from one event
    loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI that opens this store."""

    seconds: dict[str, Histogram]
    """The durations of the requests made so far, by the name of the method. Lists and watches are not measured."""

    @property
    @abstractmethod
    def answers(self) -> bool:
        """Whether the store answered when the handle last began or renewed its lease. A handle without registrations
        and locks does neither; then it is true."""

    @abstractmethod
    async def close(self) -> None:
        """Release the lease (registrations and locks end at once) and close the store. Waiting watches raise
        :class:`ClientClosedError`. May be called twice and from any task."""

    @abstractmethod
    async def cluster_id(self) -> str:
        """The cluster's id, generated when the cluster is created. It never changes and is the same for every
        handle."""

    @abstractmethod
    async def time_ms(self) -> int:
        """The store's own time of day, in milliseconds since 1970: with ZooKeeper the clock of the leading server, else
        this host's. Deletion by age compares it with the client's clock, so that one wrong clock deletes nothing (rule
        P8). It may go back, and nothing else depends on it."""

    # --- ledgers ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def allocate_ledger_id(self) -> LedgerId:
        """An id that no other call returns, whatever is deleted and whatever crashes. Gaps are possible."""

    @abstractmethod
    async def ledger_ids_stop(self) -> LedgerId:
        """The lowest ledger id that has never been allocated. Ids below it may have been given to clients, also without
        a ledger having been created; no id at or above it has.

        The call reads the store; it does not answer from what the handle remembers. It is how a bookie tells a deleted
        ledger from an id that these metadata have never allocated (rule B5): the bookie holds entries of the latter
        when the metadata have been restored from an older copy. Raises :class:`MetadataError` when the store finds by
        itself that its data are older than what this handle has already seen.
        """

    @abstractmethod
    async def confirm_absent(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        """Those of the ledgers that have no metadata as of some moment after the call began, in the order given.

        Unlike :meth:`read_ledger`, the answer is never stale (rule B5, M3): with ZooKeeper, whose ``sync`` is no quorum
        operation (ZOOKEEPER-1675), the handle commits a write of its own before it reads. An id in the answer belongs
        to a ledger that was deleted, was never created, or was never allocated: see :meth:`ledger_ids_stop`. A client
        that holds a block of allocated ids may still create the ledger later. What this handle reads after the call is
        not older than that moment either. Raises :class:`InvalidArgumentError` for what can be no ledger id.
        """

    @abstractmethod
    async def create_ledger(self, metadata: LedgerMetadata) -> Version:
        """Store a new ledger, whose id comes from :meth:`allocate_ledger_id`.

        Raises :class:`LedgerExistsError`, :class:`InvalidArgumentError` for an id that was never allocated.
        """

    @abstractmethod
    async def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """Raises :class:`NoSuchLedgerError`, and :class:`LedgerKindError` for a stream."""

    @abstractmethod
    async def read_either(self, ledger_id: LedgerId) -> "Versioned[EitherMetadata]":
        """The ledger or the stream with this id. Raises :class:`NoSuchLedgerError`."""

    @abstractmethod
    async def compare_and_set_ledger(self, metadata: LedgerMetadata, expected: Version) -> Version:
        """Replace the ledger's metadata if they still have the expected version; returns the new version.

        Raises :class:`MetadataConflictError` when they have another version, :class:`NoSuchLedgerError` when the ledger
        has been deleted. Clients call :func:`octavo.metadata.update_ledger`, which decides what a conflict means.
        """

    @abstractmethod
    async def compare_and_set_ledgers(
        self, changes: "Sequence[tuple[EitherMetadata, Version]]"
    ) -> list[Version | None]:
        """Replace the metadata of several ledgers or streams, each if it still has the expected version; much cheaper
        than as many calls of :meth:`compare_and_set_ledger`. The changes are independent: one that conflicts affects
        no other.

        Returns the new version of each, in order; None for a ledger that has another version or has been deleted (read
        it to learn which). Raises :class:`MetadataUnavailableError` when an answer is missing; any of the changes may
        then have been made.
        """

    @abstractmethod
    async def delete_ledger(self, ledger_id: LedgerId, expected: Version | None = None) -> None:
        """Delete a ledger or a stream, whatever its version unless one is expected.

        Raises :class:`NoSuchLedgerError`, :class:`MetadataConflictError` for another version.
        """

    @abstractmethod
    def list_ledgers(self, *, after: LedgerId | None = None) -> AsyncIterator[LedgerId]:
        """The ids of all ledgers and streams, or of those above ``after``, in ascending order and in bounded memory. A
        ledger that exists throughout the iteration is listed exactly once; a ledger created or deleted meanwhile may or
        may not be listed. A failure raises; it never ends the list early (rule B5)."""

    @abstractmethod
    def watch_ledger(self, ledger_id: LedgerId) -> Watch[Versioned[LedgerMetadata] | None]:
        """Follow a ledger's metadata; None when it does not exist or has been deleted. Raises :class:`LedgerKindError`
        for a stream."""

    # --- streams: ledgers that several writers write one after another, under ids of ledgers -------------------------

    @abstractmethod
    async def create_stream(self, metadata: "StreamMetadata") -> Version:
        """Store a new stream. Raises as :meth:`create_ledger`."""

    @abstractmethod
    async def read_stream(self, ledger_id: LedgerId) -> "Versioned[StreamMetadata]":
        """Raises :class:`NoSuchLedgerError`, and :class:`LedgerKindError` for a ledger with one writer."""

    @abstractmethod
    async def compare_and_set_stream(self, metadata: "StreamMetadata", expected: Version) -> Version:
        """Replace the stream's metadata. Raises as :meth:`compare_and_set_ledger`. Clients call
        :func:`octavo.metadata.update_stream`, which decides what a conflict means."""

    @abstractmethod
    def watch_stream(self, ledger_id: LedgerId) -> "Watch[Versioned[StreamMetadata] | None]":
        """Follow a stream's metadata; None when it does not exist or has been deleted. Raises :class:`LedgerKindError`
        for a ledger with one writer."""

    # --- bookies ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def register_bookie(self, registration: BookieRegistration, *, cookie: Version | None = None) -> BookieLease:
        """Register a running bookie until the lease ends. The registration replaces any other of the same id at once,
        so that a bookie that was killed and started again need not wait for its old lease to end. The holder of the old
        registration is told that it is lost.

        ``cookie``: the version of the bookie's cookie that makes it the owner of its id. It is compared in the same
        step (rule B10): raises :class:`MetadataConflictError`, and registers nothing, if the cookie has another version
        or is gone.
        """

    @abstractmethod
    async def list_bookies(self) -> Mapping[BookieId, BookieRegistration]:
        """The registered bookies, in order of their ids. A missing bookie is a hint, never a proof that it is dead
        (rule M2)."""

    @abstractmethod
    def watch_bookies(self) -> Watch[Mapping[BookieId, BookieRegistration]]:
        """Follow :meth:`list_bookies`."""

    @abstractmethod
    async def list_known_bookies(self) -> list[KnownBookie]:
        """Every bookie with a cookie or a registration, in order of ids."""

    @abstractmethod
    async def create_cookie(self, cookie: Cookie) -> Version:
        """Store the cookie of a new bookie. Raises :class:`MetadataConflictError` when the bookie already has one."""

    @abstractmethod
    async def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        """The bookie's cookie; None when it has none."""

    @abstractmethod
    async def compare_and_set_cookie(self, cookie: Cookie, expected: Version) -> Version:
        """Replace a cookie. Raises :class:`MetadataConflictError` when it does not exist or has another version."""

    @abstractmethod
    async def delete_cookie(self, bookie_id: BookieId, expected: Version) -> None:
        """Forget the bookie. Raises :class:`MetadataConflictError` when its cookie does not exist or has another
        version."""

    @abstractmethod
    async def list_cookies(self) -> list[Versioned[Cookie]]:
        """All cookies, in order of bookie ids."""

    # --- named documents -------------------------------------------------------------------------------------------

    @abstractmethod
    async def create_document(self, name: str, value: bytes) -> Version:
        """Store a new document of at most :data:`DOCUMENT_BYTES_MAX` bytes. Names are words separated by ``/``.

        Raises :class:`MetadataConflictError` when it exists, :class:`InvalidArgumentError` for a bad name or size.
        """

    @abstractmethod
    async def read_document(self, name: str) -> Versioned[bytes] | None:
        """The document; None when it does not exist."""

    @abstractmethod
    async def compare_and_set_document(self, name: str, value: bytes, expected: Version) -> Version:
        """Replace a document. Raises :class:`MetadataConflictError` when it does not exist or has another version."""

    async def put_document(self, name: str, value: bytes, expected: Version | None) -> Version:
        """Store a document that is still as it was read: create it if it did not exist (None), else replace it. Raises
        as :meth:`create_document` and :meth:`compare_and_set_document`."""
        if expected is None:
            return await self.create_document(name, value)
        return await self.compare_and_set_document(name, value, expected)

    @abstractmethod
    async def delete_document(self, name: str, expected: Version | None = None) -> None:
        """Delete a document. Without an expected version, nothing happens when it does not exist. With one, a missing
        document or another version raises :class:`MetadataConflictError`."""

    @abstractmethod
    def list_documents(self, prefix: str = "") -> AsyncIterator[str]:
        """The names that start with ``prefix``, in order and in bounded memory, with the guarantees of
        :meth:`list_ledgers`."""

    @abstractmethod
    def watch_document(self, name: str) -> Watch[Versioned[bytes] | None]:
        """Follow a document; None while it does not exist."""

    # --- locks and election ----------------------------------------------------------------------------------------

    @abstractmethod
    async def try_lock(self, name: str, holder: str) -> Lease | None:
        """Take the lock if it is free and no client waits for it; None when it is held, also by this handle. ``holder``
        names the holder to people and in :meth:`read_lock`."""

    @abstractmethod
    async def lock(self, name: str, holder: str) -> Lease:
        """Wait until the lock is free and take it: first come, first served (rule M4). Cancelling the wait leaves no
        lock behind."""

    @abstractmethod
    async def read_lock(self, name: str) -> LockHolder | None:
        """The holder of the lock; None when it is free."""

    @abstractmethod
    def watch_lock(self, name: str) -> Watch[LockHolder | None]:
        """Follow a lock; in an election, this follows the leader."""


DOCUMENT_BYTES_MAX = 512 * 1024
"""Largest document: by default ZooKeeper stores at most 1 MiB in a node."""
