"""Bars, as SVG. The same figures give the same bytes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pygal
from pygal.etree import etree
from pygal.style import Style

from .markdown import figure

# It hooks into every import, in a way that Python warns of, for maps that are not drawn here.
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, pygal.PluginImportFixer)]

etree.to_etree()  # whether lxml happens to be installed must not show

OURS, THEIRS = "#2a6f97", "#b8bfc6"
STYLE = Style(
    background="white",
    plot_background="white",
    foreground="#333",
    foreground_strong="#111",
    foreground_subtle="#666",
    guide_stroke_color="#ccc",
    major_guide_stroke_color="#ccc",
    guide_stroke_dasharray="2,4",
    major_guide_stroke_dasharray="2,4",
    opacity="1",
    colors=(OURS, THEIRS),
    value_colors=("#111", "#111"),
    font_family="sans-serif",
    label_font_size=13,
    major_label_font_size=13,
    value_font_size=12,
    legend_font_size=13,
    title_font_size=16,
)
CSS = ("file://style.css", "file://graph.css", "inline:.text-overlay text.value{text-anchor:start}")
"""Those of the library; and figures stand beside their bars, not across the end of them."""
WIDTH = 900
BAR = 21
FRAME = 130
"""Height of what is not a bar."""
ROOM = 1.15
"""For the figure beside the longest bar."""


class Spread(NamedTuple):
    value: float
    low: float
    high: float


def bars(title: str, rows: Mapping[str, Sequence[float]], series: Sequence[str]) -> str:
    """A group of bars for each row, one of each series, with its figure beside it."""
    longest = max(max(values) for values in rows.values()) or 1
    chart = make_chart(title, list(rows), len(series), longest * ROOM, print_values=True)
    for number, name in enumerate(series):
        chart.add(name, [values[number] for values in reversed([*rows.values()])])
    return draw(chart)


def spreads(title: str, rows: Mapping[str, Spread], ours: str | None) -> str:
    """One bar for each row, with a whisker from the lowest to the highest round."""
    longest = max(max(spread) for spread in rows.values()) or 1
    labels = [f"{name}: {figure(spread.value)}" for name, spread in rows.items()]
    chart = make_chart(title, labels, 1, longest * 1.02, show_legend=False)
    chart.add("", [whiskered(spread, OURS if name == ours else THEIRS) for name, spread in reversed([*rows.items()])])
    return draw(chart)


def whiskered(spread: Spread, color: str) -> dict[str, Any]:
    return {"value": spread.value, "ci": {"low": spread.low, "high": spread.high}, "color": color}


def make_chart(title: str, labels: Sequence[str], series: int, end: float, **options: Any) -> Any:
    """The first label is to be at the top, where the library has its last."""
    return pygal.HorizontalBar(
        title=title,
        x_labels=list(reversed(labels)),
        range=(0, end),
        width=WIDTH,
        height=FRAME + BAR * len(labels) * series + 8 * len(labels),
        style=STYLE,
        css=CSS,
        js=(),
        max_scale=8,
        truncate_label=80,
        legend_at_bottom=True,
        print_values_position="top",
        formatter=figure,
        value_formatter="{:,.10g}".format,
        **options,
    )


def draw(chart: Any) -> str:
    chart.uuid = "plot"  # else it is drawn by lot
    chart.add_xml_filter(without_extras)
    return chart.render(is_unicode=True) + "\n"


def without_extras(root: Any) -> Any:
    """The date of the drawing, scripts, and the words of tooltips that only scripts show."""
    for parent in list(root.iter()):
        for child in list(parent):
            if not isinstance(child.tag, str) or child.tag in ("script", "desc"):
                parent.remove(child)
    return root
