"""The text form of metrics that Prometheus scrapes (exposition format 0.0.4). Pure."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from octavo.metrics.histogram import BOUNDS_SECONDS, Histogram
from octavo.metrics.table import Kind, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = [*(f"{bound:.10g}" for bound in BOUNDS_SECONDS), "+Inf"]


class Sample(NamedTuple):
    """One value of a metric. ``labels`` are the values of the metric's labels, in their order."""

    metric: Metric
    value: float | Histogram
    labels: tuple[str, ...] = ()


def expose(samples: Iterable[Sample]) -> bytes:
    """The samples as text. All samples of a metric stand together, in the order in which the metrics came first.

    A sample whose labels are not those of its metric, or whose value is not of its kind, is a defect of the caller.
    """
    families: dict[Metric, list[Sample]] = {}
    for sample in samples:
        families.setdefault(sample.metric, []).append(sample)
    lines: list[str] = []
    for metric, members in families.items():
        lines.append(f"# HELP {metric.name} {_escaped_help(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in members:
            assert len(sample.labels) == len(metric.labels), f"{metric.name} has the labels {metric.labels}"
            assert isinstance(sample.value, Histogram) == (metric.kind is Kind.HISTOGRAM), metric.name
            lines += _lines(sample)
    lines.append("")
    return "\n".join(lines).encode("utf-8", "backslashreplace")


def _lines(sample: Sample) -> Iterator[str]:
    heads, value = _heads(sample.metric, sample.labels), sample.value
    if not isinstance(value, Histogram):
        yield f"{heads[0]} {_number(value)}"
        return
    total = 0
    for head, count in zip(heads, value.counts, strict=False):
        total += count
        yield f"{head} {total}"
    yield f"{heads[-2]} {_number(value.sum_seconds)}"
    yield f"{heads[-1]} {total}"


@lru_cache(maxsize=1024)
def _heads(metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of a sample without their values, which are the same at each scrape. A histogram has one for each
    bucket, and then its sum and its count."""
    pairs = [f'{name}="{_escaped(text)}"' for name, text in zip(metric.labels, labels, strict=True)]
    if metric.kind is not Kind.HISTOGRAM:
        return (f"{metric.name}{_braced(pairs)}",)
    buckets = [f"{metric.name}_bucket{_braced([*pairs, f'le="{bound}"'])}" for bound in _BOUNDS]
    return (*buckets, f"{metric.name}_sum{_braced(pairs)}", f"{metric.name}_count{_braced(pairs)}")


def _braced(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # True is 1
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - only NaN differs from itself
        return {"inf": "+Inf", "-inf": "-Inf"}.get(str(value), "NaN")
    return repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _escaped_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")
