"""Serves the requests of a pack.

A request of a pack is served as if it had come alone. Most packs hold adds of many ledgers, one entry each, that
nothing is unusual about. These are verified, journaled and answered together
(:meth:`octavo.bookie.storage.writes.EntryWriter.add_plain_then`). Every other request goes the way of one that came
alone, and so does every add that may have to be refused: only that way refuses.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from octavo.bookie.server.replies import Replies
from octavo.bookie.server.service import BookieService
from octavo.bookie.storage.admission import Done
from octavo.protocol.entries import verify_lone_entries
from octavo.protocol.messages import Request
from octavo.protocol.packs import Pack, PlainAdds
from octavo.protocol.places import are_places


class PackedRequests:
    """See the module. ``serve`` serves one request that has begun, with its id; ``is_closing``: the connection is being
    closed, and serves nothing any more."""

    def __init__(
        self,
        service: BookieService,
        replies: Replies,
        *,
        serve: Callable[[int, Request], None],
        is_closing: Callable[[], bool],
    ) -> None:
        self._service, self._replies, self._standing = service, replies, service.standing
        self._serve, self._is_closing = serve, is_closing

    def serve(self, pack: Pack, *, guarded: bool) -> None:
        """Serve the requests of a pack one after another. ``guarded``: each has to be looked at first. Raises
        :class:`ProtocolError` if one of them ends the connection."""
        self._replies.begin_pack(pack.first_id, pack.size)
        for request_id, request in self._one_by_one(pack, guarded=guarded):
            if self._is_closing():
                return
            self._serve(request_id, request)

    def _one_by_one(self, pack: Pack, *, guarded: bool) -> Iterator[tuple[int, Request]]:
        """The requests that are to be served one by one, in order. Plain adds before them have been accepted."""
        request_id = pack.first_id
        for part in pack.parts:
            if isinstance(part, PlainAdds):
                for index in range(len(part.entries)) if guarded else self._add_plain(request_id, part):
                    yield request_id + index, part.request(index)
                request_id += len(part.entries)
            else:
                yield request_id, part
                request_id += 1

    def _add_plain(self, first_id: int, adds: PlainAdds) -> Sequence[int]:
        """Accept the adds that are as usual. Returns the indexes of the others, which are to be served one by one."""
        service, began_at = self._service, self._replies.began_at
        each = range(len(adds.entries))
        if service.draining or service.read_only or began_at >= self._standing.sure_until or self._is_closing():
            return each
        entries = verify_lone_entries(adds.ledger_ids, adds.entries)
        if entries is None or not are_places(adds.terms, entries.entry_ids):
            return each

        def done(taken: Sequence[int]) -> Done:
            return partial(self._replies.added_together, [first_id + index for index in taken], began_at)

        storage = service.storage
        left = storage.writer.add_plain_then(adds, entries, done)
        traffic = service.traffic
        traffic.adds += len(each) - len(left)
        traffic.entries_added += len(each) - len(left)
        traffic.bytes_added += sum(entries.sizes) - sum(entries.sizes[index] for index in left)
        if not storage.admission.has_room:
            service.hold_back_if_full()
        return left
