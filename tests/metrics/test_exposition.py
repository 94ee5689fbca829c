"""The text that Prometheus scrapes, read by Prometheus' own parser; and the rules that the names of metrics keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.metrics import table
from octavo.metrics.exposition import Sample, expose
from octavo.metrics.histogram import BOUNDS_SECONDS, Histogram
from octavo.metrics.table import BOOKIE_METRICS, CLIENT_METRICS, GATEWAY_METRICS, Kind, Metric
from prometheus_client.parser import text_string_to_metric_families

PARTS = BOOKIE_METRICS, GATEWAY_METRICS, CLIENT_METRICS
METRICS = [metric for part in PARTS for metrics in part.values() for metric in metrics]


def read(text: bytes) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples of an exposition: name -> values of the labels -> value."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@given(st.text(st.characters(exclude_categories=["Cs"])), st.floats(allow_nan=False) | st.integers(0, 2**63))
def test_any_label_and_any_number_arrive_as_they_were(label: str, value: float) -> None:
    text = expose([Sample(table.DISK_FREE_BYTES, value, (label, "data"))])
    assert read(text) == {table.DISK_FREE_BYTES.name: {(label, "data"): value}}


def test_a_path_that_is_no_unicode_spoils_no_scrape() -> None:
    text = expose([Sample(table.DISK_FREE_BYTES, 1, ("/data\udcff", "data"))])
    assert list(read(text)[table.DISK_FREE_BYTES.name].values()) == [1]


@given(st.lists(st.floats(min_value=0, max_value=1000), max_size=20))
def test_the_buckets_of_a_histogram_are_cumulative_and_end_with_all(durations: list[float]) -> None:
    histogram = Histogram()
    for seconds in durations:
        histogram.observe(seconds)
    found = read(expose([Sample(table.JOURNAL_SYNC_SECONDS, histogram)]))
    name = table.JOURNAL_SYNC_SECONDS.name
    buckets = list(found[f"{name}_bucket"].items())
    assert [float(bound) for (bound,), _ in buckets] == pytest.approx([*BOUNDS_SECONDS, float("inf")])
    counts = [count for _, count in buckets]
    assert counts == sorted(counts)
    assert counts[-1] == found[f"{name}_count"][()] == len(durations)
    assert found[f"{name}_sum"][()] == pytest.approx(sum(durations))


def test_samples_of_one_metric_stand_together_whatever_their_order() -> None:
    text = expose(
        [Sample(table.FENCES, 1), Sample(table.REGISTERED, 1), Sample(table.DAMAGE, 1, ("entry",)),
         Sample(table.LEDGERS, 1), Sample(table.DAMAGE, 2, ("index",))]
    ).decode()  # fmt: skip
    assert text.count(f"# TYPE {table.DAMAGE.name}") == 1
    assert text.index('kind="index"') < text.index(f"# HELP {table.LEDGERS.name}")


def test_a_sample_that_does_not_fit_its_metric_is_a_defect() -> None:
    with pytest.raises(AssertionError):
        expose([Sample(table.DAMAGE, 1)])
    with pytest.raises(AssertionError):
        expose([Sample(table.FENCES, Histogram())])


# --- the table ---------------------------------------------------------------------------------------------------


def test_every_metric_that_is_defined_stands_in_the_table_once() -> None:
    defined = [value for value in vars(table).values() if isinstance(value, Metric)]
    assert sorted(metric.name for metric in defined) == sorted(metric.name for metric in METRICS)
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_name_tells_kind_and_unit_as_prometheus_wants(metric: Metric) -> None:
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.kind is not Kind.HISTOGRAM or metric.name.endswith("_seconds")
    assert not {"ms", "us", "msec", "kb", "mb", "count", "sum", "bucket"} & set(metric.name.split("_"))
    assert not metric.help.endswith("."), "one sentence without a full stop"
    assert metric.help[0].isupper() or metric.help[0].isdigit()


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_no_label_has_values_without_bound(metric: Metric) -> None:
    assert not {"ledger", "log", "client", "peer", "principal", "le", "quantile"} & set(metric.labels)
    assert set(metric.values or ()) <= set(metric.labels)
