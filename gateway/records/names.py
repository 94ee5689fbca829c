"""The names of a partition's documents in the metadata store. Pure."""

from typing import Final

_POSITION_DIGITS: Final = 19
"""Of the largest position: names of snapshots sort as their positions do."""


def anchor_document(log_id: str) -> str:
    """Of the anchor of a partition (:mod:`octavo.gateway.records.offsets`)."""
    return f"kafka/anchors/{log_id}"


def snapshots_prefix(log_id: str) -> str:
    """The beginning of the names of all snapshots of a partition's producers, and of their pages."""
    return f"kafka/producers/{log_id}/"


def snapshot_document(log_id: str, position: int) -> str:
    """Of the head of the snapshot at this position (:mod:`octavo.gateway.records.snapshot`)."""
    return f"{snapshots_prefix(log_id)}{position:0{_POSITION_DIGITS}}"


def page_document(log_id: str, position: int, number: int) -> str:
    """Of a page of that snapshot."""
    return f"{snapshot_document(log_id, position)}-{number}"
