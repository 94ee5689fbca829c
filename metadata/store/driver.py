"""The interface of a driver: versioned records, sessions, and the counter of ledger ids.
:class:`octavo.metadata.store.store.MetadataStore` is built on it, so that encoding, watches and leases are implemented
once for all drivers.

A *session* belongs to one handle. Records made in it disappear for every reader when the session ends or is not renewed
in time. Registrations, locks, and places in the lines before locks are such records.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from octavo.metadata.store.values import Version
from octavo.protocol.ids import LedgerId

LIST_PAGE_RECORDS: Final = 1000
"""Keys read at a time when listing: bounds memory, and the time that a driver's thread spends on one read."""


class Kind(enum.Enum):
    """The kind of a record. Keys are unique within a kind and ordered by code point."""

    LEDGER = "ledger"
    COOKIE = "cookie"
    DOCUMENT = "document"
    BOOKIE = "bookie"
    LOCK = "lock"
    WAITER = "waiter"
    """A client that waits for a lock."""


SESSION_KINDS: Final = (Kind.BOOKIE, Kind.LOCK, Kind.WAITER)
"""Kinds of records that belong to a session."""


class Record(NamedTuple):
    """One record as read."""

    key: str
    value: bytes
    version: Version


class Unchanged(NamedTuple):
    """A record that must still have this version for a change to be made."""

    kind: Kind
    key: str
    version: Version


type Listener = Callable[[Kind | None, str | None], None]
"""Called, in the event loop, with what may have changed: one record, all of a kind (key None), or anything (both
None)."""


class ClusterOrigin(NamedTuple):
    """The facts that a new store takes over from the cluster that it restores, instead of beginning again."""

    cluster_id: str
    first_ledger_id: LedgerId
    """The lowest ledger id that the new store may allocate."""


class RecordStore(ABC):
    """A driver. Raises :class:`MetadataUnavailableError` and :class:`MetadataError`; every other outcome is in
    the return value."""

    @property
    @abstractmethod
    def uri(self) -> str: ...

    @abstractmethod
    def start(self, listener: Listener) -> None:
        """Called once, before anything else. From now on the driver reports this handle's own changes at once."""

    @abstractmethod
    def watching(self, active: bool) -> None:
        """Start or stop reporting the changes of other handles and the ends of sessions, within 200 ms. A change made
        after the call is never missed, nor is a change made between two periods of watching."""

    def watch_record(self, kind: Kind, key: str | None, *, active: bool) -> None:  # noqa: B027 - most drivers do nothing here
        """For drivers that watch each record by itself: start reporting this record, or all of a kind (key None), from
        its next read on, or stop. Called in addition to :meth:`watching`."""

    def report_ended_sessions(self, tell: Callable[[], None]) -> None:  # noqa: B027 - most drivers do nothing here
        """For drivers that learn of the end of a session before a renewal does: call ``tell`` then."""

    @abstractmethod
    async def close(self) -> None:
        """Release all resources. Called once; no other method is called afterwards."""

    @abstractmethod
    async def cluster_id(self) -> str: ...

    @abstractmethod
    async def time_ms(self) -> int:
        """The store's time of day, in milliseconds since 1970."""

    @abstractmethod
    async def allocate_ledger_id(self) -> LedgerId: ...

    @abstractmethod
    async def is_allocated(self, ledger_id: LedgerId) -> bool:
        """Whether the id may have been given to a client. May answer from what this handle already knows."""

    @abstractmethod
    async def ledger_ids_stop(self) -> LedgerId:
        """The lowest ledger id that has never been allocated, read from the store by this call."""

    @abstractmethod
    async def confirm_absent(self, kind: Kind, keys: Sequence[str]) -> list[str]:
        """Those of the keys that have no record as of some moment after the call began, in the order given. Never
        answered from stale data: a driver whose ordinary reads can be stale commits a write of its own first."""

    @abstractmethod
    async def create(self, kind: Kind, key: str, value: bytes) -> Version | None:
        """Create a record; None when it already exists."""

    @abstractmethod
    async def create_in_session(
        self,
        kind: Kind,
        key: str,
        value: bytes,
        session: str,
        *,
        take_over: bool,
        unchanged: Unchanged | None = None,
    ) -> Version | None:
        """Create a record that ends with the session; None when it already exists and is not to be taken over, when the
        session has ended, or when the record that is to be ``unchanged`` has another version or is gone. It is compared
        in the same step. Only for a record that is taken over."""

    @abstractmethod
    async def read(self, kind: Kind, key: str) -> Record | None: ...

    async def read_many(self, kind: Kind, keys: Sequence[str]) -> list[Record | None]:
        """:meth:`read` for many records of a kind, in the order of the keys. A driver that can read several with one
        request does; each is as it was at some moment of the call."""
        return [await self.read(kind, key) for key in keys]

    @abstractmethod
    async def compare_and_set(self, kind: Kind, key: str, value: bytes, expected: Version) -> Version | None:
        """The new version; None when the record does not exist or has another version."""

    async def compare_and_set_many(
        self, kind: Kind, changes: Sequence[tuple[str, bytes, Version]]
    ) -> list[Version | None]:
        """:meth:`compare_and_set` for many records of a kind: key, value, expected version. One that is refused affects
        no other. A driver that can make several changes in one transaction does. After an error any may have been
        made."""
        return [await self.compare_and_set(kind, key, value, expected) for key, value, expected in changes]

    @abstractmethod
    async def set_in_session(self, kind: Kind, key: str, value: bytes, session: str) -> Version | None:
        """The new version; None when the session no longer holds the record."""

    @abstractmethod
    async def delete(self, kind: Kind, key: str, expected: Version | None) -> bool:
        """False when there is no such record (of that version)."""

    @abstractmethod
    async def delete_in_session(self, kind: Kind, key: str, session: str) -> bool:
        """False when the session no longer holds it."""

    @abstractmethod
    async def list_keys(self, kind: Kind, *, prefix: str, after: str, limit: int) -> list[str]:
        """Up to ``limit`` keys that start with ``prefix`` and sort after ``after``, in order."""

    @abstractmethod
    async def read_all(self, kind: Kind) -> list[Record]:
        """All records of a kind that has few records, in order of keys."""

    @abstractmethod
    async def begin_session(self, session: str, lease_seconds: float) -> None: ...

    @abstractmethod
    async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        """The records that the session still holds; None when it has ended."""

    @abstractmethod
    async def end_session(self, session: str) -> None: ...


def ledger_key(ledger_id: LedgerId) -> str:
    """The key of a ledger: the id, zero-padded so that keys sort as ids do."""
    return f"{ledger_id:019d}"
