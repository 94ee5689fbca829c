"""A process that forks in the midst of its adds: its child is refused and sends nothing, and nothing of its own is lost
(rule H1)."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands.processes import WAIT_SECONDS, Up, environment
from support.programs import forking_process
from support.programs.forking_process import CONNECTIONS, FORKS, HOLDS_LOCK, LEADS, NEW_ELSEWHERE

WAYS = ("fresh", "inherited", "unwound", "pool")


@pytest.fixture(scope="module")
def up(module_folder: Path) -> Iterator[Up]:
    with Up(module_folder / "data", "--bookies", 3) as cluster:
        yield cluster.wait_ready()


def run(uri: str, loop: str, way: str) -> Any:
    """What the process says at its end."""
    program = Path(forking_process.__file__)
    ended = subprocess.run(
        [sys.executable, "-P", str(program), uri, loop, way],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * WAIT_SECONDS,
        env=environment(PYTHONPATH=str(program.parents[2])),
    )
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


CASES = [(loop, way) for loop in ("asyncio", "uvloop") for way in WAYS if (loop, way) != ("uvloop", "inherited")]
"""A child that runs its parent's uvloop loop shares the parent's epoll set and io_uring, because uvloop does not call
``uv_loop_fork``. libuv ends a process of the two with SIGABRT now and then: the limit that rule H1 names."""


@pytest.mark.parametrize(("loop", "way"), CASES)
def test_forked_child_is_refused_and_its_parent_goes_on(up: Up, loop: str, way: str) -> None:
    told = run(up.uri, loop, way)

    assert told["intact"], "the parent has read back what it added"
    assert told["statuses"] == [0] * FORKS
    for raised in told["raised"]:
        elsewhere = raised.pop(NEW_ELSEWHERE)
        # The inherited event loop shares its poll with the parent's.
        assert elsewhere.startswith("ForkedError: ") if way == "inherited" else elsewhere == "0"
        assert raised.pop(CONNECTIONS) == "0", "nothing that it does can reach a bookie"
        assert (raised.pop(LEADS), raised.pop(HOLDS_LOCK)) == ("False", "False")
        assert len(raised) > 40
        assert {name: error for name, error in raised.items() if not error.startswith("ForkedError: ")} == {}
        assert all("after the fork" in error for error in raised.values()), "says what to do"
