"""Writes docs/metrics.md from the table of metrics and docs/admin-api.md from the table of endpoints.

``make_admin_pages.py [--check]``. With ``--check`` nothing is written, and the exit status is 1 if a page is not up to
date; tests/house checks it, too.
"""

import argparse
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from octavo.bookie.admin.endpoints import ENDPOINTS, Endpoint
from octavo.bookie.admin.fields import Field
from octavo.bookie.admin.http import HttpLimits
from octavo.metrics.histogram import BOUNDS_SECONDS
from octavo.metrics.table import BOOKIE_METRICS, CLIENT_METRICS, GATEWAY_METRICS, Metric

ROOT = Path(__file__).resolve().parents[2]

NOTE = "<!-- Written by scripts/artifacts/make_admin_pages.py. Change the code, then run the script. -->\n\n"

METRICS_HEAD = f"""# Metrics

A bookie answers `GET /metrics` on its administration socket, and at `admin_listen` if that is set
([operations](operations.md#observing-a-bookie)), in Prometheus' text format. A
[gateway](kafka.md#observing-a-gateway) answers it at `--admin-listen`, with the figures of its process under the same
names as a bookie. A client hands its metrics over by
`client.metrics()`, `octavo.metrics.register(client, registry)` or `octavo.metrics.instrument_otel(client, meter)`.

Counters begin at 0 when the process starts. Histograms count durations in {len(BOUNDS_SECONDS)} buckets whose bounds
double, from {BOUNDS_SECONDS[0] * 1e6:.0f} us to {BOUNDS_SECONDS[-1]:.1f} s, and in one above. No metric has a label
for a ledger, a log or a client, whose number has no bound.
"""

CLIENT_TEXT = """The values of a client are those of one `Client`, since it was made. In the dict that
`client.metrics()` returns, a counter or a gauge is a number, a histogram is `{"count", "sum", "buckets"}`, and a metric
with a label maps the label's values to that.
"""

API_HEAD = f"""# Administration interface of a bookie

Every bookie answers HTTP/1.1 on the socket `admin.sock` in its data directory. The socket has the permissions 0600:
the bookie's user and root may use it. The commands `octavo bookie show`, `gc`, `compact`, `read-only`, `scrub` and
`log-level` do so; so can any program that speaks HTTP:

    curl --unix-socket /var/lib/octavo/one/admin.sock http://localhost/api/v1/bookie

If `admin_listen` is set, the bookie also answers over TCP. On a loopback interface it does so without TLS, and clients
are not authenticated, so endpoints marked *guarded* are refused: those that change something, and those that show the
inside of the process. A request must name the bookie by an IP address, `localhost` or the host of `admin_listen` in
its `Host` header, so that no web page can read the answers.

On any other address the bookie answers over TLS only, with its own certificate, and only principals of the cluster
([security](security.md#administration-from-other-hosts)). The client has the certificate of a principal, or sends the
line of its key file as a bearer token. Every role may ask; *guarded* endpoints need the role admin. It needs `tls` and
`auth = "required"`.

    curl --cacert ca.crt --cert admin.crt --key admin.key https://bookie1:3180/api/v1/bookie
    curl --cacert ca.crt --oauth2-bearer "$(cat monitor.key)" https://bookie1:3180/metrics

A request has a head of at most {HttpLimits().head_bytes // 1024} KiB and a body of at most
{HttpLimits().body_bytes // 1024} KiB, and must be complete within {HttpLimits().request_seconds:g} s; each socket
serves {HttpLimits().connections_max} connections. A body is a JSON object with `Content-Type: application/json`.
`GET /openapi.json` describes everything in the form of OpenAPI 3.1.

An error is `{{"error", "message", "retryable"}}`: a word for programs, a sentence for people, and whether the same
request may succeed later.
"""

