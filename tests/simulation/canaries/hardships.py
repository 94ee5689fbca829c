"""Canaries that need a hardship: pauses longer than leases, turns in which several things are due, clocks that step,
callers that give up, handles that are kept, old incarnations that come back, hosts with several bookies."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from octavo.bookie.identity import cookie, incarnation
from octavo.client.choose import placement, placer
from octavo.client.choose.locations import Location
from octavo.client.log.chain import layout as chain
from octavo.client.log.stream import lead as stream_lead
from octavo.client.log.writer import holding
from octavo.client.recover.stream_taker import StreamTaker
from simulation.engine.patches import Patch, patch


def candidates_do_not_ask_their_lease() -> list[Patch]:
    return [Patch(module, "held_by", lambda _lease, _name: holding.needs_no_lock) for module in (chain, stream_lead)]


def kept_metadata_are_believed() -> list[Patch]:
    @patch(StreamTaker, "_is_current")
    async def is_current(_original: Any, _self: Any, _stream: Any) -> bool:
        return True

    return [is_current]


def identities_are_not_confirmed() -> list[Patch]:
    return [Patch(incarnation, "lost_to", lambda *_arguments: None)]


def lineages_are_not_compared() -> list[Patch]:
    @patch(cookie, "_compare_with_metadata")
    def compare(original: Any, directories: Sequence[Any], metadata: Any) -> Any:
        bare = [
            state if state.cookie is None else replace(state, cookie=replace(state.cookie, lineage=""))
            for state in directories
        ]
        return original(bare, None if metadata is None else replace(metadata, lineage=""))

    return [compare]


def hosts_are_not_looked_at() -> list[Patch]:
    return [Patch(placement, "location_of", lambda bookie: Location(bookie.rack, f"~{bookie.bookie_id}"))]


def spread_of_parts_is_not_kept() -> list[Patch]:
    return [
        Patch(placer, "keep_spread", lambda _quorums, _ensemble, replacements, _locations, _least: dict(replacements))
    ]
