"""The metadata store: ledgers, streams, bookies, cookies, named documents, locks.

:class:`MetadataStore` is the same for every driver (``metadata/store/driver.py``): it says what each method guarantees,
and hands it to the part that does it, one for each subject: :class:`LedgerRecords`, :class:`BookieRecords`,
:class:`DocumentRecords`, :class:`LockRecords`. The parts share a :class:`Handle`: the driver's records, the watches and
the lease.

Whatever the driver, the store guarantees:

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

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from octavo.metadata.cluster.registration import BookieRegistration, Cookie, KnownBookie
from octavo.metadata.store.bookies import BookieRecords, known_bookies
from octavo.metadata.store.documents import DocumentRecords
from octavo.metadata.store.driver import RecordStore
from octavo.metadata.store.handle import Handle
from octavo.metadata.store.leases import check_lease_seconds
from octavo.metadata.store.ledgers import LedgerRecords
from octavo.metadata.store.locks import LockRecords
from octavo.metadata.store.request_times import measured
from octavo.metadata.store.values import BookieLease, Lease, LockHolder, Version, Versioned, Watch
from octavo.metadata.stream.any_metadata import EitherMetadata, as_ledger, as_stream
from octavo.metrics.histogram import Histogram
from octavo.protocol.errors import OctavoError
from octavo.protocol.ids import BookieId, LedgerId

if TYPE_CHECKING:
    from octavo.metadata.ledger.model import LedgerMetadata
    from octavo.metadata.stream.glance import StreamGlance
    from octavo.metadata.stream.model import StreamMetadata


class MetadataStore:
    """A handle on a cluster's metadata, opened by :func:`octavo.metadata.open_metadata_store`.

    It is used from one event loop, by any of its tasks. What holds for every method stands at the head of the module.

    Examples:
        >>> store = await octavo.metadata.open_metadata_store("memory://examples")
        >>> await store.create_document("jobs/nightly", b"idle")
        1
        >>> await store.read_document("jobs/nightly")
        Versioned(value=b'idle', version=1)
        >>> await store.close()
    """

    def __init__(
        self, records: RecordStore, *, lease_seconds: float, clock: Callable[[], float], rng: random.Random
    ) -> None:
        """``records`` is the driver. ``clock`` gives seconds for leases; ``rng`` generates the names of sessions."""
        check_lease_seconds(lease_seconds)
        self.seconds: dict[str, Histogram] = {}
        """The durations of the requests made so far, by the name of the method. Lists and watches are not measured."""
        self._handle = Handle(
            records, lease_seconds=lease_seconds, clock=clock, new_token=lambda: f"{rng.getrandbits(128):032x}"
        )
        self._ledgers = LedgerRecords(self._handle)
        self._bookies = BookieRecords(self._handle)
        self._documents = DocumentRecords(self._handle)
        self._locks = LockRecords(self._handle)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<MetadataStore {self.uri}{' closed' if self._handle.closed else ''}>"

    @property
    def uri(self) -> str:
        """The URI that opens this store."""
        return self._handle.uri

    @property
    def answers(self) -> bool:
        """Whether the store answered when the handle last began or renewed its lease.

        A handle without registrations and locks does neither; then it is true.
        """
        return self._handle.keeper.answered

    async def close(self) -> None:
        """Release the lease (registrations and locks end at once) and close the store.

        Waiting watches end with :class:`ClientClosedError`. May be called twice and from any task.
        """
        if self._handle.stop():
            await self._bookies.close()
            await self._handle.close()

    async def renew_leases(self) -> None:
        """Renew the lease now, without waiting for the next interval, and mark what has been lost."""
        self._handle.records()
        await self._handle.keeper.renew()

    async def cluster_id(self) -> str:
        """The cluster's id, generated when the cluster is created.

        It never changes and is the same for every handle.
        """
        return await self._handle.records().cluster_id()

    async def time_ms(self) -> int:
        """The store's own time of day, in milliseconds since 1970.

        With ZooKeeper it is the clock of the leading server, else this host's. Deletion by age compares it with the
        client's clock, so that one wrong clock deletes nothing (rule P8). It may go back, and nothing else depends on
        it.
        """
        return await self._handle.records().time_ms()

    # --- ledgers ---------------------------------------------------------------------------------------------------

    @measured
    async def allocate_ledger_id(self) -> LedgerId:
        """An id that no other call returns, whatever is deleted and whatever crashes. Gaps are possible."""
        return await self._handle.records().allocate_ledger_id()

    async def ledger_ids_stop(self) -> LedgerId:
        """The lowest ledger id that has never been allocated.

        Ids below it may have been given to clients, also without a ledger having been created; no id at or above it
        has. The call reads the store; it does not answer from what the handle remembers. It is how a bookie tells a
        deleted ledger from an id that these metadata have never allocated (rule B5): the bookie holds entries of the
        latter when the metadata have been restored from an older copy.

        Raises:
            MetadataError: The store finds by itself that its data are older than what this handle has already seen.
        """
        return await self._handle.records().ledger_ids_stop()

    @measured
    async def confirm_absent(self, ledger_ids: Sequence[LedgerId]) -> list[LedgerId]:
        """Those of the ledgers that have no metadata as of some moment after the call began, in the order given.

        Unlike :meth:`read_ledger`, the answer is never stale (rule B5, M3): with ZooKeeper, whose ``sync`` is no quorum
        operation (ZOOKEEPER-1675), the handle commits a write of its own before it reads. An id in the answer belongs
        to a ledger that was deleted, was never created, or was never allocated: see :meth:`ledger_ids_stop`. A client
        that holds a block of allocated ids may still create the ledger later. What this handle reads after the call is
        not older than that moment either.

        Raises:
            InvalidArgumentError: One of them can be no ledger id.
        """
        return await self._ledgers.confirm_absent(ledger_ids)

    @measured
    async def create_ledger(self, metadata: "LedgerMetadata") -> Version:
        """Store a new ledger, whose id comes from :meth:`allocate_ledger_id`.

        Raises:
            LedgerExistsError: There is a ledger or a stream with this id.
            InvalidArgumentError: The id was never allocated.
        """
        return await self._ledgers.create(metadata)

    @measured
    async def read_ledger(self, ledger_id: LedgerId) -> "Versioned[LedgerMetadata]":
        """The ledger's metadata, and their version.

        Raises:
            NoSuchLedgerError: There is no such ledger, or it has been deleted.
            LedgerKindError: It is a stream.
        """
        return await self._ledgers.read_as(ledger_id, as_ledger)

    @measured
    async def read_either(self, ledger_id: LedgerId) -> Versioned[EitherMetadata]:
        """The ledger or the stream with this id.

        Raises:
            NoSuchLedgerError: There is neither, or it has been deleted.
        """
        return await self._ledgers.read(ledger_id)

    @measured
    async def compare_and_set_ledger(self, metadata: "LedgerMetadata", expected: Version) -> Version:
        """Replace the ledger's metadata if they still have the expected version; returns the new version.

        Clients call :func:`octavo.metadata.update_ledger`, which decides what a conflict means.

        Raises:
            MetadataConflictError: They have another version.
            NoSuchLedgerError: The ledger has been deleted.
        """
        return await self._ledgers.compare_and_set(metadata, expected)

    @measured
    async def compare_and_set_ledgers(self, changes: Sequence[tuple[EitherMetadata, Version]]) -> list[Version | None]:
        """Replace the metadata of several ledgers or streams, each if it still has the expected version.

        That is much cheaper than as many calls of :meth:`compare_and_set_ledger`. The changes are independent: one that
        conflicts affects no other. Returns the new version of each, in order; None for a ledger that has another
        version or has been deleted (read it to learn which).

        Raises:
            MetadataUnavailableError: An answer is missing; any of the changes may have been made.
        """
        return await self._ledgers.compare_and_set_many(changes)

    @measured
    async def delete_ledger(self, ledger_id: LedgerId, expected: Version | None = None) -> None:
        """Delete a ledger or a stream, whatever its version unless one is expected.

        Raises:
            NoSuchLedgerError: There is neither, or it has been deleted.
            MetadataConflictError: It has another version.
        """
        await self._ledgers.delete(ledger_id, expected)

    def list_ledgers(self, *, after: LedgerId | None = None) -> AsyncIterator[LedgerId]:
        """The ids of all ledgers and streams, or of those above ``after``, in ascending order and in bounded memory.

        A ledger that exists throughout the iteration is listed exactly once; a ledger created or deleted meanwhile may
        or may not be listed. A failure raises; it never ends the list early (rule B5).
        """
        return self._ledgers.ids(after)

    def watch_ledger(self, ledger_id: LedgerId) -> "Watch[Versioned[LedgerMetadata] | None]":
        """Follow a ledger's metadata; None when it does not exist or has been deleted.

        Raises:
            LedgerKindError: It is a stream; raised by the iteration.
        """
        return self._ledgers.watch_as(ledger_id, as_ledger)

    # --- streams: ledgers that several writers write one after another, under ids of ledgers -------------------------

    @measured
    async def create_stream(self, metadata: "StreamMetadata") -> Version:
        """Store a new stream, whose id comes from :meth:`allocate_ledger_id`.

        Raises:
            LedgerExistsError: There is a ledger or a stream with this id.
            InvalidArgumentError: The id was never allocated.
        """
        return await self._ledgers.create(metadata)

    @measured
    async def read_stream(self, ledger_id: LedgerId) -> "Versioned[StreamMetadata]":
        """The stream's metadata, and their version.

        Raises:
            NoSuchLedgerError: There is no such stream, or it has been deleted.
            LedgerKindError: It is a ledger with one writer.
        """
        return await self._ledgers.read_as(ledger_id, as_stream)

    @measured
    async def glance_streams(self, ledger_ids: Sequence[LedgerId]) -> "list[StreamGlance | OctavoError]":
        """The facts that lists show of many streams, in the order of the ids; cheaper than as many :meth:`read_stream`.

        Where that would raise an error, the error stands in place of the stream. It verifies all of the metadata; a
        glance verifies their checksum and the fields that it shows.
        """
        return await self._ledgers.glance_streams(ledger_ids)

    @measured
    async def compare_and_set_stream(self, metadata: "StreamMetadata", expected: Version) -> Version:
        """Replace the stream's metadata if they still have the expected version; returns the new version.

        Clients call :func:`octavo.metadata.update_stream`, which decides what a conflict means.

        Raises:
            MetadataConflictError: They have another version.
            NoSuchLedgerError: The stream has been deleted.
        """
        return await self._ledgers.compare_and_set(metadata, expected)

    def watch_stream(self, ledger_id: LedgerId) -> "Watch[Versioned[StreamMetadata] | None]":
        """Follow a stream's metadata; None when it does not exist or has been deleted.

        Raises:
            LedgerKindError: It is a ledger with one writer; raised by the iteration.
        """
        return self._ledgers.watch_as(ledger_id, as_stream)

    # --- bookies ---------------------------------------------------------------------------------------------------

    @measured
    async def register_bookie(self, registration: BookieRegistration, *, cookie: Version | None = None) -> BookieLease:
        """Register a running bookie until the lease ends.

        The registration replaces any other of the same id at once, so that a bookie that was killed and started again
        need not wait for its old lease to end. The holder of the old registration is told that it is lost. ``cookie``:
        the version of the bookie's cookie that makes it the owner of its id, compared in the same step (rule B10).

        Raises:
            MetadataConflictError: The cookie has another version or is gone; nothing is registered.
            MetadataUnavailableError: The store did not answer, or the registration did not last; register again.
        """
        return await self._bookies.register(registration, cookie)

    @measured
    async def list_bookies(self) -> Mapping[BookieId, BookieRegistration]:
        """The registered bookies, in order of their ids.

        A missing bookie is a hint, never a proof that it is dead (rule M2).
        """
        return await self._bookies.list_registered()

    def watch_bookies(self) -> Watch[Mapping[BookieId, BookieRegistration]]:
        """Follow :meth:`list_bookies`."""
        return self._bookies.watch_registered()

    @measured
    async def list_known_bookies(self) -> list[KnownBookie]:
        """Every bookie with a cookie or a registration, in order of ids."""
        cookies = await self.list_cookies()
        return known_bookies(cookies, await self.list_bookies())

    async def create_cookie(self, cookie: Cookie) -> Version:
        """Store the cookie of a new bookie.

        Raises:
            MetadataConflictError: The bookie already has one.
        """
        return await self._bookies.create_cookie(cookie)

    @measured
    async def read_cookie(self, bookie_id: BookieId) -> Versioned[Cookie] | None:
        """The bookie's cookie; None when it has none."""
        return await self._bookies.read_cookie(bookie_id)

    async def compare_and_set_cookie(self, cookie: Cookie, expected: Version) -> Version:
        """Replace a cookie if it still has the expected version; returns the new version.

        Raises:
            MetadataConflictError: It does not exist or has another version.
        """
        return await self._bookies.compare_and_set_cookie(cookie, expected)

    async def delete_cookie(self, bookie_id: BookieId, expected: Version) -> None:
        """Forget the bookie.

        Raises:
            MetadataConflictError: Its cookie does not exist or has another version.
        """
        await self._bookies.delete_cookie(bookie_id, expected)

    async def list_cookies(self) -> list[Versioned[Cookie]]:
        """All cookies, in order of bookie ids."""
        return await self._bookies.list_cookies()

    # --- named documents -------------------------------------------------------------------------------------------

    @measured
    async def create_document(self, name: str, value: bytes) -> Version:
        """Store a new document of at most ``DOCUMENT_BYTES_MAX`` bytes. Names are words separated by ``/``.

        Raises:
            MetadataConflictError: It exists.
            InvalidArgumentError: The name is not allowed, or the value is too large.
        """
        return await self._documents.create(name, value)

    @measured
    async def read_document(self, name: str) -> Versioned[bytes] | None:
        """The document; None when it does not exist.

        Raises:
            InvalidArgumentError: The name is not allowed.
        """
        return await self._documents.read(name)

    @measured
    async def read_documents(self, names: Sequence[str]) -> list[Versioned[bytes] | None]:
        """:meth:`read_document` for many names, in their order, with few requests.

        Raises:
            InvalidArgumentError: One of the names is not allowed.
        """
        return await self._documents.read_many(names)

    @measured
    async def compare_and_set_document(self, name: str, value: bytes, expected: Version) -> Version:
        """Replace a document if it still has the expected version; returns the new version.

        Raises:
            MetadataConflictError: It does not exist or has another version.
            InvalidArgumentError: The name is not allowed, or the value is too large.
        """
        return await self._documents.compare_and_set(name, value, expected)

    async def put_document(self, name: str, value: bytes, expected: Version | None) -> Version:
        """Store a document that is still as it was read: create it if it did not exist (None), else replace it.

        Raises:
            MetadataConflictError: It is not as it was read.
            InvalidArgumentError: The name is not allowed, or the value is too large.
        """
        if expected is None:
            return await self.create_document(name, value)
        return await self.compare_and_set_document(name, value, expected)

    @measured
    async def delete_document(self, name: str, expected: Version | None = None) -> None:
        """Delete a document. Without an expected version, nothing happens when it does not exist.

        Raises:
            MetadataConflictError: A version is expected, and the document has another one or does not exist.
            InvalidArgumentError: The name is not allowed.
        """
        await self._documents.delete(name, expected)

    def list_documents(self, prefix: str = "") -> AsyncIterator[str]:
        """The names that start with ``prefix``, in order and in bounded memory.

        The guarantees are those of :meth:`list_ledgers`.

        Raises:
            InvalidArgumentError: No name can start with ``prefix``; raised by the iteration.
        """
        return self._documents.names(prefix)

    def watch_document(self, name: str) -> Watch[Versioned[bytes] | None]:
        """Follow a document; None while it does not exist.

        Raises:
            InvalidArgumentError: The name is not allowed.
        """
        return self._documents.watch(name, self.read_document)

    # --- locks and election ----------------------------------------------------------------------------------------

    async def try_lock(self, name: str, holder: str) -> Lease | None:
        """Take the lock if it is free and no client waits for it; None when it is held, also by this handle.

        ``holder`` names the holder to people and in :meth:`read_lock`.

        Raises:
            InvalidArgumentError: The name is not allowed, or ``holder`` has more than 512 characters.
        """
        return await self._locks.try_lock(name, holder)

    async def lock(self, name: str, holder: str) -> Lease:
        """Wait until the lock is free and take it: first come, first served (rule M4).

        Cancelling the wait leaves no lock behind.

        Raises:
            InvalidArgumentError: The name is not allowed, or ``holder`` has more than 512 characters.
        """
        return await self._locks.lock(name, holder)

    async def read_lock(self, name: str) -> LockHolder | None:
        """The holder of the lock; None when it is free.

        Raises:
            InvalidArgumentError: The name is not allowed.
        """
        return await self._locks.read(name)

    async def read_locks(self, names: Sequence[str]) -> list[LockHolder | None]:
        """:meth:`read_lock` for many names, in their order, with few requests.

        Raises:
            InvalidArgumentError: One of the names is not allowed.
        """
        return await self._locks.read_many(names)

    def watch_lock(self, name: str) -> Watch[LockHolder | None]:
        """Follow a lock; in an election, this follows the leader.

        Raises:
            InvalidArgumentError: The name is not allowed.
        """
        return self._locks.watch(name)
