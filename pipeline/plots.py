"""Bar charts of what jobs found: as a PNG, or as an HTML page that needs nothing but itself."""

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.protocol.errors import InvalidArgumentError

FORMATS = (".png", ".html")

_BARS_MAX = 30
"""Bars of one chart: more cannot be told apart; the rest is summed up in one."""

_INCHES_WIDE = 9.0
_INCHES_PER_BAR = 0.28


@dataclass(frozen=True, slots=True)
class BarChart:
    """Named values; ``series`` stacks several in one bar."""

    title: str
    labels: Sequence[str]
    series: Mapping[str, Sequence[float]]
    unit: str


def check_plot_path(path: Path) -> Path:
    """The path, if a plot can be written to it. Raises :class:`InvalidArgumentError`."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidArgumentError(f"{path}: a plot is a file whose name ends in {' or '.join(FORMATS)}")
    return path


def write_plot(path: Path, title: str, charts: Sequence[BarChart]) -> None:
    """Draw the charts one below the other. Raises :class:`InvalidArgumentError` for another kind of file,
    :class:`OSError`."""
    check_plot_path(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 - loaded only when something is drawn

    charts = [_shortened(chart) for chart in charts if chart.labels]
    heights = [1.2 + _INCHES_PER_BAR * len(chart.labels) for chart in charts]
    figure = Figure(figsize=(_INCHES_WIDE, sum(heights, 0.8)), layout="constrained")
    if charts:
        axes = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, chart in zip(axes, charts, strict=True):
            left = [0.0] * len(chart.labels)
            positions = list(range(len(chart.labels)))
            for name, values in chart.series.items():
                axis.barh(positions, values, left=left, label=name)
                left = [start + value for start, value in zip(left, values, strict=True)]
            # Set by themselves: labels that are alike must not share a bar.
            axis.set_yticks(positions, [_plain(label) for label in chart.labels], fontsize=8)
            axis.invert_yaxis()
            axis.set_title(_plain(chart.title), fontsize=10, loc="left")
            axis.set_xlabel(_plain(chart.unit), fontsize=8)
            if len(chart.series) > 1:
                axis.legend(fontsize=7)
    if path.suffix.lower() == ".png":
        figure.suptitle(_plain(title))
        figure.savefig(path, dpi=110)
        return
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg", metadata={"Date": None})
    svg = drawing.getvalue()
    page = (
        f"<!doctype html>\n<html><head><meta charset='utf-8'><title>{html.escape(title)}</title></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{svg[svg.index('<svg') :]}</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def _shortened(chart: BarChart) -> BarChart:
    if len(chart.labels) <= _BARS_MAX:
        return chart
    kept = _BARS_MAX - 1
    return BarChart(
        chart.title,
        [*chart.labels[:kept], f"{len(chart.labels) - kept} others"],
        {name: [*values[:kept], sum(values[kept:])] for name, values in chart.series.items()},
        chart.unit,
    )


def _plain(text: str) -> str:
    """Text as it is: matplotlib takes what stands between dollar signs for formulas, and has no control characters."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return (shown if len(shown) <= 60 else shown[:57] + "...").replace("$", r"\$")
