"""Canaries in the keys of entries: what a leader knows of them."""

from typing import Any

from octavo.client.log.key_reader import KeyReader
from octavo.client.log.keys.known_keys import KnownKeys
from simulation.engine.patches import Patch, patch


def leader_reads_no_keys() -> list[Patch]:
    @patch(KeyReader, "for_leader")
    async def for_leader(_original: Any, self: Any, end: int) -> KnownKeys | None:
        return None if self._view.keys is None else KnownKeys(self._view.keys, end=end)

    return [for_leader]


def doubt_is_forgotten() -> list[Patch]:
    @patch(KnownKeys, "doubted")
    def doubted(_original: Any, self: Any, key: str, position: int, at_ms: int, error: Any) -> None:
        self.refused(key)

    return [doubted]
