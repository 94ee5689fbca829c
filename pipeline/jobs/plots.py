"""Charts of job results, as PNG, SVG or a self-contained HTML page."""

import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.pipeline.jobs.timelines import Step, Timeline
from octavo.protocol.errors import InvalidArgumentError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".html")

_BARS_MAX = 30
"""Largest number of bars in one chart; the remaining values are added up in the last bar."""

_INCHES_WIDE = 9.0
_INCHES_PER_BAR = 0.28
_TIME_CHART_INCHES = 2.6

_TIME_LABELS_MAX = 9
"""Largest number of labels below a time chart; more would overlap."""

_TIME_FORMS = {
    Step.MINUTE: "%H:%M\n%Y-%m-%d",
    Step.HOUR: "%H:%M\n%Y-%m-%d",
    Step.DAY: "%m-%d\n%Y",
    Step.MONTH: "%m\n%Y",
    Step.YEAR: "%Y",
}


@dataclass(frozen=True, slots=True)
class BarChart:
    """Named values; ``series`` stacks several in one bar."""

    title: str
    labels: Sequence[str]
    series: Mapping[str, Sequence[float]]
    unit: str


@dataclass(frozen=True, slots=True)
class TimeChart:
    """Values over time, as stacked columns."""

    title: str
    timeline: Timeline
    unit: str
    legend: str = ""
    """What the series are."""


type Chart = BarChart | TimeChart


