"""Remarks about the hosts of a cluster's bookies: how many copies of an entry can be on different ones."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from octavo.client.bookie_status import BookieStatus

COPIES: Final = 3
"""Copies of an entry of a ledger of the default shape."""


def remarks(bookies: "Sequence[BookieStatus]") -> list[str]:
    """Remarks for an operator, one a line; empty where every bookie runs on a host of its own and registers it."""
    there = [bookie for bookie in bookies if bookie.state.value != "unavailable"]
    known = [bookie for bookie in there if bookie.host_id is not None]
    hosts = {bookie.host_id for bookie in known}
    silent = len(there) - len(known)
    found = []
    if len(hosts) < len(known):
        found.append(_shared(len(there), len(hosts) + silent))
    if silent:
        found.append(
            f"{_number(silent, 'bookie')} of {len(there)} did not say on which host they run (an older version, or "
            "a host that has no boot id): each counts as a host of its own"
        )
    return found + _across_racks(known)


def keeps_copies_apart(bookies: "Sequence[BookieStatus]") -> bool:
    """Whether every running bookie says where it runs, each host is in one rack, and there are as many hosts as copies
    of an entry, or as bookies."""
    there = [bookie for bookie in bookies if bookie.state.value != "unavailable"]
    known = [bookie for bookie in there if bookie.host_id is not None]
    hosts = {bookie.host_id for bookie in known}
    return len(known) == len(there) and not _across_racks(known) and len(hosts) >= min(COPIES, len(there))


def _shared(bookies: int, hosts: int) -> str:
    if hosts == 1:
        who = "the only bookie runs" if bookies == 1 else f"all {bookies} bookies run"
        return (
            f"{who} on one host: it holds every copy of every entry, and no placement can change that; start bookies "
            "on other hosts before you store what must not be lost"
        )
    text = f"{bookies} bookies run on {hosts} hosts"
    if hosts < COPIES:
        return f"{text}: of {COPIES} copies of an entry two or more are on one host; never all of them"
    return f"{text}: the copies of an entry go to different hosts"


def _across_racks(known: "Sequence[BookieStatus]") -> list[str]:
    racks: defaultdict[str, set[str]] = defaultdict(set)
    for bookie in known:
        racks[bookie.host_id or ""].add(bookie.rack or "")
    return [
        f"host {host} has bookies in several racks ({', '.join(sorted(of))}): a rack holds whole hosts, so set the "
        "same rack for all of them"
        for host, of in sorted(racks.items())
        if len(of) > 1
    ]


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
