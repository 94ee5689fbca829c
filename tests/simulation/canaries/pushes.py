"""Canaries in following: what bookies push, and what a follower makes of it."""

from typing import Any

from octavo.bookie.server.subscriptions import Subscriptions
from octavo.client.read.feed import Feed
from octavo.client.read.listening import Listening
from octavo.client.wire.subscriptions import BookieSubscriptions
from octavo.protocol.pushes import Push, PushFlag
from simulation.engine.patches import Patch, patch


def pushes_are_lost() -> list[Patch]:
    @patch(Subscriptions, "_push_of")
    async def push_of(original: Any, self: Any, subscription: Any, bytes_max: int, entries_max: int) -> Push | None:
        push: Push | None = await original(self, subscription, bytes_max, entries_max)
        lost = push is not None and push.lac is not None and push.lac % 2 == 1
        return None if lost else push

    return [push_of]


def credit_is_not_returned() -> list[Patch]:
    @patch(Listening, "give_credit")
    def give_credit(_original: Any, _self: Any) -> None:
        return None

    return [give_credit]


def pushed_is_confirmed() -> list[Patch]:
    @patch(Feed, "on_entries")
    def on_entries(original: Any, self: Any, entries: Any) -> bool:
        moved: bool = original(self, entries)
        if entries:
            moved = self.on_last_add_confirmed(entries[-1].entry_id, None) or moved
        return moved

    return [on_entries]


def fences_are_not_pushed() -> list[Patch]:
    @patch(Subscriptions, "_push_of")
    async def push_of(original: Any, self: Any, subscription: Any, bytes_max: int, entries_max: int) -> Push | None:
        push: Push | None = await original(self, subscription, bytes_max, entries_max)
        return None if push is None else push._replace(flags=push.flags & ~PushFlag.OVER)

    return [push_of]


def lost_with_their_connection() -> list[Patch]:
    @patch(BookieSubscriptions, "_state_changed")
    def state_changed(original: Any, self: Any, connection: Any) -> None:
        again = connection.connected and not self._was_connected and getattr(self, "had_connection", False)
        original(self, connection)
        self.had_connection = connection.connected or getattr(self, "had_connection", False)
        if again:
            self._unsent.clear()

    @patch(Listening, "lost")
    def lost(_original: Any, self: Any, error: Any) -> None:
        self._feed.nothing_heard(self.bookie_id, error)  # and it does not choose again

    return [state_changed, lost]


def begin_with_what_comes() -> list[Patch]:
    @patch(Subscriptions, "set")
    def set_subscription(original: Any, self: Any, request: Any) -> None:
        known = request.subscription in self._by_number
        original(self, request)
        if not known:
            subscription = self._by_number[request.subscription]
            subscription.is_queued = False
            self._lagging.pop(subscription, None)
            if subscription in self._moved:
                self._moved.remove(subscription)

    return [set_subscription]


def all_are_asked() -> list[Patch]:
    return [Patch(BookieSubscriptions, "understood", property(lambda _self: True))]
