"""Canaries in gateways: what they answer, what a new leader knows, and what coordinators of groups let land."""

from typing import Any

from octavo.gateway.codes import RefusedError
from octavo.gateway.coordinating.coordinator import Coordinator
from octavo.gateway.coordinating.group_log import GroupLog
from octavo.gateway.groups.entries import OffsetsCommitted
from octavo.gateway.groups.group import Group
from octavo.gateway.leading.led_log import LedLog
from octavo.gateway.leading.partition import LedPartition
from octavo.gateway.leading.recent import Recent
from octavo.gateway.records.producers import Producers
from octavo.gateway.records.takeover import Takeover
from simulation.engine.patches import Patch, patch

_EVERY_ID = 1 << 62


def batches_are_answered_early() -> list[Patch]:
    @patch(LedPartition, "add")
    def add(original: Any, self: Any, view: Any, batch: Any, now_ms: Any) -> Any:
        base_offset = self.appends.next_offset
        answer = original(self, view, batch, now_ms)
        if self.appends.next_offset == base_offset:
            return answer  # a repeat
        early = self._loop.create_future()
        early.set_result(base_offset)
        return early

    return [add]


def takeovers_forget_producers() -> list[Patch]:
    @patch(Takeover, "begin")
    def begin(original: Any, self: Any, end: Any, now_ms: Any) -> Any:
        self._producers = Producers(forgotten_below=_EVERY_ID)
        return original(self, end, now_ms)

    return [begin]


def sequences_are_not_compared() -> list[Patch]:
    @patch(Producers, "judge")
    def judge(original: Any, self: Any, batch: Any) -> Any:
        try:
            return original(self, batch)
        except RefusedError:
            return None

    return [judge]


def takeovers_begin_too_low() -> list[Patch]:
    @patch(Takeover, "begin")
    def begin(original: Any, self: Any, end: Any, now_ms: Any) -> Any:
        self._next_offset = max(0, self._next_offset - 1)
        return original(self, end, now_ms)

    return [begin]


def reads_from_memory_skip() -> list[Patch]:
    @patch(Recent, "read")
    def read(original: Any, self: Any, offset: Any, bytes_max: Any) -> Any:
        found = original(self, offset + 1, bytes_max)
        return original(self, offset, bytes_max) if found is None else found

    return [read]


def commits_are_answered_early() -> list[Patch]:
    @patch(GroupLog, "add")
    def add(original: Any, self: Any, entry: Any) -> Any:
        added = original(self, entry)
        if not isinstance(entry, OffsetsCommitted):
            return added
        early = self._loop.create_future()
        early.set_result(None)
        return early

    return [add]


def stale_members_commit() -> list[Patch]:
    @patch(Group, "check_commit")
    def check_commit(
        _original: Any, _self: Any, _member_id: Any, _instance_id: Any, _generation: Any, _now_ms: Any
    ) -> None: ...

    return [check_commit]


def leases_are_not_asked() -> list[Patch]:
    @patch(LedLog, "leads")
    def leads(_original: Any, self: Any) -> bool:
        return bool(self.lost is None)

    return [leads]


def generations_begin_anew() -> list[Patch]:
    @patch(Coordinator, "_new_group")
    def new_group(_original: Any, self: Any, group_id: Any) -> Any:
        return Group(group_id, self._new_member_id)

    @patch(Group, "go_on_from")
    def go_on_from(_original: Any, _self: Any, _generation: Any) -> None: ...

    return [new_group, go_on_from]
