"""Metrics of bookies and clients: what they are called, how they are counted, and how they leave the process.

Counting must cost the hot path nothing that can be measured. So a value is an ``int`` or a list of ints in a slot of
the object that it is about, counted once for each frame, and becomes text only when it is asked for. Bookie and client
share this package because neither may import the other; it imports nothing of Octavo.
"""

from octavo.metrics.export import instrument_otel, register

__all__ = ["instrument_otel", "register"]
