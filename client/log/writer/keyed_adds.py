"""Adds with keys: what :class:`~octavo.client.log.keys.known_keys.KnownKeys` decides, performed by a log's writer.

An add with a key goes on without its caller: cancelling the call withdraws nothing, because another call with the key
may be waiting for the same entry.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from octavo.client.log.documents.key_window import encoded_key
from octavo.client.log.keys.form import with_key
from octavo.client.log.keys.known_keys import Answer, KnownKeys
from octavo.client.log.writer.adds import copy_error
from octavo.client.write.front.adds import Payload, checked_payload, checked_payloads
from octavo.client.write.front.front import Front
from octavo.protocol.errors import InternalError, OctavoError


class KeyedAdds:
    """See the module. Of one writer."""

    def __init__(self, known: KnownKeys, front: Front, clock_ms: Callable[[], int]) -> None:
        """``known``: the keys of the log below the writer's first position."""
        assert known.end == front.next_position, "the writer goes on where the keys were read"
        self._known = known
        self._front = front
        self._clock_ms = clock_ms
        self._under_way: dict[str, asyncio.Future[int]] = {}

    async def add(self, payload: Payload, key: str, expected: int | None) -> int:
        """The position of the entry with this key: the one that is there, or the one that is added now."""
        stored = with_key(encoded_key(key), checked_payload(payload))
        self._known.entries_until(self._front.acknowledged_stop)
        found = self._known.find(key, self._clock_ms())
        if isinstance(found, int):
            return found
        if isinstance(found, OctavoError):
            raise copy_error(found, found.doubt)
        if found is Answer.UNKNOWN:
            future = self._front.begin(stored, expected)
            self._known.begin(key)
            self._under_way[key] = future
            if future.done():
                self._answered(key, future)
            else:
                future.add_done_callback(partial(self._answered, key))
            return await asyncio.shield(future)
        try:
            return await asyncio.shield(self._under_way[key])
        except OctavoError as error:
            # Of its own: the call that the add is of raises the same.
            raise copy_error(error, error.doubt) from error

    def _answered(self, key: str, future: asyncio.Future[int]) -> None:
        del self._under_way[key]
        if future.cancelled():
            self._known.refused(key)
            return
        error = future.exception()
        if error is None:
            self._known.acknowledged(key, future.result(), self._clock_ms())
            return
        doubt = error.doubt if isinstance(error, OctavoError) else None
        if doubt is None:
            self._known.refused(key)
            return
        assert isinstance(error, OctavoError), "it has a doubt"
        if doubt.sent != 1:
            raise InternalError(f"an add of one entry is in doubt about {doubt.sent}")
        self._known.doubted(key, doubt.position, self._clock_ms(), error)


def without_key(payload: Payload) -> bytes:
    """The stored form of an entry without a key."""
    return with_key(b"", checked_payload(payload))


def all_without_key(payloads: Iterable[Payload]) -> list[bytes]:
    """The same for many entries."""
    return [with_key(b"", payload) for payload in checked_payloads(payloads)]
