"""What a Python worker of Spark does once, before its first task: two habits of Python and of the C library cost a
worker that moves hundreds of megabytes a second more than what it does with them.
"""

import gc
from functools import cache

_LARGEST_BUFFER_BYTES = 16 * 1024 * 1024
"""Above the frames, record batches and pieces that a task holds at a time; below the 32 MiB that glibc goes up to."""


@cache
def prepare_worker() -> None:
    """Make tasks of this process cheaper; whatever it is called for, it does so once.

    Spark's worker collects garbage after each task, which looks at every object of every module that is loaded: those
    there are now are set aside (``gc.freeze``).

    glibc gives a buffer that is larger than any it has seen freed to the system again, and takes a new one page by
    page, each to be cleared by the kernel. One that is allocated (its pages are never touched) and freed here teaches
    it to keep those of a task; other C libraries lose nothing by it.
    """
    gc.freeze()
    bytes(_LARGEST_BUFFER_BYTES)
