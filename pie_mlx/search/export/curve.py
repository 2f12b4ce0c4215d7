"""The page curve as inline SVG: held pages over time, shared and private apart, with prunes marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from pie_mlx.search.export.story import Reading, Story

_WIDTH, _HEIGHT = 920, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 12, 28
_MAX_POINTS = 600


def page_curve(story: Story) -> str:
    """Return the curve, or an empty text where the pool was read less than twice."""
    readings = _thin(story.readings)
    if len(readings) < 2:
        return ""
    first, last = readings[0].t_ns, max(readings[-1].t_ns, readings[0].t_ns + 1)
    top = max(max(r.pool.held + r.pool.cached, r.pool.viewed) for r in readings) or 1

    def x(t_ns: int) -> float:
        return _LEFT + (t_ns - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(pages: float) -> float:
        return _TOP + (1 - pages / top) * (_HEIGHT - _TOP - _BOTTOM)

    def step_line(count: Callable[[Reading], int]) -> str:
        points = [f"{x(readings[0].t_ns):.1f},{y(count(readings[0])):.1f}"]
        for before, here in pairwise(readings):
            points += [f"{x(here.t_ns):.1f},{y(count(before)):.1f}", f"{x(here.t_ns):.1f},{y(count(here)):.1f}"]
        return " ".join(points)

    name = f"Pages over time, at most {max(r.pool.held for r in readings)} held"
    floor = f"{x(last):.1f},{y(0):.1f} {x(first):.1f},{y(0):.1f}"
    return "\n".join(
        [
            f'<svg class="curve" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">',
            *_axes(top, y, (last - first) / 1e9),
            f'<polygon class="private" points="{step_line(lambda r: r.pool.held)} {floor}"/>',
            f'<polygon class="shared" points="{step_line(lambda r: r.pool.shared)} {floor}"/>',
            f'<polyline class="viewed" points="{step_line(lambda r: r.pool.viewed)}"/>',
            *_prune_marks(story, x, first, last),
            "</svg>",
        ]
    )


def _thin(readings: Sequence[Reading]) -> list[Reading]:
    """Keep at most some hundred readings: of each stretch, the one that holds most, so that no peak is lost."""
    if len(readings) <= _MAX_POINTS:
        return list(readings)
    inner = readings[1:-1]
    size = -(-len(inner) // (_MAX_POINTS - 2))
    kept = [max(inner[at : at + size], key=lambda r: r.pool.held) for at in range(0, len(inner), size)]
    return [readings[0], *kept, readings[-1]]


def _axes(top: int, y: Callable[[float], float], seconds: float) -> list[str]:
    """Draw horizontal lines at round counts, and the time below."""
    step = next(s for s in _round_steps() if top / s <= 4.5)
    lines = []
    for count in range(0, top + 1, step):
        at = y(count)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{count}</text>')
    for part in range(5):
        at = _LEFT + part / 4 * (_WIDTH - _LEFT - _RIGHT)
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        lines.append(f'<text x="{at:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{seconds * part / 4:.3g} s</text>')
    return lines


def _round_steps() -> list[int]:
    """Return 1, 2, 5, 10, 20, 50 and so on."""
    return [digit * 10**power for power in range(10) for digit in (1, 2, 5)]


def _prune_marks(story: Story, x: Callable[[int], float], first: int, last: int) -> list[str]:
    """Mark when pruning gave pages back."""
    bottom = _HEIGHT - _BOTTOM
    marks = []
    for event in story.prunes[:_MAX_POINTS]:
        if event.freed_pages and first <= event.t_ns <= last:
            at = x(event.t_ns)
            marks.append(
                f'<path class="prune" d="M{at:.1f} {bottom - 7}l4 7h-8z">'
                f"<title>{event.node} pruned: {event.freed_pages} pages freed</title></path>"
            )
    return marks
