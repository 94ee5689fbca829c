"""Whether the bookie may say what only the owner of its id may say (rule B10).

What a bookie confirms and denies is believed as the word of its id. A process that was paused, or that has been cut off
from the metadata, may have lost the id to other disks, or may have been given up as one that confirms nothing any more.
It cannot know at the moment at which it goes on, in the middle of a turn of the event loop, with requests in its
sockets and syncs about to complete. So the answer depends on a clock that is read at that very moment.

=========  =============================================  =============================================================
standing   when                                           what the bookie does
=========  =============================================  =============================================================
sure       its registration cannot have ended yet         everything
alone      it may have ended, this process has run all    confirms ordinary adds of ledgers and terms that it has taken
           the time, and it ended less than               part in before. Denies nothing, fences nothing, takes no adds
           ``UNREGISTERED_SECONDS_MAX`` ago                of a recovery
away       else: the process has not run for a while,     confirms no add either
           or was alone for too long
=========  =============================================  =============================================================

It serves the entries that it holds in every standing. The refusals are of a kind that may be tried again. A bookie that
registers again has compared itself with the metadata, and is sure again.

*Alone* lets writers go on while the metadata store is away, however short its leases are. No client can make a ledger
or a term then, and no operator a new owner of the id. If only this bookie is cut off, and its id is given to other
disks, these are in doubt about all ledgers and terms that existed before, and neither confirm nor deny anything of
them.
"""

from collections.abc import Callable
from typing import Protocol, Self

import structlog
from octavo.bookie.storage.ledgers import LedgerTable
from octavo.metadata.cluster.registration import UNREGISTERED_SECONDS_MAX
from octavo.protocol.errors import BookieShuttingDownError
from octavo.protocol.messages import Add, AddFlag, Force, ListEntries, Missing, Read, ReadFlag, ReadLac, Request

log = structlog.get_logger("octavo.bookie")


class NotRegisteredError(BookieShuttingDownError):
    """The bookie cannot tell whether its id is still its own. Sent as its base class."""


class Registration(Protocol):
    """A lease, as far as this module needs one."""

    @property
    def remaining_seconds(self) -> float:
        """For how long it has certainly not ended."""

    @property
    def slept(self) -> bool:
        """Whether this process has not run for a while since it was made."""


class Standing:
    """See the module. ``clock`` gives seconds that keep counting while the host is suspended; ``now`` is always a time
    by it that has just been read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """The bookie has just compared itself with the metadata, and is not registered yet: it is alone."""
        self._clock = clock
        self.sure_until = clock()
        """Before this time the bookie is sure. After it :meth:`is_sure` decides; the registration is renewed without
        telling this object."""
        self._registration: Registration | None = None
        self._over = False
        self._told: str | None = None

    @classmethod
    def always(cls) -> Self:
        """Of a bookie that registers nowhere."""
        standing = cls(lambda: 0.0)
        standing.sure_until = float("inf")
        return standing

    def registered(self, registration: Registration) -> None:
        """The bookie has compared itself with the metadata, and has registered."""
        self._registration = registration
        self.is_sure(self._clock())

    def lost(self) -> None:
        """The id belongs to another, or to none."""
        self._over = True
        self.sure_until = float("-inf")

    def is_sure(self, now: float) -> bool:
        """Whether the bookie is registered for certain, so that it may deny entries and fence."""
        if now < self.sure_until:
            return True
        if self._over or self._registration is None:
            return False
        # The clock was read before: a pause in between makes the time too early, never too late.
        sure_until = now + self._registration.remaining_seconds
        if sure_until <= now:
            return False
        self.sure_until = sure_until
        self._tell(None)
        return True

    def may_deny(self) -> bool:
        """Whether what is not held may be called absent now."""
        return self.is_sure(self._clock())

    def may_confirm(self, now: float) -> bool:
        """Whether an ordinary add that has been accepted may be confirmed."""
        if self.is_sure(now):
            return True
        if self._over or now >= self.sure_until + UNREGISTERED_SECONDS_MAX:
            return self._tell("away")
        if self._registration is not None and self._registration.slept:
            return self._tell("away")
        self._tell("alone")
        return True

    def check(self, request: Request, now: float, ledgers: LedgerTable) -> None:
        """Raise :class:`NotRegisteredError` for a request that the bookie does not serve in its standing."""
        if self.is_sure(now):
            return
        if isinstance(request, Add | Force):
            recovery = isinstance(request, Add) and bool(request.flags & AddFlag.RECOVERY)
            known = ledgers.has_taken_part(request.ledger_id, request.term)
            refused = recovery or not known or not self.may_confirm(now)
        elif isinstance(request, Read | ReadLac):
            refused = bool(request.flags & ReadFlag.FENCE)
        else:
            refused = isinstance(request, ListEntries | Missing)
        if refused:
            raise self.refusal(may_have_happened=False)

    def refusal(self, *, may_have_happened: bool) -> NotRegisteredError:
        """The error for what may not be said now."""
        return NotRegisteredError(
            "the bookie is not registered, and cannot tell whether its id is still its own: it was paused, or the "
            "metadata store does not answer",
            may_have_happened=may_have_happened,
        )

    def _tell(self, standing: str | None) -> bool:
        """Log a change of standing, unless it is the first; False."""
        if standing != self._told:
            self._told = standing
            if standing == "away":
                log.warning(
                    "the bookie was paused, or has been without a registration for too long: it confirms and denies "
                    "nothing until it is registered again"
                )
            elif standing == "alone" and self._registration is not None:
                log.warning(
                    "not registered: the bookie takes no adds of new ledgers, denies nothing, and fences nothing"
                )
            elif standing is None:
                log.info("the bookie is sure again of its registration")
        return False
