"""The interface of everything the cluster agrees on: ledgers, bookies, cookies, named documents, locks.

What every driver promises:

* Every change is a compare-and-set on a version, or a create or delete that says what it expects (rule M1).
  Versions of one thing increase; they are compared for equality only.
* A change that has returned is durable and is seen by every later read of every handle. Reads are never stale (rule
  M3).
* :class:`MetadataUnavailableError` means no answer; a change asked for may have happened (its ``may_have_happened``
  says). A driver that can lose the answer to a change it sent must look whether the change stands there before it
  reports a conflict: the value it wanted, under the writer's token it wrote, is its own write.
* Every method raises :class:`ClientClosedError` once :meth:`MetadataStore.close` has begun, and :class:`MetadataError`
  when what is stored cannot be understood (it names the thing).
* Registrations and locks hang on one lease per handle. The handle renews it in the background while its event loop
  runs. Whoever stops for longer than the lease (a stopped process, a lost connection) has lost all of them at once, is
  told (:meth:`Lease.wait_lost`) and may register or lock anew.
* Cancelling an await leaves the store usable; the change may or may not have been made.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import NamedTuple, NewType, Protocol, Self

from octavo.metadata.model import LedgerMetadata
from octavo.metadata.registration import BookieRegistration, Cookie, KnownBookie
from octavo.protocol.ids import BookieId, LedgerId

Version = NewType("Version", int)
"""Version of one thing in the store."""

LEASE_SECONDS_DEFAULT = 10.0
"""How long a dead process's registrations and locks outlive it. Long enough for a pause of a busy machine, short enough
that placement does not keep offering a dead bookie."""


class Versioned[T](NamedTuple):
    """A value as read, and the version to expect when changing it."""

    value: T
    version: Version


class Watch[T](Protocol):
    """Follows one thing: ``async with store.watch_ledger(id) as watch: async for value in watch``.

    The first value is the current one, as of entering or later. After every change comes the latest value; intermediate
    ones may be skipped, the last one never is. The iteration waits while the store cannot be reached. It raises
    :class:`ClientClosedError` when the store is closed, :class:`MetadataError` when the value cannot be understood. Any
    number of watches of one thing cost as much as one. A watch is for one task; leaving the block ends it.
    """

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> T: ...


class Lease(Protocol):
    """Something held for as long as the store's handle lives and renews."""

    @property
    def lost(self) -> bool:
        """Whether it is certainly held no more: released, taken over, or not renewed for the lease time. False is no
        promise for the next instant: effects outside must carry the fencing number."""

    @property
    def fencing_number(self) -> int:
        """Greater than that of every earlier holder of the same thing."""

    async def wait_lost(self) -> None:
        """Return once :attr:`lost` is true. Any number of tasks may wait."""

    async def release(self) -> None:
        """Give it up. Nothing happens when it is lost already."""


class BookieLease(Lease, Protocol):
    """A bookie's registration."""

    async def update(self, registration: BookieRegistration) -> None:
        """Announce a change (of state). Raises :class:`LeaseLostError` when the registration is lost: register
        again."""


class LockHolder(NamedTuple):
    """Who holds a lock: for an election, the leader."""

    holder: str
    fencing_number: int


