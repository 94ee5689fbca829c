"""Metrics of bookies and clients: what they are called, how they are counted, and how they leave the process.

Counting must cost the hot path nothing that can be measured. So a value is an ``int`` or a list of ints in a slot of
the object that it is about, counted once for each frame, and becomes text only when it is asked for. Bookie and client
share this package because neither may import the other; it imports nothing of Octavo.

What hands metrics to others is loaded when it is first used: most processes that count export nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.metrics.export import instrument_otel, register

__all__ = ["instrument_otel", "register"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'octavo.metrics' has no attribute {name!r}")
    return getattr(import_module("octavo.metrics.export"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