STATUSES = """| status | meaning |
|---|---|
| 200, 202 | done; 202: a job was started or cancelled |
| 400 | the request or a value in it is not accepted |
| 401 | the client of another host is no principal of the cluster |
| 403 | guarded, and asked over TCP without TLS or without the role admin; or not for this host |
| 404 | no such path, ledger or job |
| 405 | the path does not take this method |
| 408 | the request was not complete in time |
| 409 | not now: such a job runs already, or compaction is paused |
| 413, 431 | the body or the head is too large |
| 415 | the body is not declared to be JSON |
| 503 | the bookie is starting, stopping or broken, or the metadata store does not answer |
"""


def wrapped(text: str) -> str:
    """Prose at 100 columns, paragraph by paragraph."""
    parts = [paragraph.strip("\n") for paragraph in text.split("\n\n")]
    return "".join(
        (part if part.startswith(("#", "    ")) else textwrap.fill(part, 100, break_on_hyphens=False)) + "\n\n"
        for part in parts
        if part
    ).removesuffix("\n")


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def metric_rows(metrics: Sequence[Metric]) -> list[list[str]]:
    """The rows of a table of metrics."""
    return [[f"`{metric.name}`", str(metric.kind), labels_of(metric), metric.help] for metric in metrics]


def labels_of(metric: Metric) -> str:
    """The labels, with their values where these are few."""
    values: Mapping[str, str] = metric.values or {}
    return "; ".join(f"`{label}`: {values[label]}" if label in values else f"`{label}`" for label in metric.labels)


def metrics_page() -> str:
    """docs/metrics.md."""
    parts = [NOTE, wrapped(METRICS_HEAD)]
    for title, metrics in {**BOOKIE_METRICS, **GATEWAY_METRICS}.items():
        parts.append(f"\n## {title}\n\n{table(['metric', 'kind', 'labels', 'meaning'], metric_rows(metrics))}")
    for title, metrics in CLIENT_METRICS.items():
        parts.append(f"\n## {title}\n\n{wrapped(CLIENT_TEXT)}\n")
        parts.append(table(["metric", "kind", "labels", "meaning"], metric_rows(metrics)))
    return "".join(parts)


def fields_of(fields: Sequence[Field], where: str) -> list[list[str]]:
    """The rows of a table of parameters."""
    return [
        [f"`{field.name}`", where, field.kind + ("" if field.required else ", optional"), limits_of(field), field.text]
        for field in fields
    ]


def limits_of(field: Field) -> str:
    """The limits of a value."""
    if field.choices:
        return ", ".join(f"`{choice}`" for choice in field.choices)
    if field.length_max is not None:
        return f"1 to {field.length_max} characters"
    if field.low is not None:
        return f"{field.low} to {field.high}"
    return ""


def endpoint_section(endpoint: Endpoint) -> str:
    """One endpoint."""
    text = f"\n## {endpoint.method} {endpoint.path}\n\n"
    text += wrapped(("*Guarded.* " if endpoint.guarded else "") + endpoint.text)
    rows = fields_of(endpoint.in_path, "path") + fields_of(endpoint.in_query, "query")
    rows += fields_of(endpoint.in_body or (), "body")
    if rows:
        text += "\n" + table(["name", "in", "kind", "values", "meaning"], rows)
    return text


def api_page() -> str:
    """docs/admin-api.md."""
    head = f"{NOTE}{wrapped(API_HEAD)}\n{STATUSES}"
    return head + "".join(map(endpoint_section, ENDPOINTS))


PAGES = {"metrics.md": metrics_page, "admin-api.md": api_page}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not up to date")
    arguments = parser.parse_args()
    stale = []
    for name, make in PAGES.items():
        path, text = ROOT / "docs" / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not arguments.check:
                path.write_text(text, encoding="utf-8")
    if arguments.check and stale:
        print(f"not up to date: {', '.join(stale)}; run scripts/artifacts/make_admin_pages.py", file=sys.stderr)
    return int(arguments.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
