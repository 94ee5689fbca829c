"""Names of metadata stores in memory that no other test has, nor an earlier run of the same test.

A named store lives as long as something refers to it. The traceback of a failed test does, so a fixed name would hand
what that test left to its next run.
"""

import itertools

_numbers = itertools.count()


def memory_uri(name: str) -> str:
    """The URI of a store in memory that does not exist yet; ``name`` tells readers of a log what it is for."""
    return f"memory://{name}-{next(_numbers)}"
