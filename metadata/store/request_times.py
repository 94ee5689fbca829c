"""Measures how long the requests to a metadata store take."""

from collections.abc import Awaitable, Callable, Coroutine
from functools import update_wrapper
from typing import Any, Concatenate, Protocol

from octavo.metrics.clock import precise_seconds
from octavo.metrics.histogram import Histogram


class Measured(Protocol):
    """An object that keeps the durations of its requests, by their names."""

    seconds: dict[str, Histogram]


def measured[S: Measured, **P, T](
    method: Callable[Concatenate[S, P], Awaitable[T]],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """Count the durations of an asynchronous method, whether it succeeds or fails, under its name."""
    name = method.__name__

    async def run(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        began_at = precise_seconds()
        try:
            return await method(self, *args, **kwargs)
        finally:
            histogram = self.seconds.get(name)
            if histogram is None:
                histogram = self.seconds[name] = Histogram()
            histogram.observe(precise_seconds() - began_at)

    update_wrapper(run, method)
    return run
