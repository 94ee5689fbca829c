"""Plots say what they show: series, scales, and where time was left out."""

import re
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from octavo.pipeline.jobs.plots import BarChart, Chart, TimeChart, gap_text, write_plot
from octavo.pipeline.jobs.timelines import Step, timeline

BEGIN = datetime(2026, 1, 31, 12)  # noqa: DTZ001 - times in logs have no zone


def texts(path: Path, *charts: Chart) -> list[str]:
    write_plot(path, "Lines", charts)
    return re.findall(r"<text [^>]*>(.*?)</text>", path.read_text(encoding="utf-8"), re.DOTALL)


def test_a_time_chart_names_its_series_and_marks_gaps(tmp_path: Path) -> None:
    counts = {("INFO", BEGIN): 1500, ("WARN", BEGIN): 10, ("INFO", BEGIN + timedelta(days=5)): 20}
    chart = TimeChart("Lines by minute", timeline(counts, Step.MINUTE, series_max=8), "lines", "level")
    shown = texts(tmp_path / "plot.svg", chart)
    assert {"level", "INFO", "WARN", "lines per minute", "5 days", "1,500"} <= {*shown}
    assert "time, one bar for each minute; dotted: a long time without any, left out" in shown
    assert shown.index("WARN") < shown.index("INFO"), "as the parts of a bar stand"
    without = TimeChart("Lines", timeline({("INFO", BEGIN): 1}, Step.MINUTE, series_max=8), "lines", "level")
    assert "time, one bar for each minute" in texts(tmp_path / "plot.svg", without)


def test_a_bar_chart_has_a_legend_if_a_bar_has_parts(tmp_path: Path) -> None:
    one = BarChart("Bytes", ["a", "b"], {"entries": [1, 2]}, "bytes")
    assert "entries" not in texts(tmp_path / "plot.svg", one)
    two = BarChart("Bytes", ["a", "b"], {"entries": [1, 2], "index": [3, 4_000_000]}, "bytes")
    shown = texts(tmp_path / "plot.svg", two)
    assert shown.index("entries") < shown.index("index")
    assert "4,000,000" in shown


@pytest.mark.parametrize(
    ("length", "words"),
    [
        (timedelta(minutes=13), "13 minutes"), (timedelta(hours=2), "2 hours"), (timedelta(hours=47), "47 hours"),
        (timedelta(days=3), "3 days"), (timedelta(days=300), "10 months"), (timedelta(days=1000), "3 years"),
    ],
)  # fmt: skip
def test_a_gap_has_its_length_in_words(length: timedelta, words: str) -> None:
    assert gap_text(BEGIN, BEGIN + length) == words
