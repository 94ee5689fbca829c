"""The dashboard is made from the table of metrics. tests/deploy asks a real Prometheus its queries."""

import make_dashboard
from octavo.metrics.table import BOOKIE_METRICS, GATEWAY_METRICS


def test_the_dashboard_is_what_the_table_of_metrics_says() -> None:
    assert make_dashboard.FILE.read_text() == make_dashboard.text(), "run scripts/artifacts/make_dashboard.py"


def test_every_metric_of_a_bookie_and_a_gateway_has_a_panel_and_panels_do_not_overlap() -> None:
    queries = "\n".join(make_dashboard.queries())
    names = [
        metric.name for part in (BOOKIE_METRICS, GATEWAY_METRICS) for metrics in part.values() for metric in metrics
    ]
    assert [name for name in names if name not in queries] == []
    panels = make_dashboard.dashboard()["panels"]
    places = [(p["gridPos"]["x"] + dx, p["gridPos"]["y"]) for p in panels for dx in range(p["gridPos"]["w"])]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in panels}) == len(panels)
