"""The report's pictures, as SVG that takes its colours from the page around it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_LABEL, _PLOT, _RIGHT, _BAR, _HEAD = 390, 520, 70, 30, 30
_TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
_MAX_LABEL = 58


def pair_ratios(row: Mapping[str, Any]) -> list[float]:
    """Return ours over the baseline's, trial by trial, turned so that above 1 is better for us."""
    if not row.get("baseline_trials"):
        return []
    pairs = zip(row["trials"], row["baseline_trials"], strict=True)
    return [ours / theirs if row["higher_is_better"] else theirs / ours for ours, theirs in pairs]


def ratio_chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw one bar a row from 1× to its ratio, on a logarithmic scale, and a dot for each pair of trials."""
    shown = [(row, pair_ratios(row)) for row in rows if row.get("ratio")]
    values = [value for _, ratios in shown for value in ratios] + [1.0]
    low, high = _reach(min(values), max(values))
    width, height = _LABEL + _PLOT + _RIGHT, _HEAD + _BAR * len(shown) + 8

    def x(value: float) -> float:
        return _LABEL + _PLOT * (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))

    parts = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="ratio to the baseline">']
    for tick in _TICKS:
        if low <= tick <= high:
            kind = "one" if tick == 1 else "grid"
            parts.append(f'<line class="{kind}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{_HEAD - 6}" y2="{height}"/>')
            parts.append(f'<text class="dim middle" x="{x(tick):.1f}" y="14">{tick:g}×</text>')
    for at, (row, ratios) in enumerate(shown):
        parts.append(_ratio_bar(row, ratios, _HEAD + _BAR * at, x))
    return "".join([*parts, "</svg>"])


def _ratio_bar(row: Mapping[str, Any], ratios: Sequence[float], y: float, x: Any) -> str:
    """Draw one row: its name, its bar, its trials, its figure."""
    ratio = float(row["ratio"])
    left, right = sorted((x(1.0), x(ratio)))
    name = row["case"] if len(row["case"]) <= _MAX_LABEL else row["case"][: _MAX_LABEL - 1] + "…"
    kind = "bar" if ratio >= 1 else "bar worse"
    dots = "".join(f'<circle class="trial" cx="{x(value):.1f}" cy="{y + 11}" r="2.6"/>' for value in ratios)
    return (
        f"<g><title>{escape(row['case'])}: {ratio:.3g}×</title>"
        f'<text class="end" x="{_LABEL - 12}" y="{y + 15}">{escape(name)}</text>'
        f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" width="{max(right - left, 1.5):.1f}" height="16" rx="2"/>'
        f'{dots}<text class="strong" x="{max(right, *map(x, ratios)) + 9:.1f}" y="{y + 15}">{_times(ratio)}</text></g>'
    )


def _reach(low: float, high: float) -> tuple[float, float]:
    """Return the ends of the scale: ticks around the values, never nearer than half and double."""
    left = max((tick for tick in _TICKS if tick <= min(low, 0.7)), default=_TICKS[0])
    right = min((tick for tick in _TICKS if tick >= max(high, 1.5)), default=max(high, _TICKS[-1]))
    return min(left, low), right


def _times(ratio: float) -> str:
    """Return a ratio with the digits that matter."""
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.1f}×" if ratio >= 10 else f"{ratio:.2f}×"


def width_chart(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw tokens per second over the number of rows, ours and the baseline's."""
    points = sorted((int(row["facts"]["rows"]), float(row["ours"]), row.get("baseline")) for row in rows)
    width, height, left, bottom, top = 340, 210, 46, 26, 30
    most = max(max(ours, theirs or 0.0) for _, ours, theirs in points) * 1.08
    first, last = math.log2(points[0][0]), math.log2(points[-1][0])

    def place(num: int, value: float) -> tuple[float, float]:
        along = (math.log2(num) - first) / ((last - first) or 1.0)
        return left + along * (width - left - 16), height - bottom - value / most * (height - bottom - top)

    parts = [f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{escape(title)}">']
    parts.append(f'<text class="strong" x="0" y="14">{escape(title)}</text>')
    for share in (0.0, 0.5, 1.0):
        value = most / 1.08 * share
        _, y = place(points[0][0], value)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - 8}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="dim end" x="{left - 8}" y="{y + 4:.1f}">{value:,.0f}</text>')
    for num, _, _ in points:
        parts.append(f'<text class="dim middle" x="{place(num, 0)[0]:.1f}" y="{height - 6}">{num}</text>')
    theirs = [(num, float(value)) for num, _, value in points if value is not None]
    for kind, series in (("theirs", theirs), ("ours", [(num, value) for num, value, _ in points])):
        spots = [place(num, value) for num, value in series]
        if spots:
            parts.append(f'<path class="line {kind}" d="{_path(spots)}"/>')
        parts += [f'<circle class="dot {kind}" cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>' for x, y in spots]
    return "".join([*parts, "</svg>"])


def spark(ours: Sequence[float], theirs: Sequence[float] | None) -> str:
    """Draw the trials of both sides in the order they were taken: a slope is drift, a jump is noise."""
    width, height = 74, 22
    values = [*ours, *(theirs or ())]
    most = max(values) or 1.0

    def line(kind: str, series: Sequence[float]) -> str:
        step = (width - 4) / max(len(series) - 1, 1)
        spots = [(2 + at * step, height - 2 - value / most * (height - 4)) for at, value in enumerate(series)]
        return f'<path class="spark {kind}" d="{_path(spots)}"/>'

    other = line("theirs", theirs) if theirs else ""
    head = f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="trials">'
    return f"{head}{other}{line('ours', ours)}</svg>"


def _path(spots: Sequence[tuple[float, float]]) -> str:
    """Return a line through points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
