"""Canaries in packs: a frame with requests of many ledgers, each of which has an outcome of its own."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from octavo.bookie.server.connection import Connection
from octavo.bookie.server.replies import Replies
from octavo.client.wire.outstanding_packs import OutstandingPack, Settle
from octavo.client.wire.posting import Posting
from octavo.client.wire.wire import Wire
from octavo.protocol.errors import OctavoError
from octavo.protocol.frames import unpack_body
from octavo.protocol.ids import LedgerId
from octavo.protocol.messages import Add, Op
from octavo.protocol.packs import decode_done, decode_pack, is_pack
from simulation.engine.patches import Patch, patch

LATE_SECONDS = 0.1
"""How long the second half of a pack waits, where a fence that comes meanwhile is ignored."""

READ_ON_SECONDS = 2.0
"""How long a connection that was given up is still read."""

FIRST_ID = 1 << 40
"""First id of each connection: requests that are not posted have other ids."""


def refused_is_done() -> list[Patch]:
    @patch(Replies, "refuse")
    def refuse(original: Any, self: Any, request_id: int, op: Any, error: BaseException) -> None:
        if request_id in self._packed:
            self._finish_packed(request_id, op)
        else:
            original(self, request_id, op, error)

    return [refuse]


def refusal_goes_to_neighbour() -> list[Patch]:
    @patch(OutstandingPack, "refused")
    def refused(original: Any, self: Any, request_id: int, outcome: Any) -> list[Settle]:
        neighbour = request_id + 1 if request_id + 1 < self.stop_id else self.first_id
        settled: list[Settle] = original(self, neighbour, outcome)
        return settled

    return [refused]


def partly_done_is_done() -> list[Patch]:
    @patch(OutstandingPack, "succeeded")
    def succeeded(original: Any, self: Any, _first_id: int, _last_id: int) -> list[Settle]:
        settled: list[Settle] = original(self, self.first_id, self.stop_id - 1)
        return settled

    return [succeeded]


def lost_is_partly_done() -> list[Patch]:
    @patch(OutstandingPack, "failed")
    def failed(original: Any, self: Any, make_error: Callable[[], OctavoError]) -> list[Settle]:
        half = len(self._waiting) // 2
        done: list[Settle] = [one for one in self._waiting[:half] if one is not None]
        self._waiting[:half] = [None] * half
        others: list[Settle] = original(self, make_error)
        return done + others

    return [failed]


def fence_within_is_ignored() -> list[Patch]:
    @patch(Connection, "_pack")
    def pack(original: Any, self: Any, values: Any, body: Any) -> None:
        # The second half is served later, and what fences were there is not looked at again.
        decoded = decode_pack(values)
        first_id, requests = decoded.first_id, decoded.requests
        half, ledgers = len(requests) // 2, self._storage.ledgers
        if not half:
            original(self, values, body)
            return
        original(self, [first_id, values[1], values[2][:half]], body)
        of_adds = {one.ledger_id for one in requests[half:] if isinstance(one, Add)}
        unfenced = {ledger_id for ledger_id in of_adds if not ledgers.get(LedgerId(ledger_id)).fenced}

        def serve_rest() -> None:
            if self._closing or self._replies.closed:
                return
            fenced = [ledger for ledger in map(ledgers.get, sorted(unfenced)) if ledger.fenced]
            for ledger in fenced:
                ledger.fenced = False
            try:
                original(self, [first_id + half, values[1], values[2][half:]], body)
            finally:
                for ledger in fenced:
                    ledger.fenced = True

        asyncio.get_running_loop().call_later(LATE_SECONDS, serve_rest)

    return [pack]


def last_is_done_before_sync() -> list[Patch]:
    @patch(Replies, "begin_pack")
    def begin_pack(original: Any, self: Any, first_id: int, requests: int) -> None:
        original(self, first_id, requests)
        if requests > 1:
            asyncio.get_running_loop().call_soon(answer_early, self, first_id + requests - 1)

    def answer_early(self: Any, request_id: int) -> None:
        # When the pack has been dispatched. The request's own answer is not sent any more.
        if request_id in self._packed:
            self._finish_packed((request_id,), Op.ADD)
            vars(self).setdefault("answered_early", set()).add(request_id)

    @patch(Replies, "added")
    def added(original: Any, self: Any, request_id: int, began_at: float, failure: BaseException | None) -> None:
        if request_id not in vars(self).get("answered_early", ()):
            original(self, request_id, began_at, failure)

    @patch(Replies, "added_together")
    def added_together(original: Any, self: Any, request_ids: Any, began_at: float, failure: Any) -> None:
        early = vars(self).get("answered_early", ())
        original(self, [one for one in request_ids if one not in early], began_at, failure)

    return [begin_pack, added, added_together]


def answers_of_older_connection_count() -> list[Patch]:
    # Two defects that do no harm alone: each connection counts its posted requests from the same id on, and one that is
    # given up is still read for a while. Its answers go to the connection that the client has by then.
    latest: dict[object, Wire] = {}

    @patch(Wire, "__init__")
    def init(original: Any, self: Any, owner: Any, **keywords: Any) -> None:
        original(self, owner, **{**keywords, "next_request_id": itertools.count(FIRST_ID).__next__})

    @patch(Wire, "_up")
    def up(original: Any, self: Any) -> None:
        latest[self._owner] = self
        original(self)

    @patch(Wire, "_give_up_silent_bookie")
    def give_up_silent_bookie(original: Any, self: Any, overdue: Any) -> None:
        transport, self._transport = self._transport, None
        original(self, overdue)
        self._transport = transport
        asyncio.get_running_loop().call_later(READ_ON_SECONDS, transport.abort)

    @patch(Wire, "data_received")
    def data_received(original: Any, self: Any, data: bytes) -> None:
        if self.error is None:
            original(self, data)
            return
        for body in self._decoder.feed(data):
            values = unpack_body(body)
            if is_pack(values) and self._owner in latest:
                latest[self._owner].posting.answered(values)

    return [init, up, give_up_silent_bookie, data_received]


def packs_outlive_connection() -> list[Patch]:
    # The requests of a lost connection do not fail: the next connection, which counts them from the same id on, takes
    # them over, and its answers count for them.
    owners: dict[object, object] = {}
    kept: dict[object, list[OutstandingPack]] = {}

    @patch(Wire, "__init__")
    def init(original: Any, self: Any, owner: Any, **keywords: Any) -> None:
        owners[self] = owner
        original(self, owner, **{**keywords, "next_request_id": itertools.count(FIRST_ID).__next__})

    @patch(Posting, "_pack_over")
    def pack_over(_original: Any, self: Any, first_id: int, _outcome: Any) -> None:
        pack = self.packs.remove(first_id)
        if pack is not None:
            kept.setdefault(owners[self._frames], []).append(pack)

    @patch(Posting, "answered")
    def answered(original: Any, self: Any, values: Any) -> None:
        original(self, values)
        for first_id, last_id in decode_done(values):
            for pack in kept.get(owners[self._frames], ()):
                first, last = max(first_id, pack.first_id), min(last_id, pack.stop_id - 1)
                for on_outcome, outcome in pack.succeeded(first, last) if first <= last else ():
                    self._frames.deliver(on_outcome, outcome)

    return [init, pack_over, answered]


def packs_are_sent_to_all() -> list[Patch]:
    @patch(Wire, "_up")
    def up(original: Any, self: Any) -> None:
        original(self)
        self.posting.takes_packs = True

    return [up]
