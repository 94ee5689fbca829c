"""Writes the Grafana dashboard deploy/grafana/octavo.json from the table of metrics: ``make_dashboard.py [--check]``.

Every metric of a bookie and a gateway has a panel, in a row for its subject: rates of counters, values of gauges, the
median and the 99th percentile of histograms. Above them a few panels answer the first questions of an operator.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

from octavo.metrics.table import BOOKIE_METRICS, GATEWAY_METRICS, Kind, Metric

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "deploy" / "grafana" / "octavo.json"

CHOSEN = 'job="octavo",instance=~"$instance"'
"""The bookies that the reader of the dashboard has chosen."""

CHOSEN_GATEWAYS = 'job="octavo-gateway",instance=~"$gateway"'
"""The gateways that the reader has chosen."""

EMPTY_WHEN_HEALTHY = ("ALERTS{", 'code!="ok"', "repair_waiting_since", "group_lag_records", "group_behind_seconds")
"""In queries that find nothing while nothing is wrong, or no consumer group has committed an offset."""

INTERVAL = "$__rate_interval"
"""Grafana's own choice: at least four scrapes."""

COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 24, 8, 7


class Query(NamedTuple):
    """One query of a panel. ``legend`` names its series."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One panel. ``unit`` is one of Grafana's."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]


def overview() -> list[Panel]:
    """The panels at which an operator looks first."""

    def rate(name: str) -> str:
        return f"sum by (instance) (rate({name}{{{CHOSEN}}}[{INTERVAL}]))"

    return [
        Panel("Bookies up", "Bookies that Prometheus reaches", "short", (Query('sum(up{job="octavo"})', "up"),)),
        Panel(
            "Entries added", "Per second", "ops", (Query(rate("octavo_bookie_entries_added_total"), "{{instance}}"),)
        ),
        Panel(
            "Gateways up",
            "Gateways that Prometheus reaches",
            "short",
            (Query('sum(up{job="octavo-gateway"})', "up"),),
        ),
        Panel("Entries read", "Per second", "ops", (Query(rate("octavo_bookie_entries_read_total"), "{{instance}}"),)),
        Panel(
            "Errors",
            "Requests that were not answered with success, per second",
            "ops",
            (
                Query(
                    f'sum by (instance, code) (rate(octavo_bookie_requests_total{{{CHOSEN},code!="ok"}}[{INTERVAL}]))',
                    "{{instance}} {{code}}",
                ),
            ),
        ),
        Panel(
            "Disk space left",
            "Share of each disk that is free",
            "percentunit",
            (
                Query(
                    f"octavo_bookie_disk_free_bytes{{{CHOSEN}}} / octavo_bookie_disk_total_bytes{{{CHOSEN}}}",
                    "{{instance}} {{path}}",
                ),
            ),
        ),
        Panel(
            "Firing alerts",
            "Alerts of octavo.rules.yml that fire now",
            "short",
            (Query('sum by (alertname) (ALERTS{job=~"octavo.*",alertstate="firing"})', "{{alertname}}"),),
        ),
    ]


def panel_of(metric: Metric) -> Panel:
    """The panel of a metric of the table."""
    chosen = CHOSEN_GATEWAYS if metric.name.startswith("octavo_gateway_") else CHOSEN
    series = " ".join(["{{instance}}", *(f"{{{{{label}}}}}" for label in metric.labels)])
    by = ", ".join(["instance", *metric.labels])
    title = metric.name.removeprefix("octavo_bookie_").removeprefix("octavo_").removesuffix("_total").replace("_", " ")
    match metric.kind:
        case Kind.COUNTER:
            unit = "Bps" if metric.name.endswith("_bytes_total") else "ops"
            query = f"sum by ({by}) (rate({metric.name}{{{chosen}}}[{INTERVAL}]))"
            return Panel(f"{title} per second", metric.help, unit, (Query(query, series),))
        case Kind.GAUGE:
            units = {"_bytes": "bytes", "_seconds": "s"}
            unit = next((unit for suffix, unit in units.items() if metric.name.endswith(suffix)), "short")
            query = f"{metric.name}{{{chosen}}}"
            match metric.name.removeprefix("octavo_bookie_").removeprefix("octavo_gateway_"):
                case "start_time_seconds":
                    unit, query = "dateTimeAsIso", f"{query} * 1000"
                case "certificate_expiry_seconds":  # shown as the time left, which is none without a certificate
                    title, query = "certificate expires in", f"({query} > 0) - time()"
                case "group_lag_records":  # a series for each partition would be too many to look at
                    series = "{{group}} {{topic}}"
                    query = f"topk(20, sum by (group, topic) ({query}))"
                case "repair_waiting_since_seconds":
                    title, query = "repair waiting time", f"time() - ({query} > 0)"
            return Panel(title, metric.help, unit, (Query(query, series),))
        case Kind.HISTOGRAM:
            buckets = f"sum by ({by}, le) (rate({metric.name}_bucket{{{chosen}}}[{INTERVAL}]))"
            queries = [
                Query(f"histogram_quantile({share}, {buckets})", f"{series} {name}")
                for share, name in [(0.5, "p50"), (0.99, "p99")]
            ]
            return Panel(title, metric.help, "s", tuple(queries))


def panel_as_json(number: int, panel: Panel, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": x, "y": y, "w": PANEL_WIDTH, "h": PANEL_HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": query.expression, "legendFormat": query.legend}
            for place, query in enumerate(panel.queries)
        ],
    }


def instances(name: str, label: str, job: str) -> dict[str, Any]:
    """A variable of the dashboard: the processes of a job, of which the reader chooses."""
    return {
        "name": name,
        "type": "query",
        "label": label,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": f'label_values(up{{job="{job}"}}, instance)',
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def dashboard() -> dict[str, Any]:
    """The whole dashboard, as Grafana imports it."""
    rows = {"Overview": overview()}
    subjects = {**BOOKIE_METRICS, **GATEWAY_METRICS}
    rows |= {subject: [panel_of(metric) for metric in metrics] for subject, metrics in subjects.items()}
    panels: list[dict[str, Any]] = []
    y = 0
    for subject, content in rows.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": subject,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
            }
        )
        y += 1
        for place, panel in enumerate(content):
            x = place * PANEL_WIDTH % COLUMNS
            panels.append(panel_as_json(len(panels) + 1, panel, x, y + place * PANEL_WIDTH // COLUMNS * PANEL_HEIGHT))
        y += -(-len(content) * PANEL_WIDTH // COLUMNS) * PANEL_HEIGHT
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        instances("instance", "Bookie", "octavo"),
        instances("gateway", "Gateway", "octavo-gateway"),
    ]
    return {
        "title": "Octavo",
        "uid": "octavo",
        "tags": ["octavo"],
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"


def queries() -> list[str]:
    """Every query, as Prometheus answers it: for all processes, and over an interval of one minute."""
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    return [query.replace("$instance", ".*").replace("$gateway", ".*").replace(INTERVAL, "1m") for query in found]


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the Grafana dashboard from the table of metrics.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is not up to date")
    arguments = parser.parse_args()
    if arguments.check:
        return 0 if FILE.exists() and FILE.read_text(encoding="utf-8") == text() else 1
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
    print(FILE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