def check_plot_path(path: Path) -> Path:
    """The path, if its suffix is that of a plot. Raises :class:`InvalidArgumentError`."""
    if path.suffix.lower() not in FORMATS:
        raise InvalidArgumentError(f"{path}: the name of a plot must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    return path


def write_plot(path: Path, title: str, charts: Sequence[Chart]) -> None:
    """Draw the charts one below the other. Raises :class:`InvalidArgumentError` for another kind of file, and
    :class:`OSError`."""
    check_plot_path(path)
    from matplotlib.figure import Figure  # noqa: PLC0415 - loaded only when something is drawn

    shown = [_shortened(chart) if isinstance(chart, BarChart) else chart for chart in charts]
    shown = [chart for chart in shown if (chart.labels if isinstance(chart, BarChart) else chart.timeline.bins)]
    heights = [_height(chart) for chart in shown]
    figure = Figure(figsize=(_INCHES_WIDE, sum(heights, 0.8)), layout="constrained")
    if shown:
        axes = figure.subplots(len(shown), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, chart in zip(axes, shown, strict=True):
            if isinstance(chart, BarChart):
                _draw_bars(axis, chart)
            else:
                _draw_times(axis, chart)
            axis.set_title(_plain(chart.title), fontsize=10, loc="left")
    if path.suffix.lower() == ".html":
        path.write_text(_page(title, _svg(figure)), encoding="utf-8")
        return
    figure.suptitle(_plain(title))
    if path.suffix.lower() == ".svg":
        path.write_text(_svg(figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=110)


def _height(chart: Chart) -> float:
    return 1.2 + _INCHES_PER_BAR * len(chart.labels) if isinstance(chart, BarChart) else _TIME_CHART_INCHES


def _draw_bars(axis: "Axes", chart: BarChart) -> None:
    left = [0.0] * len(chart.labels)
    positions = list(range(len(chart.labels)))
    for name, values in chart.series.items():
        axis.barh(positions, values, left=left, label=name)
        left = [start + value for start, value in zip(left, values, strict=True)]
    # Positions and labels are set separately, because equal labels must not share a bar.
    axis.set_yticks(positions, [_plain(label) for label in chart.labels], fontsize=8)
    axis.invert_yaxis()
    axis.set_xlabel(_plain(chart.unit), fontsize=8)
    _scale(axis.xaxis)
    if len(chart.series) > 1:
        _legend(axis, "", is_upright=False)


def _draw_times(axis: "Axes", chart: TimeChart) -> None:
    bins = chart.timeline.bins
    bottom = [0.0] * len(bins)
    for name, values in chart.timeline.series.items():
        # Bars without height would make most of the size of a drawing.
        shown = [position for position, value in enumerate(values) if value]
        heights, starts = [values[position] for position in shown], [bottom[position] for position in shown]
        axis.bar(shown, heights, bottom=starts, width=1.0, label=_plain(name))
        bottom = [start + value for start, value in zip(bottom, values, strict=True)]
    labelled = _labelled(chart.timeline)
    axis.set_xticks(list(labelled), list(labelled.values()), fontsize=7)
    gaps = [position for position, begin in enumerate(bins) if begin is None]
    for position in gaps:
        axis.axvspan(position - 0.5, position + 0.5, color="0.9", linewidth=0)
        axis.axvline(position, color="0.5", linestyle=":", linewidth=1)
        axis.text(
            position, 0.97, gap_text(bins[position - 1], bins[position + 1]), transform=axis.get_xaxis_transform(),
            rotation=90, fontsize=6, ha="right", va="top", color="0.3",
        )  # fmt: skip
    axis.set_xlim(-1, len(bins))
    note = f"; dotted: {gaps_in_words(len(gaps))}" if gaps else ""
    axis.set_xlabel(f"time, one bar for each {chart.timeline.step}{note}", fontsize=8)
    axis.set_ylabel(_plain(f"{chart.unit} per {chart.timeline.step}"), fontsize=8)
    _scale(axis.yaxis)
    _legend(axis, chart.legend, is_upright=True)


def gap_text(before: datetime | None, after: datetime | None) -> str:
    """The length of a gap in words, in the largest unit of which it has two."""
    assert before is not None, "a gap stands between two bins"
    assert after is not None, "a gap stands between two bins"
    seconds = (after - before).total_seconds()
    for unit, length in (("years", 365.25 * 86400), ("months", 30.44 * 86400), ("days", 86400), ("hours", 3600)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 60:.0f} minutes"


def gaps_in_words(count: int) -> str:
    """That nothing was counted for a time that is left out."""
    return "a long time without any, left out" if count == 1 else f"{count} long times without any, left out"


def _scale(axis: "Axis") -> None:
    """Round numbers with separators, and a line for each across the chart."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415 - loaded only when something is drawn

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axis.set_tick_params(labelsize=7)
    axis.axes.set_axisbelow(True)
    axis.grid(visible=True, color="0.85", linewidth=0.5)


def _legend(axis: "Axes", title: str, *, is_upright: bool) -> None:
    """Beside the chart, where it hides nothing; in the order in which the parts of a bar stand."""
    handles, labels = axis.get_legend_handles_labels()
    if is_upright:
        handles, labels = handles[::-1], labels[::-1]
    axis.legend(
        handles, labels, title=_plain(title) or None, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7,
        title_fontsize=7, frameon=False,
    )  # fmt: skip


def _labelled(timeline: Timeline) -> dict[int, str]:
    """Position of each labelled bin -> its label: the first bin after each gap, and others at sufficient distance."""
    apart = max(1, -(-len(timeline.bins) // _TIME_LABELS_MAX))
    labelled: dict[int, str] = {}
    last = -apart
    for position, begin in enumerate(timeline.bins):
        after_gap = position == 0 or timeline.bins[position - 1] is None
        if begin is None or (position - last < apart and not (after_gap and position - last > apart // 2)):
            continue
        labelled[position] = begin.strftime(_TIME_FORMS[timeline.step])
        last = position
    return labelled


def _svg(figure: "Figure") -> str:
    import matplotlib as mpl  # noqa: PLC0415 - loaded only when something is drawn

    drawing = io.StringIO()
    # Text stays text, and nothing differs from one run to the next.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "octavo"}):
        figure.savefig(drawing, format="svg", metadata={"Date": None})
    return drawing.getvalue()


def _page(title: str, svg: str) -> str:
    return (
        f"<!doctype html>\n<html><head><meta charset='utf-8'><title>{html.escape(title)}</title></head>\n"
        f"<body><h1>{html.escape(title)}</h1>\n{svg[svg.index('<svg') :]}</body></html>\n"
    )


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
    """The text without what matplotlib would interpret: dollar signs (formulas) and control characters."""
    shown = "".join(character if character.isprintable() else "?" for character in text)
    return (shown if len(shown) <= 60 else shown[:57] + "...").replace("$", r"\$")
