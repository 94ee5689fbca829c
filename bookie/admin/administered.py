"""The view that the administration has of its bookie."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from octavo.bookie.server.service import BookieService
from octavo.bookie.storage.storage import Storage
from octavo.bookie.upkeep.disk_watch import DiskLimits
from octavo.bookie.upkeep.upkeep import Upkeep
from octavo.metadata import MetadataStore
from octavo.protocol.light_dataclass import dataclass
from octavo.security.contexts import ServerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyBookie:
    """The parts of a bookie that has started."""

    service: BookieService
    storage: Storage
    upkeep: Upkeep
    store: MetadataStore
    directories: Mapping[str, Path]
    """By role."""
    disk_limits: DiskLimits
    registered: Callable[[], bool]
    switch_read_only: Callable[[str | None], Awaitable[None]]
    """Makes the bookie read-only for the reason given, or takes that back (None). Raises what announcing it to the
    cluster raises; the switch has been made nevertheless."""


@dataclass(slots=True, kw_only=True)
class Subject:
    """A bookie from the moment its directories are locked."""

    settings: Mapping[str, Any]
    """Every setting with its value, without secrets."""
    operator_read_only: str | None = None
    """The reason for which an operator made the bookie read-only before this start; None: no operator has."""
    tls_context: Callable[[], ServerContext] | None = None
    """The bookie's certificate, which is replaced while it runs; None: the bookie speaks no TLS."""
    ready: ReadyBookie | None = None
    """None while it starts."""
    ready_at: float | None = None
    """Seconds since 1970."""
    stopping: bool = False
    failure: Callable[[], BaseException | None] = field(default=lambda: None)
    """Why the bookie has failed (rule B1); None while it has not."""

    def reasons_not_ready(self) -> list[str]:
        """Why no client should be sent here; empty for a bookie that serves. A read-only bookie is ready."""
        reasons = []
        if (failure := self.failure()) is not None:
            reasons.append(f"a write or sync has failed: {failure}")
        if self.stopping or (self.ready is not None and self.ready.service.draining):
            reasons.append("the bookie is stopping")
        elif self.ready is None:
            reasons.append("the bookie is starting")
        elif not self.ready.registered():
            reasons.append("the bookie is not registered in the cluster")
        return reasons
