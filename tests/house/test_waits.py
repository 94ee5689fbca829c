"""Tests wait for events, or poll with the helpers of ``tests/support/waiting.py``.

A test that sleeps for a fixed time is too quick for a busy machine and too slow for any other. Where a test is about
time itself, it says so with ``support.waiting.pause``.
"""

import ast

from support.tree import dotted_name, python_files, syntax_tree

OWN_SLEEPS = {
    "tests/bookie/memory/test_frame_memory.py": "the time of the simulator's loop, which passes at once",
    "tests/bookie/server/test_repair_reads.py": "the time of the simulator's loop, which passes at once",
    "tests/client/log/writer/test_log_adds_in_one_turn.py": "the time of the simulator's loop, which passes at once",
    "tests/client/log/writer/test_log_writer_in_one_turn.py": "the time of the simulator's loop, which passes at once",
    "tests/client/recover/test_stream_taker.py": "the time of the simulator's loop, which passes at once",
    "tests/pipeline/source/test_scan.py": "a function that Spark runs in a worker without the tests' modules",
    "tests/pipeline/sink/test_sink.py": "a class that Spark runs in a worker without the tests' modules",
    "tests/metadata/store/test_leases.py": "the time of the simulator's loop, which passes at once",
    "tests/repair/base/test_keep_running.py": "the time of the simulator's loop, which passes at once",
    "tests/security/test_strangers.py": "the time of the simulator's loop, which passes at once",
    "tests/support/disks/failing_disk.py": "a program of its own: the delay is its fault",
    "tests/support/programs/leading_process.py": "a program of its own, which pauses between two adds",
    "tests/support/waiting.py": "the helpers",
}
"""File with sleeps -> why it does not use the helpers. Besides these, all of `tests/simulation`, whose time is not
real."""


def sleeps(tree: ast.AST) -> list[int]:
    """The lines with ``time.sleep`` or ``asyncio.sleep`` of any time but 0."""
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and dotted_name(node.func) in {"asyncio.sleep", "time.sleep"}
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    )


def asked_timers(tree: ast.AST) -> list[int]:
    """The lines that call ``when`` of anything, without arguments."""
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "when"
        and not node.args
    )


def test_no_test_sleeps_for_a_fixed_time() -> None:
    found = {
        str(path): lines
        for path in python_files()
        if path.parts[0] == "tests" and path.parts[1] != "simulation" and (lines := sleeps(syntax_tree(path)))
    }
    assert {path: lines for path, lines in found.items() if path not in OWN_SLEEPS} == {}
    assert OWN_SLEEPS.keys() - found.keys() == set(), "excused without need"


def test_a_sleep_is_found() -> None:
    source = (
        "async def f():\n    await asyncio.sleep(0.1)\n    time.sleep(2)\n"
        "    await asyncio.sleep(0)\n    await asyncio.sleep(PAUSE)\n"
    )
    assert sleeps(ast.parse(source)) == [2, 3, 5]


def test_no_code_asks_a_timer_when_it_is_due() -> None:
    """uvloop's answer to ``call_at`` and ``call_later`` is no ``TimerHandle`` if the time is less than half a
    millisecond away."""
    found = {
        str(path): lines
        for path in python_files()
        if path.parts[0] != "tests" and (lines := asked_timers(syntax_tree(path)))
    }
    assert found == {}


def test_a_timer_that_is_asked_is_found() -> None:
    assert asked_timers(ast.parse("timer = 1\nif self._timer.when() < 2:\n    loop.when\n")) == [2]
