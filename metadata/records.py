"""What a driver provides: versioned records, sessions, a counter. :class:`octavo.metadata.handle.RecordMetadataStore`
makes the whole :class:`~octavo.metadata.store.MetadataStore` of it, so that encoding, watches and leases exist once.

A *session* is a driver's word for "this handle lives": records made in it vanish for every reader when it ends or is
not renewed in time. Registrations and locks are such records.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, NamedTuple

from octavo.metadata.store import Version
from octavo.protocol.ids import LedgerId

LIST_PAGE_RECORDS: Final = 1000
"""Keys read at a time when listing: bounds memory, and the time for which a driver's thread is busy with it."""


class Kind(enum.Enum):
    """What a record is about. Keys are unique within a kind and ordered by code point."""

    LEDGER = "ledger"
    COOKIE = "cookie"
    DOCUMENT = "document"
    BOOKIE = "bookie"
    LOCK = "lock"


class Record(NamedTuple):
    """One record as read."""

    key: str
    value: bytes
    version: Version


type Listener = Callable[[Kind | None, str | None], None]
"""Told, in the event loop, what may have changed: one record, all of a kind (key None), or anything (both None)."""


class RecordStore(ABC):
    """A driver. Errors: :class:`MetadataUnavailableError`, :class:`MetadataError`; the rest is in the return values."""

    @property
    @abstractmethod
    def uri(self) -> str: ...

    @abstractmethod
    def start(self, listener: Listener) -> None:
        """Called once, before anything else. From now on report one's own changes at once."""

    @abstractmethod
    def watching(self, active: bool) -> None:
        """Whether other handles' changes and ends of sessions must be reported too, within 200 ms. A change made after
        the call is never missed, nor is one that was made between two times of watching."""

    def watch_record(self, kind: Kind, key: str | None, *, active: bool) -> None:  # noqa: B027 - most need not care
        """Of drivers that watch each thing by itself: this record, or all of a kind (key None), must be reported from
        its next read on; or must no more. Called beside :meth:`watching`, which serves the others."""

    def report_ended_sessions(self, tell: Callable[[], None]) -> None:  # noqa: B027 - most are not told
        """Of drivers that are told of the end of a session before a renewal finds it: call ``tell`` then."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. Called once; nothing is called afterwards."""

    @abstractmethod
    async def cluster_id(self) -> str: ...

    @abstractmethod
    async def allocate_ledger_id(self) -> LedgerId: ...

    @abstractmethod
    async def is_allocated(self, ledger_id: LedgerId) -> bool:
        """Whether the id may have been handed out."""

    @abstractmethod
    async def create(self, kind: Kind, key: str, value: bytes) -> Version | None:
        """A new record; None when there is one."""

    @abstractmethod
    async def create_in_session(
        self, kind: Kind, key: str, value: bytes, session: str, *, take_over: bool
    ) -> Version | None:
        """A new record that lives with the session; None when there is one, unless it is to be taken over, or when the
        session has ended."""

    @abstractmethod
    async def read(self, kind: Kind, key: str) -> Record | None: ...

    @abstractmethod
    async def compare_and_set(self, kind: Kind, key: str, value: bytes, expected: Version) -> Version | None:
        """The new version; None when the record is gone or has another version."""

    @abstractmethod
    async def set_in_session(self, kind: Kind, key: str, value: bytes, session: str) -> Version | None:
        """The new version; None when the session does not hold the record any more."""

    @abstractmethod
    async def delete(self, kind: Kind, key: str, expected: Version | None) -> bool:
        """False when there is none (of that version)."""

    @abstractmethod
    async def delete_in_session(self, kind: Kind, key: str, session: str) -> bool:
        """False when the session does not hold it any more."""

    @abstractmethod
    async def list_keys(self, kind: Kind, *, prefix: str, after: str, limit: int) -> list[str]:
        """Up to ``limit`` keys that start with ``prefix`` and lie behind ``after``, in order."""

    @abstractmethod
    async def read_all(self, kind: Kind) -> list[Record]:
        """All records of a kind that has few, in order of keys."""

    @abstractmethod
    async def begin_session(self, session: str, lease_seconds: float) -> None: ...

    @abstractmethod
    async def renew_session(self, session: str, lease_seconds: float) -> set[tuple[Kind, str]] | None:
        """What the session still holds; None when it has ended."""

    @abstractmethod
    async def end_session(self, session: str) -> None: ...


def ledger_key(ledger_id: LedgerId) -> str:
    """The key of a ledger: zero-padded, so that keys and ids have the same order."""
    return f"{ledger_id:019d}"
