"""What a worker does before its first task: seen in a process of its own, as it lasts for the process."""

import subprocess
import sys

PROGRAM = """
import gc, resource
from octavo.pipeline.base.worker_memory import prepare_worker

def pages_taken():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        [b"x" * (1 << 20) for _ in range(8)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

fresh = pages_taken()
prepare_worker()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
prepare_worker()
print(frozen > 5000, gc.get_freeze_count() - frozen, fresh > 20_000, pages_taken() < 6000)
"""


def test_what_is_loaded_is_set_aside_once_and_freed_buffers_are_kept() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "True 0 True True\n", done.stdout
