"""Counts of the requests that a gateway answers. Pure."""

from collections import Counter

from octavo.gateway.wire.apis import Api
from octavo.gateway.wire.outcome import Outcome
from octavo.metrics.histogram import Histogram

MALFORMED = "malformed"


class Counts:
    """See the module."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[Api, str]] = Counter()
        """By kind and result."""
        self.seconds: dict[Api, Histogram] = {}
        """From a whole request until its answer is made."""
        self.received_bytes = 0
        self.sent_bytes = 0
        self.batches = 0
        self.records = 0
        self.batch_bytes = 0
        self.fetched_bytes = 0

    def answered(self, api: Api, outcome: Outcome, seconds: float, *, received: int, sent: int) -> None:
        """A request of `received` bytes has its answer."""
        self.requests[api, outcome.name] += 1
        if api not in self.seconds:
            self.seconds[api] = Histogram()
        self.seconds[api].observe(seconds)
        self.received_bytes += received
        self.sent_bytes += sent
        self.batches += outcome.batches
        self.records += outcome.records
        self.batch_bytes += outcome.batch_bytes
        self.fetched_bytes += outcome.fetched_bytes

    def malformed(self, api: Api, *, received: int) -> None:
        """A request is not of the form that its version has; its connection is closed."""
        self.requests[api, MALFORMED] += 1
        self.received_bytes += received
