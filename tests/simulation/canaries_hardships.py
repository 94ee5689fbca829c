"""Canaries that need a hardship: pauses longer than leases, turns in which several things are due, clocks that step,
callers that give up, handles that are kept, old incarnations that come back."""

from typing import Any

from octavo.client.log import chain, holding, stream_lead
from octavo.client.stream.taking_over import StreamTaker
from simulation.patches import Patch, patch


def candidates_do_not_ask_their_lease() -> list[Patch]:
    return [Patch(module, "held_by", lambda _lease, _name: holding.needs_no_lock) for module in (chain, stream_lead)]


def kept_metadata_are_believed() -> list[Patch]:
    @patch(StreamTaker, "_is_current")
    async def is_current(_original: Any, _self: Any, _stream: Any) -> bool:
        return True

    return [is_current]
