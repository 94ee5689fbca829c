"""A member of a group of the consumer protocol, and how it comes from what it has to what it is to have. Pure.

A member has partitions in two ways: those *assigned* it may read, and those that it is *revoking* it is to give back.
Of both it is the owner, and no other member gets them. The group's *target* says which partitions each member is to
have in the group's *epoch*. :func:`reconciled` takes a member one step towards that:

1. While it has not said that it has given back what it is revoking, nothing changes.
2. What it was told that it may have, and is not to have any more, it is told to give back; its epoch stays, so that it
   can still commit. That it does not have it now is no reason to give it to another member: it may be about to take it.
3. Otherwise it comes into the group's epoch, and gets what it is to have, as far as that has no other owner. The rest
   comes at a later heartbeat, once the owners have given it back.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from octavo.gateway.groups.places import Place

type Places = frozenset[Place]

NO_PLACES: Places = frozenset()


MEMBER_BYTES: Final = 1_000
"""Memory that a member takes that says nothing of itself, about."""


class EpochMember(NamedTuple):
    """See the module. All of it outlives the coordinator."""

    member_id: str
    instance_id: str | None = None
    """Of a *static* member, which keeps its place when its process begins again."""
    epoch: int = 0
    """The epoch of the group in which it has its partitions; 0: it has not been answered yet."""
    previous_epoch: int = 0
    """The one before: the answer that named :attr:`epoch` may have been lost."""
    assigned: Places = NO_PLACES
    revoking: Places = NO_PLACES
    is_away: bool = False
    """A static member that has said that its process begins again."""
    topics: tuple[str, ...] = ()
    """The names to which it has subscribed, in order."""
    pattern: str = ""
    """A regular expression for names; empty: none."""
    matched: tuple[str, ...] = ()
    """The names that the pattern matched when the member was last heard of."""
    assignor: str = ""
    """The way of sharing that it asks for; empty: any."""
    rebalance_ms: int = 0
    """It gives partitions back within this time, or is removed."""
    rack: str = ""
    client: str = ""
    """The name that its program has given itself; shown to people."""
    host: str = ""
    """Where it is; shown to people."""

    @property
    def owned(self) -> Places:
        """No other member gets these."""
        return self.assigned | self.revoking

    @property
    def names(self) -> frozenset[str]:
        """All topics that it wants."""
        return frozenset(self.topics).union(self.matched)

    @property
    def bytes_held(self) -> int:
        """Memory that the member takes, about."""
        texts = self.member_id, self.instance_id or "", self.pattern, self.assignor, self.rack, self.client, self.host
        names = (*self.topics, *self.matched)
        return MEMBER_BYTES + sum(map(len, texts)) + sum(map(len, names)) + 60 * len(names) + 100 * len(self.owned)


def reconciled(
    member: EpochMember, target: Places, epoch: int, has: Places | None, is_free: Callable[[Place], bool]
) -> EpochMember:
    """The member after its next step.

    ``has``: the partitions that the member has, as it has said after it was told what it may have; None: it has not
    said. ``is_free``: whether no other member is the owner of a partition.
    """
    if member.revoking and (has is None or not has.isdisjoint(member.revoking)):
        return member
    kept, leaving = member.assigned & target, member.assigned - target
    if leaving:
        return member._replace(assigned=kept, revoking=leaving)
    gained = frozenset(place for place in target - kept if is_free(place))
    previous = member.previous_epoch if member.epoch == epoch else member.epoch
    return member._replace(epoch=epoch, previous_epoch=previous, assigned=kept | gained, revoking=NO_PLACES)
