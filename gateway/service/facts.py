"""The facts that a gateway gives of its cluster. Pure."""

from typing import NamedTuple


class Facts(NamedTuple):
    """See the module."""

    cluster_id: str
    creates_topics: bool
    """Whether a topic that a client names is made, if there is none."""
