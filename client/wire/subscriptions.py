"""The subscriptions of a client at one bookie (:mod:`octavo.protocol.pushes`), kept over any number of connections.

A *listener* is subscribed once the bookie is connected, and again after each connection that was lost: a bookie knows
nothing of the subscriptions of an earlier connection, and says at the beginning of each what the listener has missed.
Each listener hears exactly one of these at a time: pushes; or :meth:`Listener.lost`, after which it is subscribed again
as soon as the bookie is back, unless it has left; or :meth:`Listener.refused`, after which it is not.

Subscriptions are posted: those of one turn of the event loop share a frame. A listener in which nothing happens is an
object in memory. There is a task only while the bookie is not connected and no attempt to connect has failed.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from octavo.client.wire.connection import BookieConnection
from octavo.client.wire.outcome import Outcome
from octavo.metadata.own_tasks import tasks_cancelled, when_cancelled
from octavo.protocol.errors import BookieUnavailableError, InternalError, OctavoError, OctavoTimeoutError
from octavo.protocol.messages import Subscribe
from octavo.protocol.packs import tail_of
from octavo.protocol.pushes import CAPABILITY_SUBSCRIPTIONS, Push, PushFlag


class Listener(Protocol):
    """Listens to one ledger at one bookie. No method may raise."""

    def subscription(self, *, anew: bool) -> Subscribe:
        """A request for what is wanted now, with the same number every time. ``anew``: the bookie has not heard of
        it on this connection."""

    def pushed(self, push: Push) -> None:
        """The ledger has moved."""

    def lost(self, error: OctavoError) -> None:
        """The connection is lost, or an attempt to make it has failed."""

    def refused(self, error: OctavoError | None) -> None:
        """The bookie refuses the subscription, or has ended it; None: it knows no subscriptions. The listener has
        left."""


class BookieSubscriptions:
    """See the module. ``on_idle`` is called when the last listener has left."""

    def __init__(self, connection: BookieConnection, *, timeout_seconds: float, on_idle: Callable[[], None]) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._listeners: dict[int, Listener] = {}
        self._unsent: dict[int, bool] = {}
        """Numbers to be sent, and whether anew."""
        self._flushing = False
        """They will be sent when the turn of the event loop is over."""
        self._was_connected = connection.connected
        self._bringing_up: asyncio.Task[None] | None = None
        self._stop_listening = connection.add_state_listener(self._state_changed)
        connection.on_pushes = self._pushed

    @property
    def understood(self) -> bool:
        """Whether the bookie that is connected knows subscriptions."""
        return CAPABILITY_SUBSCRIPTIONS in self._connection.capabilities

    def add(self, number: int, listener: Listener) -> None:
        """Subscribe as soon as the bookie is connected. Nothing is called inside this call."""
        self._listeners[number] = listener
        self._send_soon(number, anew=True)

    def renew(self, number: int) -> None:
        """Ask again: for more credit."""
        if number in self._listeners and number not in self._unsent:
            self._send_soon(number, anew=False)

    def remove(self, number: int, request: Subscribe) -> None:
        """End the subscription with this request, which says so."""
        if self._listeners.pop(number, None) is None:
            return
        if self._unsent.pop(number, False) is False and self._connection.connected:
            # If it does not leave, the connection is about to be lost, and the subscription with it; or the bookie
            # pushes what no listener hears, until its credit is used up.
            self._connection.post(tail_of(request), _ignore, timeout_seconds=self._timeout_seconds)
        if not self._listeners:
            self.close()
            self._on_idle()

    def close(self) -> None:
        """Nothing is listened to any more."""
        self._listeners.clear()
        self._stop_listening()
        self._connection.on_pushes = None
        if self._bringing_up is not None:
            self._bringing_up.cancel()

    def bring_up(self) -> None:
        """Try to connect now; listeners hear if that fails."""
        if self._bringing_up is None and not self._connection.connected:
            task = self._loop.create_task(self._wait_connected(), name="octavo subscriptions")
            self._bringing_up = when_cancelled(task, self._cancelled)

    # --- sending --------------------------------------------------------------------------------------------------

    def _send_soon(self, number: int, *, anew: bool) -> None:
        self._flush_soon()
        self._unsent[number] = self._unsent.get(number, False) or anew

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._send_unsent)

    def _send_unsent(self) -> None:
        self._flushing = False
        connection = self._connection
        if not connection.connected:
            if self._listeners:
                self.bring_up()
            return
        if not self.understood:
            self._unsent.clear()
            for number in list(self._listeners):
                self._refuse(number, None)
            return
        unsent, self._unsent = self._unsent, {}
        for number, anew in unsent.items():
            listener = self._listeners.get(number)
            if listener is None:
                continue
            tail = tail_of(listener.subscription(anew=anew))
            if not connection.post(tail, partial(self._answered, number), timeout_seconds=self._timeout_seconds):
                self._unsent[number] = anew  # until the connection is writable again, or another one is made

    def _answered(self, number: int, outcome: Outcome) -> None:
        if not isinstance(outcome, OctavoError) or isinstance(outcome, BookieUnavailableError):
            return  # a connection that is lost tells all listeners
        if isinstance(outcome, OctavoTimeoutError):
            # The bookie is slow, and may have understood or not: setting a subscription twice does no harm.
            if number in self._listeners:
                self._send_soon(number, anew=True)
            return
        self._refuse(number, outcome)

    def _refuse(self, number: int, error: OctavoError | None) -> None:
        listener = self._listeners.pop(number, None)
        self._unsent.pop(number, None)
        if listener is not None:
            listener.refused(error)
            if not self._listeners:
                self.close()
                self._on_idle()

    # --- what the connection tells --------------------------------------------------------------------------------

    def _pushed(self, pushes: list[Push]) -> None:
        for push in pushes:
            listener = self._listeners.get(push.subscription)
            if listener is None:
                continue  # it has left, and the bookie has not heard of that yet
            if push.flags & PushFlag.ENDED:
                self._refuse(push.subscription, BookieUnavailableError("the bookie has ended the subscription"))
            else:
                try:
                    listener.pushed(push)
                except Exception as error:  # a defect met with one ledger must not end the connection
                    defect = InternalError(f"what a bookie pushed could not be handled: {error!r}")
                    self._loop.call_exception_handler({"message": defect.message, "exception": error})
                    self._refuse(push.subscription, defect)

    def _state_changed(self, connection: BookieConnection) -> None:
        connected = connection.connected
        if connected and not self._was_connected:
            self._unsent = dict.fromkeys(self._listeners, True)
            self._flush_soon()
        elif connected and self._unsent and connection.writable:
            self._flush_soon()
        elif not connected and self._was_connected:
            self._unsent = dict.fromkeys(self._listeners, True)
            self._tell_lost(connection.last_error or BookieUnavailableError("the connection is lost"))
        self._was_connected = connected

    def _tell_lost(self, error: OctavoError) -> None:
        for number, listener in list(self._listeners.items()):
            if number in self._listeners:
                listener.lost(error)

    async def _wait_connected(self) -> None:
        error: OctavoError | None = None
        try:
            await self._connection.wait_writable(timeout_seconds=self._timeout_seconds)
        except OctavoError as failure:
            error = failure
        self._bringing_up = None
        if error is not None and not self._connection.connected:
            self._tell_lost(error)

    def _cancelled(self) -> None:
        """By :meth:`close`, or by the program (rule H2)."""
        self._bringing_up = None
        self._tell_lost(tasks_cancelled("a subscription"))


def _ignore(_outcome: Outcome) -> None:
    """Whether a bookie has heard that a subscription is over does not matter."""
