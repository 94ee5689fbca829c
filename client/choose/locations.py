"""Where bookies are: their racks and hosts. Pure.

A bookie says where it is while it is registered (:mod:`octavo.metadata.cluster.registration`). :class:`Locations`
remembers it of bookies that have gone, because a write set may still name them.

The id of a host that bookies find by themselves is that of the start of its kernel, so it changes when the host
restarts. The bookies of the host that come back register the new id. A bookie that does not come back is taken to be on
the host with the new id, too, unless a bookie is still registered with the old one (rule M6).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from octavo.metadata.cluster.registration import BookieRegistration
from octavo.protocol.ids import BookieId

_OWN_HOST: Final = "~"
"""Begins the name of the host of a bookie that registers none. No id of a host begins with it."""


class Location(NamedTuple):
    """The rack and the host of a bookie."""

    rack: str
    host: str


UNKNOWN: Final = Location("", "")
"""The location of a bookie that was never seen registered: it counts for no rack and no host."""


def location_of(registration: BookieRegistration) -> Location:
    """Where a registered bookie is. One that registers no host is on a host of its own."""
    return Location(registration.rack, registration.host_id or f"{_OWN_HOST}{registration.bookie_id}")


def has_own_host(location: Location) -> bool:
    """Whether the bookie there has registered no host."""
    return location.host.startswith(_OWN_HOST)


class Locations:
    """The locations of all bookies seen so far, gone ones included."""

    def __init__(self) -> None:
        self._known: dict[BookieId, Location] = {}

    @property
    def known(self) -> Mapping[BookieId, Location]:
        """The location of each."""
        return MappingProxyType(self._known)

    def note(self, registered: Iterable[BookieRegistration]) -> None:
        """Note where the bookies are that are registered now: all of them."""
        now = {one.bookie_id: location_of(one) for one in registered}
        in_use = {location.host for location in now.values()}
        renamed = {
            before.host: location.host
            for name, location in now.items()
            if (before := self._known.get(name)) is not None and before.host not in in_use
        }
        if renamed:
            self._known = {
                name: location._replace(host=renamed.get(location.host, location.host))
                for name, location in self._known.items()
            }
        self._known.update(now)
