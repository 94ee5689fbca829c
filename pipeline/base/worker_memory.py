"""Memory settings of a Spark Python worker, made once before its first task. Without them, garbage collection and
memory allocation cost a worker that moves hundreds of megabytes a second more than its own work.
"""

import gc
from functools import cache

_LARGEST_BUFFER_BYTES = 16 * 1024 * 1024
"""Larger than the frames, record batches and pieces of a task; below glibc's limit of 32 MiB for this threshold."""


@cache
def prepare_worker() -> None:
    """Make the tasks of this process cheaper. Only the first call has an effect.

    Spark's worker runs the garbage collector after each task, which visits every object of every loaded module.
    ``gc.freeze`` exempts the objects that exist now.

    glibc returns a freed buffer to the system if it is larger than any freed before, and the kernel must clear every
    page of the next one. Allocating and freeing one large buffer here (its pages are never touched) raises that
    threshold. Other C libraries are not affected.
    """
    gc.freeze()
    bytes(_LARGEST_BUFFER_BYTES)
