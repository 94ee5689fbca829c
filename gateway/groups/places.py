"""A partition, as groups name it. Pure."""

from typing import NamedTuple


class Place(NamedTuple):
    """A partition of a topic that may be deleted and made again."""

    topic_id: str
    partition: int
