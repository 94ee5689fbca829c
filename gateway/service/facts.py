"""The facts that a gateway gives of itself. Pure."""

from typing import Final, NamedTuple

NODE_ID: Final = 1
"""Of the one gateway of a cluster, as clients know it."""


class Facts(NamedTuple):
    """See the module."""

    cluster_id: str
    host: str
    """Where clients reach the gateway."""
    port: int
    creates_topics: bool
    """Whether a topic that a client names is made, if there is none."""