class MetadataStore(ABC):
    """A handle on a cluster's metadata. Made by :func:`octavo.metadata.open_metadata_store`; used from one event
    loop."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @property
    @abstractmethod
    def uri(self) -> str:
        """The URI that opens this store."""

    @abstractmethod
    async def close(self) -> None:
        """Release the lease (registrations and locks end at once) and let go of the store. Waiting watches raise
        :class:`ClientClosedError`. May be called twice, from any task."""

    @abstractmethod
    async def cluster_id(self) -> str:
        """The cluster's identity: made once, by whoever came first, the same for everybody for ever."""

    # --- ledgers ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def allocate_ledger_id(self) -> LedgerId:
        """An id that nobody was or will be given, whatever is deleted or crashes. Gaps are possible."""

    @abstractmethod
    async def create_ledger(self, metadata: LedgerMetadata) -> Version:
        """Store a new ledger; its id comes from :meth:`allocate_ledger_id`.

        Raises :class:`LedgerExistsError`, :class:`InvalidArgumentError` for an id that was never allocated.
        """

    @abstractmethod
    async def read_ledger(self, ledger_id: LedgerId) -> Versioned[LedgerMetadata]:
        """Raises :class:`NoSuchLedgerError`."""

    @abstractmethod
    async def compare_and_set_ledger(self, metadata: LedgerMetadata, expected: Version) -> Version:
        """Replace the ledger's metadata if they still have the expected version; gives the new one.

        Raises :class:`MetadataConflictError` when they have another version, :class:`NoSuchLedgerError` when deleted.
        Callers use :func:`octavo.metadata.update_ledger`, which decides what a conflict means.
        """

    @abstractmethod
    async def delete_ledger(self, ledger_id: LedgerId, expected: Version | None = None) -> None:
        """Delete, whatever the version unless one is expected.

        Raises :class:`NoSuchLedgerError`, :class:`MetadataConflictError` for another version.
        """

    @abstractmethod
    def list_ledgers(self) -> AsyncIterator[LedgerId]:
        """All ledgers in order of their ids, in bounded memory. One that exists from beginning to end of the iteration
        is given exactly once; one created or deleted meanwhile may or may not be. A failure raises, it never ends the
        list early (rule B5)."""

    @abstractmethod
    def watch_ledger(self, ledger_id: LedgerId) -> Watch[Versioned[LedgerMetadata] | None]:
        """Follow a ledger's metadata; None when it does not exist or has been deleted."""

    # --- bookies ---------------------------------------------------------------------------------------------------

    @abstractmethod
    async def register_bookie(self, registration: BookieRegistration) -> BookieLease:
        """Announce a live bookie until the lease ends. Takes the place of any registration of the same id at once: a
        bookie that was killed and started again need not wait for its old lease; the holder of the old one is told it
        is lost."""

    @abstractmethod
    async def list_bookies(self) -> Mapping[BookieId, BookieRegistration]:
        """The registered bookies, in order of their ids. A hint, never a proof of death (rule M2)."""

    @abstractmethod
    def watch_bookies(self) -> Watch[Mapping[BookieId, BookieRegistration]]:
        """Follow :meth:`list_bookies`."""

    @abstractmethod
    async def list_known_bookies(self) -> list[KnownBookie]:
        """Every bookie with a cookie or a registration, in order of ids."""

    @abstractmethod
    async def create_cookie(self, cookie: Cookie) -> Version:
        """Raises :class:`MetadataConflictError` when the bookie has one."""

    @abstractmethod
    async def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        """None when the bookie has none."""

    @abstractmethod
    async def compare_and_set_cookie(self, cookie: Cookie, expected: Version) -> Version:
        """Raises :class:`MetadataConflictError` when it is gone or has another version."""

    @abstractmethod
    async def delete_cookie(self, bookie_id: BookieId, expected: Version) -> None:
        """Forget the bookie. Raises :class:`MetadataConflictError` when it is gone or has another version."""

    @abstractmethod
    async def list_cookies(self) -> list[Versioned[Cookie]]:
        """All cookies, in order of bookie ids."""

    # --- named documents -------------------------------------------------------------------------------------------

    @abstractmethod
    async def create_document(self, name: str, value: bytes) -> Version:
        """Store a small document (at most :data:`DOCUMENT_BYTES_MAX`). Names are ``/``-separated words.

        Raises :class:`MetadataConflictError` when it exists, :class:`InvalidArgumentError` for a bad name or size.
        """

    @abstractmethod
    async def read_document(self, name: str) -> Versioned[bytes] | None:
        """None when there is none."""

    @abstractmethod
    async def compare_and_set_document(self, name: str, value: bytes, expected: Version) -> Version:
        """Raises :class:`MetadataConflictError` when it is gone or has another version."""

    @abstractmethod
    async def delete_document(self, name: str, expected: Version | None = None) -> None:
        """Delete. Without a version, nothing happens when it is gone; with one, that is a
        :class:`MetadataConflictError`, as another version is."""

    @abstractmethod
    def list_documents(self, prefix: str = "") -> AsyncIterator[str]:
        """Names that start with ``prefix``, in order, in bounded memory; as :meth:`list_ledgers` otherwise."""

    @abstractmethod
    def watch_document(self, name: str) -> Watch[Versioned[bytes] | None]:
        """Follow a document; None while it does not exist."""

    # --- locks and election ----------------------------------------------------------------------------------------

    @abstractmethod
    async def try_lock(self, name: str, holder: str) -> Lease | None:
        """The lock if it is free; None when somebody holds it, this handle included. ``holder`` says who, for people
        and for :meth:`read_lock`."""

    @abstractmethod
    async def lock(self, name: str, holder: str) -> Lease:
        """Wait until the lock is free and take it. Cancelling the wait leaves no lock behind."""

    @abstractmethod
    async def read_lock(self, name: str) -> LockHolder | None:
        """Who holds the lock; None when it is free."""

    @abstractmethod
    def watch_lock(self, name: str) -> Watch[LockHolder | None]:
        """Follow a lock: for an election, the leader."""


DOCUMENT_BYTES_MAX = 512 * 1024
"""Largest document: ZooKeeper takes at most 1 MiB a node by default."""
