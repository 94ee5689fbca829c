"""The operations that the writer of a log leaves to its layout: the seam between
:mod:`octavo.client.log.writer.writer` and :mod:`octavo.client.log.chain.lead` or
:mod:`octavo.client.log.stream.lead`."""

from collections.abc import Callable
from typing import Protocol

from octavo.client.log.seam.active_segment import ActiveSegment
from octavo.client.log.seam.quorum_change import QuorumChange
from octavo.client.read.source import Watching
from octavo.protocol.errors import OctavoError


class Upkeep(Protocol):
    """Keeps a log small, while its leader leads."""

    def on_wanted(self, begin: Callable[[], object]) -> None:
        """Call ``begin`` when a round is wanted at once."""

    def may_be_due(self) -> bool:
        """Whether a round may find anything to do. Asks nothing."""

    async def tidy(self) -> object:
        """One round."""


class LeadHost(Protocol):
    """The writer of the log, as its layout sees it."""

    async def drain_segment(self) -> None:
        """Send nothing more, and wait until everything sent is acknowledged (rule P2)."""

    def begin_segment(self, following: ActiveSegment) -> None:
        """Send to this segment from now on, at the next position."""


class LogLead(Protocol):
    """One client's lead of one log, from its takeover on. Its writer makes one call at a time of :meth:`heal`,
    :meth:`roll`, :meth:`rest` and the round of :attr:`upkeep`."""

    name: str
    log_id: str
    term: int
    """Of this leader: higher than that of every leader before."""

    requires_copies: bool
    """Whether an entry takes room in the window until it has all of its copies (rule G2)."""

    @property
    def active(self) -> ActiveSegment:
        """The segment that is written now."""

    @property
    def upkeep(self) -> Upkeep:
        """The work that is to be done once a minute."""

    async def check_lead(self) -> None:
        """Read the metadata; raise :class:`NotLeaderError` if another client leads by now, :class:`NoSuchLogError`."""

    async def heal(self) -> ActiveSegment:
        """Take the log over from itself, after the active segment has failed and was abandoned (rule P5). The segment
        that is to be written then: everything below its first position is in the log, and nothing above.

        Raises :class:`NotLeaderError`, :class:`NoSuchLogError`, :class:`LogSealedError`, :class:`LogDamagedError`; any
        other failure may pass.
        """

    def healed(self, segment: ActiveSegment) -> None:
        """The writer has taken what :meth:`heal` gave."""

    async def roll(self, host: LeadHost) -> None:
        """Begin a new segment while adds go on. Raises :class:`NotLeaderError`; after any other failure the active
        segment serves on."""

    async def change(self, change: QuorumChange) -> None:
        """Go on with other quorums. Returns at once if they are as wanted. Raises :class:`InvalidArgumentError`,
        :class:`NotEnoughBookiesError` and :class:`MetadataUnavailableError` before anything is changed; any other
        failure is that of the active segment."""

    async def look_after(self) -> None:
        """Called once a minute, whether there is anything to be tidied or not."""

    async def rest(self, seconds: float) -> None:
        """Give the log an end that the next leader need not look for, within this time. Everything sent is
        acknowledged, or given up. Raises :class:`UnderReplicatedError` if entries do not have the copies that they
        require: then nothing has changed (rule G4)."""

    def lacking_copies(self) -> OctavoError | None:
        """The error that :meth:`rest` would raise for lack of copies if it did not wait for them; None if there are all
        that are required."""

    def begin_watching(
        self, on_end: Callable[[OctavoError], None], on_failure: Callable[[OctavoError], None]
    ) -> Watching:
        """Watch the metadata; tell ``on_end`` that the log is deleted, or that another client leads. ``on_failure`` is
        told why they are not watched any more."""

    async def abandon(self) -> None:
        """Stop writing, and leave the rest as a crash would."""
