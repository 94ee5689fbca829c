"""A member of a consumer group, and what it asks when it joins. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, NewType

Token = NewType("Token", int)
"""A request that waits for its answer, as the shell numbers it."""


class Protocol(NamedTuple):
    """A way to share partitions that a member knows, with what the member says for it: bytes that only members read."""

    name: str
    metadata: bytes


class Joining(NamedTuple):
    """The fields of a JoinGroup request."""

    member_id: str
    """Empty: the member has none yet."""
    instance_id: str | None
    """Of a *static* member, which keeps its place when its process begins again. None: a *dynamic* member."""
    session_ms: int
    """A member that is not heard of for this time is removed."""
    rebalance_ms: int
    """The others wait for the member for at most this time when a generation begins."""
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """The member likes the first best."""
    needs_id_first: bool = False
    """A new dynamic member is given an id, and joins with it: a request whose answer was lost leaves no member."""
    client: str = ""
    """The name that its program has given itself; shown to people."""
    host: str = ""
    """Where it is; shown to people."""

    @property
    def bytes_held(self) -> int:
        """Memory that the member takes, about."""
        texts = self.member_id, self.instance_id or "", self.protocol_type, self.client
        return sum(map(len, texts)) + sum(len(one.name) + len(one.metadata) for one in self.protocols)


class Syncing(NamedTuple):
    """The fields of a SyncGroup request."""

    member_id: str
    instance_id: str | None
    generation: int
    assignments: Mapping[str, bytes]
    """By member id, from the leader; from others none."""


class MemberFacts(NamedTuple):
    """A member as the leader of the group gets to know it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(slots=True)
class Member:
    """See the module."""

    member_id: str
    instance_id: str | None
    session_ms: int
    rebalance_ms: int
    protocols: tuple[Protocol, ...]
    expires_at_ms: int
    """It is removed then, unless it is heard of."""
    assignment: bytes = b""
    """The partitions that the leader gave it in the present generation; only members read it."""
    join: Token | None = None
    """Its JoinGroup that waits for an answer."""
    sync: Token | None = None
    """Its SyncGroup that waits for an answer."""
    client: str = ""
    host: str = ""

    @property
    def bytes_held(self) -> int:
        """Memory that the member takes, about."""
        texts = self.member_id, self.instance_id or "", self.client, self.assignment
        return sum(map(len, texts)) + sum(len(one.name) + len(one.metadata) for one in self.protocols)

    def hear(self, now_ms: int) -> None:
        """The member has sent something."""
        self.expires_at_ms = now_ms + self.session_ms

    def metadata_for(self, protocol: str) -> bytes:
        """The member's words for a protocol that it knows."""
        return next(one.metadata for one in self.protocols if one.name == protocol)

    def is_expired(self, now_ms: int) -> bool:
        """Whether it was not heard of for too long. A member whose request waits for an answer is there."""
        return self.join is None and self.sync is None and now_ms >= self.expires_at_ms
