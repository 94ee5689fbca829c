"""Hands the metrics of a client to the libraries with which an application exports its own.

Both libraries are optional: the extra ``metrics`` brings prometheus_client, the extra ``otel`` OpenTelemetry.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from octavo.metrics.histogram import BOUNDS_SECONDS
from octavo.metrics.table import CLIENT_METRICS, Kind, Metric

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as PrometheusMetric


class Value(NamedTuple):
    """One value of a snapshot, with its labels."""

    labels: tuple[tuple[str, str], ...]
    value: Any


class Measured(Protocol):
    """An :class:`octavo.Client`: what has metrics to hand over."""

    def metrics(self) -> Mapping[str, Any]:
        """A snapshot; see :meth:`octavo.Client.metrics`."""


def register(client: Measured, registry: "CollectorRegistry | None" = None) -> Callable[[], None]:
    """Let prometheus_client expose the metrics of a client: they are read at each scrape.

    ``registry``: prometheus_client's own by default. Returns a function that takes the client out again; call it when
    the client is closed. Two clients of one process need two registries, because their metrics have the same names. A
    forked child exposes nothing of its parent's client.

    Examples:
        >>> from prometheus_client import CollectorRegistry
        >>> registry = CollectorRegistry()
        >>> unregister = octavo.metrics.register(client, registry)
        >>> registry.get_sample_value("octavo_client_adds_total", {"outcome": "failed"})
        0
        >>> unregister()

    Raises:
        ModuleNotFoundError: The extra ``metrics`` is not installed.
        ValueError: The registry has the metrics of another client.
    """
    from prometheus_client import REGISTRY  # noqa: PLC0415 - optional
    from prometheus_client.core import (  # noqa: PLC0415 - optional
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.registry import Collector  # noqa: PLC0415 - optional

    families = {
        Kind.COUNTER: CounterMetricFamily,
        Kind.GAUGE: GaugeMetricFamily,
        Kind.HISTOGRAM: HistogramMetricFamily,
    }

    class ClientCollector(Collector):
        """Reads the client at each scrape."""

        def describe(self) -> "Iterable[PrometheusMetric]":
            """The families without values: the registry refuses names that it has already."""
            for metric in client_metrics():
                family: Any = families[metric.kind](metric.name, metric.help, labels=metric.labels)
                yield family

        def collect(self) -> "Iterable[PrometheusMetric]":
            """One family for each metric of the table."""
            if os.getpid() != process:
                return
            snapshot = client.metrics()
            for metric in client_metrics():
                family: Any = families[metric.kind](metric.name, metric.help, labels=metric.labels)
                for labels, value in values_of(metric, snapshot):
                    texts = [text for _, text in labels]
                    if metric.kind is Kind.HISTOGRAM:
                        family.add_metric(texts, buckets=_cumulative(value["buckets"]), sum_value=value["sum"])
                    else:
                        family.add_metric(texts, value)
                yield family

    process = os.getpid()
    chosen = REGISTRY if registry is None else registry
    collector = ClientCollector()
    chosen.register(collector)
    return lambda: chosen.unregister(collector)


def instrument_otel(client: Measured, meter: "Meter") -> None:
    """Let OpenTelemetry observe the metrics of a client whenever it collects.

    Counters and gauges become observable instruments of the same names. OpenTelemetry cannot observe a histogram that
    has been counted elsewhere: of each one the number of durations (``..._count``) and their sum (``..._sum``) are
    observed, which give rates and means. A forked child observes nothing of its parent's client.

    Examples:
        >>> from opentelemetry.metrics import get_meter
        >>> octavo.metrics.instrument_otel(client, get_meter("payments"))

    Raises:
        ModuleNotFoundError: The extra ``otel`` is not installed.
    """
    from opentelemetry.metrics import Observation  # noqa: PLC0415 - optional

    process = os.getpid()

    def observed(metric: Metric, part: str | None) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        def observe(_options: "CallbackOptions") -> "Iterable[Observation]":
            if os.getpid() != process:
                return []
            return [
                Observation(value if part is None else value[part], dict(labels))
                for labels, value in values_of(metric, client.metrics())
            ]

        return observe

    for metric in client_metrics():
        if metric.kind is Kind.HISTOGRAM:
            for part, unit in (("count", "1"), ("sum", "s")):
                meter.create_observable_counter(
                    f"{metric.name}_{part}", [observed(metric, part)], unit, f"{metric.help} ({part})"
                )
        else:
            create = meter.create_observable_counter if metric.kind is Kind.COUNTER else meter.create_observable_gauge
            create(metric.name, [observed(metric, None)], _unit(metric), metric.help)


def client_metrics() -> Sequence[Metric]:
    """The metrics of a client, in the order of the table."""
    return [metric for metrics in CLIENT_METRICS.values() for metric in metrics]


def values_of(metric: Metric, snapshot: Mapping[str, Any]) -> list[Value]:
    """The values of a metric in a snapshot. A metric with a label maps the label's values to values there."""
    value = snapshot[metric.name]
    if not metric.labels:
        return [Value((), value)]
    (label,) = metric.labels
    return [Value(((label, text),), one) for text, one in value.items()]


def _cumulative(counts: Sequence[int]) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip([*map(str, BOUNDS_SECONDS), "+Inf"], counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _unit(metric: Metric) -> str:
    name = metric.name.removesuffix("_total")
    return "By" if name.endswith("_bytes") else "s" if name.endswith("_seconds") else "1"
