"""Which gateway is to lead a log (rule K9). Pure.

Each gateway and each log together have a weight, a hash of both. The gateway with the highest
weight is to lead the log. So all gateways that know the same ones make the same choice, without a word to each other;
each has its share of the logs; and where a gateway comes or goes, only logs move that it gets or had.
"""

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

_HASH_BYTES: Final = 8


def chosen(log_name: str, node_ids: Collection[int]) -> int | None:
    """The gateway that is to lead the log, of the gateways that are there; None if there is none.

    Examples:
        >>> [chosen(f"kafka/orders/{number}", [1, 2, 3]) for number in range(6)]
        [3, 2, 2, 3, 1, 1]
    """
    return max(node_ids, key=lambda node_id: _weight(log_name, node_id), default=None)


def _weight(log_name: str, node_id: int) -> bytes:
    return blake2b(f"{node_id} {log_name}".encode(), digest_size=_HASH_BYTES).digest()
