"""The writer of a log, as an application sees it: it adds, and asks its leader for the rest.

The adds are those of :class:`~octavo.client.log.writer.adds.LogAdds`. :class:`~octavo.client.log.writer.leader.Leader`
rolls from segment to segment, heals, keeps the lead and ends.
"""

import asyncio
from collections.abc import Callable, Iterable

from octavo.client.async_context import Closable
from octavo.client.log.keys.known_keys import KnownKeys
from octavo.client.log.seam.access import LedgerAccess
from octavo.client.log.seam.lead import LogLead
from octavo.client.log.seam.quorum_change import QuorumChange
from octavo.client.log.writer.keyed_adds import KeyedAdds, all_without_key, without_key
from octavo.client.log.writer.leader import Leader
from octavo.client.log.writer.lock import LogLock
from octavo.client.same_loop import check_loop
from octavo.client.statistics.writers import LogWriterStatistics
from octavo.client.write.front.adds import Payload
from octavo.client.write.front.front import short_way
from octavo.protocol.errors import InvalidArgumentError


class LogWriter(Closable):
    """Appends to one log. Made by ``log.lead()`` and ``log.take_over()``; use it as an async context manager.

    Leaving the block waits for pending adds, closes the segment and gives the lead back; leaving it on an exception
    never masks that exception. Used from one event loop.

    Examples:
        >>> await writer.add(b"payload")
        0
        >>> await writer.roll()
        >>> await writer.change(ensemble_size=3, write_quorum=2, ack_quorum=2)
        >>> await writer.close()
    """

    def __init__(
        self, access: LedgerAccess, lead: LogLead, *, lease: LogLock | None, on_close: Callable[["LogWriter"], object]
    ) -> None:
        """``lead``: as just taken over. ``lease``: the lock that is held, if any."""
        self._leader = leader = Leader(access, lead, lease=lease, on_close=lambda: on_close(self))
        self._adds = leader.adds
        self._front = leader.adds.front
        self._access = access
        self._keyed: KeyedAdds | None = None
        """None: entries of the log have no keys."""

    def __repr__(self) -> str:
        leader = self._leader
        return (
            f"<octavo.LogWriter of log {leader.name}, term {leader.term}, {leader.life.value}, next position "
            f"{self._front.next_position}>"
        )

    # --- what is known ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The log."""
        return self._leader.name

    @property
    def term(self) -> int:
        """Higher than that of every leader before: the fencing number for anything else that a leader writes to."""
        return self._leader.term

    @property
    def end(self) -> int:
        """The position after the last acknowledged add."""
        return self._front.acknowledged_stop

    @property
    def lost(self) -> asyncio.Event:
        """Set once this client no longer leads: stop whatever else you do as the leader.

        ``lost_reason`` says why.
        """
        return self._leader.loss.event

    @property
    def lost_reason(self) -> str | None:
        """Why this client lost the lead, in words; None while it leads, and where the program has closed the writer."""
        return self._leader.loss.reason

    @property
    def closed(self) -> bool:
        """Whether ``close()`` has ended."""
        return self._leader.closed

    def statistics(self) -> LogWriterStatistics:
        """Statistics for metrics and health checks: adds queued, under way and acknowledged; healing; rolls.

        Examples:
            >>> writer.statistics().state
            'writing'
        """
        check_loop(self._front.loop)
        return self._leader.statistics()

    def _know_keys(self, known: KnownKeys) -> None:
        """Entries have keys, and these are known below the first add. Used only inside this package."""
        self._keyed = KeyedAdds(known, self._front, self._access.clock_ms)
        self._front.leave_short_way()

    def check_usable(self) -> None:
        """Check that an add would not be refused now. Used only inside this package."""
        self._leader.check_usable()

    # --- adding -------------------------------------------------------------------------------------------------------

    @short_way
    async def add(self, payload: Payload, *, expected_position: int | None = None, key: str | None = None) -> int:
        """Append an entry; its position, once it and all before it are acknowledged (rule P1).

        Waits for room in the window, and while the writer heals. Cancelling withdraws an add that waits for room or for
        the writer; any other is added all the same. With ``expected_position`` the add is refused, before it is sent,
        unless it would get that position (rule P12). ``may_have_happened`` of an error says whether the entry may
        exist; ``log.outcome(error)`` says whether it does.

        With a ``key``, in a log that was created with ``keys``, the entry is added once: while the window knows the
        key, also from an earlier leader or process, the call gives the position that the entry has, and adds nothing
        (rule P21). So an add that failed or got no answer is made again with its key, by any leader. Cancelling
        withdraws no add with a key.

        Examples:
            >>> await writer.add(b"payload")
            0
            >>> await writer.add(b"next", expected_position=1)
            1
            >>> async with client.create_log("bills", keys=octavo.KeyWindow()) as bills, bills.lead() as leader:
            ...     [await leader.add(b"100 EUR", key="invoice-17") for _ in range(2)]
            [0, 0]

        Raises:
            PositionMismatchError: The entry would get another position than ``expected_position``.
            EntryTooLargeError: The payload has more than ``octavo.protocol.limits.ENTRY_PAYLOAD_BYTES_MAX`` bytes.
            InvalidArgumentError: The payload is no bytes, or the position none; or there is a key, and the log was
                created without ``keys``.
            ClientClosedError: The writer or its client is closed.
            NotLeaderError: Another client has taken the log over.
            NoSuchLogError: The log has been deleted.
            LogDamagedError: A segment of the log is lost.
            OctavoTimeoutError: It was not acknowledged within ``log_add_timeout_seconds``.
        """
        if key is not None:
            if self._keyed is None:
                raise InvalidArgumentError(f"log {self.name} was created without keys: octavo.KeyWindow")
            self._leader.check_usable()
            check_loop(self._front.loop)
            return await self._keyed.add(payload, key, expected_position)
        if self._keyed is not None:
            payload = without_key(payload)
        position: int = await self._front.begin(payload, expected_position)
        return position

    def add_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Queue an entry; a future of its position.

        The future gets every failure of the entry that ``add()`` names.

        Examples:
            >>> future = writer.add_nowait(b"payload")
            >>> await future
            0

        Raises:
            WouldBlock: The window is full, or the writer heals or rolls; nothing is queued.
            OctavoError: At once what ``add()`` refuses a payload with, or this writer.
        """
        return self._adds.add_nowait(payload if self._keyed is None else without_key(payload))

    async def add_many(self, payloads: Iterable[Payload]) -> range:
        """Append entries with consecutive positions; the positions, once the last is acknowledged.

        They may be more than a window. All payloads are checked before the first is queued. If it fails, a beginning
        may have been added: ``log.added(error)`` says how many.

        Examples:
            >>> await writer.add_many([b"first", b"second"])
            range(0, 2)

        Raises:
            OctavoError: As ``add()``.
        """
        return await self._front.add_many(payloads if self._keyed is None else all_without_key(payloads))

    async def flush(self) -> None:
        """Return once every add made so far is acknowledged, those that wait for room included (rule P17).

        Examples:
            >>> future = writer.add_nowait(b"payload")
            >>> await writer.flush()
            >>> future.result()
            0

        Raises:
            OctavoError: The writer's failure.
        """
        check_loop(self._front.loop)
        await self._adds.wait_settled()
        self.check_usable()

    # --- leading ------------------------------------------------------------------------------------------------------

    async def roll(self) -> None:
        """Begin a new segment, if the active one holds anything; adds go on meanwhile.

        Returns once it has begun, be it by this call or because the writer healed meanwhile (rule P17). After a failure
        the present segment serves on, and the call may be repeated.

        Raises:
            MetadataUnavailableError: The metadata store does not answer.
            NotEnoughBookiesError: There are too few bookies for the quorums of the log.
            UnderReplicatedError: The log requires all copies, and entries lack some.
            NotLeaderError: The writer has failed; its failure may also be any other error of ``add()``.
        """
        check_loop(self._front.loop)
        await self._leader.roll()

    async def change(
        self, *, ensemble_size: int | None = None, write_quorum: int | None = None, ack_quorum: int | None = None
    ) -> None:
        """Store what is added from now on with other quorums; None leaves one as it is.

        Later leaders keep to them. What has been added stays as it is. Adds wait meanwhile, and none fails. Only for
        logs with the layout stream. After a failure nothing has changed, and the call may be repeated with the same
        values.

        Raises:
            InvalidArgumentError: The log is a chain; or E >= Qw >= Qa would not hold.
            NotEnoughBookiesError: There are too few bookies for the new quorums.
            MetadataUnavailableError: The metadata store does not answer.
            UnderReplicatedError: The log requires all copies, and entries of the present term lack some.
            NotLeaderError: The writer has failed; its failure may also be any other error of ``add()``.
        """
        check_loop(self._front.loop)
        await self._leader.change(QuorumChange(ensemble_size, write_quorum, ack_quorum))

    async def close(self) -> None:
        """Wait for pending adds, close the segment, give the lead back; within ``close_timeout_seconds``.

        Any task may call it, any number of times: all calls share one closing, and cancelling one leaves it going on.
        Closing the client gives the lead back all the same, and does not wait for copies after a call that has.

        Raises:
            UnderReplicatedError: The log requires all copies, and entries lack some (rule G4). Nothing is lost: the
                writer takes no adds, goes on copying and keeps the lead, and the next call tries again.
            OctavoError: The writer's failure, if an add was lost to it.
        """
        check_loop(self._front.loop)
        await self._leader.close()

    async def _close_with_client(self) -> None:
        """As :meth:`close`, without waiting again for copies that the last call has waited for.

        The closing client has nothing else to offer. Used only inside this package.
        """
        check_loop(self._front.loop)
        await self._leader.close_with_client()

    async def _make_way(self) -> None:
        """Give the lock back for another lead of the handle, unless this one leads. Used only inside this package."""
        await self._leader.make_way()

    async def _abandon(self) -> None:
        """Give the lead back, and leave the log as a crash would. Used only inside this package."""
        await self._leader.abandon()
