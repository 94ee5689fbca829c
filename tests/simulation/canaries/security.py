"""Canaries in what bookies allow: roles, principals, keys of new ledgers, limits."""

from typing import Any

from octavo.bookie.server.access import Access, Gate
from octavo.bookie.server.new_ledgers import NewLedgers
from octavo.bookie.server.replies import Replies
from octavo.protocol.errors import BookieOverloadedError
from octavo.protocol.messages import Added, Op
from simulation.engine.patches import Patch, patch


def roles_are_not_checked() -> list[Patch]:
    @patch(Gate, "check")
    def check(original: Any, self: Any, request: Any) -> None:
        if self.name is None:
            original(self, request)

    return [check]


def disabled_principals_stay() -> list[Patch]:
    @patch(Access, "update")
    def update(_original: Any, self: Any, principals: Any) -> None:
        self.principals = principals

    return [update]


def new_ledgers_are_believed() -> list[Patch]:
    @patch(NewLedgers, "must_wait")
    def must_wait(_original: Any, _self: Any, _request: Any) -> bool:
        return False

    return [must_wait]


def refused_adds_are_confirmed() -> list[Patch]:
    @patch(Replies, "refuse")
    def refuse(original: Any, self: Any, request_id: int, op: Op, error: Any) -> None:
        if op is Op.ADD and isinstance(error, BookieOverloadedError):
            self.finish(Added(), request_id)
        else:
            original(self, request_id, op, error)

    return [refuse]
