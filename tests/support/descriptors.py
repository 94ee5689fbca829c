"""This process without file descriptors."""

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def no_descriptors_left(*, spare: int = 0) -> Iterator[None]:
    """In the block, this process can open ``spare`` more files and sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, hard))
    opened: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        for _ in range(spare):
            os.close(opened.pop())
        yield
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
