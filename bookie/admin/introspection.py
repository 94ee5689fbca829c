"""A look at the running process of the bookie: the stacks of its tasks and threads, and a sampling profile."""

import asyncio
import sys
import threading
import time
import traceback
from collections import Counter
from types import FrameType
from typing import Any

SAMPLES_PER_SECOND = 100
"""Enough to see what takes a tenth of the time; taking one costs well under a millisecond."""

_FRAMES_MAX = 40

_PROFILED_MAX = 200
"""Stacks in a profile, the most frequent first."""


def stacks() -> dict[str, Any]:
    """Every task with the line on which it waits, and every thread with its stack, innermost call last."""
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    frames = sys._current_frames()
    return {
        "tasks": [{"name": task.get_name(), "stack": _task_stack(task)} for task in tasks],
        "threads": [
            {"name": thread.name, "stack": _lines(frames.get(thread.ident or 0))} for thread in threading.enumerate()
        ],
    }


async def profile(seconds: float) -> dict[str, Any]:
    """Where the thread of the event loop spent its time: the stacks that were met, with their number, the most frequent
    first. Functions of a stack are separated by semicolons, the outermost first, as flame graphs want it."""
    watched = threading.get_ident()
    counts: Counter[str] = Counter()
    stop = threading.Event()

    def sample() -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not stop.wait(1 / SAMPLES_PER_SECOND):
            counts[_folded(sys._current_frames().get(watched))] += 1

    try:
        await asyncio.to_thread(sample)
    finally:
        stop.set()
    return {
        "seconds": seconds,
        "samples": counts.total(),
        "stacks": [{"stack": stack, "samples": count} for stack, count in counts.most_common(_PROFILED_MAX)],
    }


def _task_stack(task: "asyncio.Task[Any]") -> list[str]:
    """The chain of awaited coroutines; ``Task.get_stack`` shows only the outermost one of a waiting task."""
    found: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(found) < _FRAMES_MAX:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        found.append(_line(frame, frame.f_lineno))
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return found


def _lines(frame: FrameType | None) -> list[str]:
    if frame is None:
        return []
    return [_line(inner, number) for inner, number in reversed(list(traceback.walk_stack(frame))[:_FRAMES_MAX])]


def _line(frame: FrameType, number: int | None) -> str:
    return f"{frame.f_code.co_filename}:{number} {frame.f_code.co_qualname}"


def _folded(frame: FrameType | None) -> str:
    names: list[str] = []
    while frame is not None and len(names) < _FRAMES_MAX:
        module = str(frame.f_globals.get("__name__", "?"))
        names.append(f"{module}.{frame.f_code.co_qualname}".replace(";", ":"))
        frame = frame.f_back
    return ";".join(reversed(names)) or "(idle)"
