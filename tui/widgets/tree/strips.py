"""Below the tree: one line a depth with a glyph a node, the pool as a gauge with its curve, and the log."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from pie_mlx.search.tree import Node, PoolCounts
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.logbook import line_of
from pie_mlx.tui.looks import DULL, LOOKS, value_text
from pie_mlx.tui.story import RunStory
from pie_mlx.tui.text import curve, fit
from pie_mlx.tui.widgets.frame.line_view import Line, LineView, Piece, inks_of, line_strip

_TAIL = 24
_SAMPLE = 32
"""Nodes of a cell that are looked at where a cell stands for many."""


class DepthStrip(LineView):
    """One line a depth: a glyph a node in the heat of its score, and the counts."""

    can_focus = False

    def __init__(self, story: RunStory, *, id: str | None = None) -> None:  # noqa: A002
        """Show a story's levels."""
        super().__init__(id=id)
        self.story = story

    def show_change(self) -> None:
        """Draw again."""
        self.set_num_rows(len(self.story.levels))

    def keep_in_sight(self) -> None:
        """Keep the deepest level in sight."""
        self.show_end()

    def draw(self, row: int, width: int) -> Strip:
        """Draw one level."""
        return line_strip(level_line(self.story, row, self.inks, width), width, self.base)


def level_line(story: RunStory, depth: int, inks: Inks, width: int) -> Line:
    """Return one level: its nodes as glyphs, then how many, and the best value."""
    nodes = story.levels[depth]
    room = max(1, width - 5 - _TAIL)
    per_cell = -(-len(nodes) // room)
    out: list[Piece] = [(f"{depth:>3}  ", inks["head"])]
    if per_cell == 1:
        out += [_cell(node, story, inks) for node in nodes]
    else:
        out += [_best_cell(nodes[at : at + per_cell], story, inks) for at in range(0, len(nodes), per_cell)]
    used = -(-len(nodes) // per_cell)
    out.append((" " * (room - used), inks["dim"]))
    alive, best = story.standing(depth)
    value = "" if best is None else f"best {value_text(best.score)}"
    scale = f" ×{per_cell}" if per_cell > 1 else ""
    out.append((fit(f"{alive} of {len(nodes)}{scale}  {value}", _TAIL, right=True), inks["dim"]))
    return out


def _cell(node: Node, story: RunStory, inks: Inks) -> Piece:
    """Return one node's glyph; scored living nodes glow in their heat."""
    look = LOOKS[node.status]
    if node.status in DULL or node.value is None:
        return look.glyph, inks[look.role]
    return look.glyph, inks.heat(story.range.share(node.value)) + Style(bold=node.selected)


def _best_cell(nodes: list[Node], story: RunStory, inks: Inks) -> Piece:
    """Return the glyph of the best of several nodes."""
    step = max(1, len(nodes) // _SAMPLE)
    sample = nodes[::step]
    best = max(sample, key=lambda n: (n.status not in DULL, n.value is not None, n.value or 0.0))
    return _cell(best, story, inks)


class PoolGauge(Widget):
    """The pool as a bar in four glyphs, the counts, and the curve of held pages."""

    DEFAULT_CSS: ClassVar[str] = "PoolGauge { height: 3; }"

    def __init__(self, story: RunStory, *, id: str | None = None) -> None:  # noqa: A002
        """Show a story's pool."""
        super().__init__(id=id)
        self.story = story

    def render_line(self, y: int) -> Strip:
        """Draw bar, counts or curve."""
        base, width = self.visual_style.rich_style, self.size.width
        lines = gauge_lines(self.story, inks_of(self.app), width - 2, self.size.height)
        return line_strip([(" ", base), *(lines[y] if y < len(lines) else [])], width, base)


def gauge_lines(story: RunStory, inks: Inks, width: int, height: int) -> list[Line]:
    """Return bar, counts and a curve that fills the height; one line of words before the pool was read."""
    pool = story.tree.pool
    total = pool.free + pool.private + pool.shared + pool.cached
    if not total:
        return [[("the pool was not read yet", inks["dim"])]]
    history = [float(counts.held) for counts in story.pool_history]
    room, rows = max(1, width - 26), max(1, height - 2)
    peak = (
        [f"peak {story.peak_pages} held", f"{story.freed_pages} came back"]
        if rows > 1
        else [f"peak {story.peak_pages} held"]
    )
    ratio = f"  {pool.viewed / pool.held:.1f}× sharing" if pool.held and pool.viewed > pool.held else ""
    return [
        [*pool_bar(pool, max(4, width - 26), inks), (f"  {pool.free} free of {total}", inks["dim"])],
        [
            ("█ ", inks["good"]), (f"{pool.shared} shared  ", inks["text"]),
            ("▓ ", inks["info"]), (f"{pool.private} own  ", inks["text"]),
            ("▒ ", inks["dim"]), (f"{pool.cached} cached", inks["text"]),
            (ratio, inks["best"]),
        ],
        *(
            [(line, inks["info"]), (f"  {peak[row] if row < len(peak) else ''}", inks["dim"])]
            for row, line in enumerate(curve(history, room, rows, top=float(story.peak_pages)))
        ),
    ]  # fmt: skip


def pool_bar(pool: PoolCounts, cells: int, inks: Inks) -> Line:
    """Return shared, own, cached and free pages as one bar; each kind has a glyph of its own."""
    total = pool.free + pool.private + pool.shared + pool.cached
    kinds = (
        ("█", pool.shared, "good"),
        ("▓", pool.private, "info"),
        ("▒", pool.cached, "dim"),
        ("░", pool.free, "track"),
    )
    out: list[Piece] = []
    drawn, seen = 0, 0
    for glyph, number, role in kinds:
        seen += number
        # A kind that is there shows, however small its share.
        until = min(max(round(cells * seen / total), drawn + (1 if number else 0)), cells)
        out.append((glyph * (until - drawn), inks[role]))
        drawn = until
    return out


class LogView(LineView):
    """What happened, line by line; stays at the end unless it was scrolled up."""

    _sticks = True

    def __init__(self, story: RunStory, *, id: str | None = None) -> None:  # noqa: A002
        """Show a story's log."""
        super().__init__(id=id)
        self.story = story

    def show_change(self) -> None:
        """Draw again."""
        self.set_num_rows(len(self.story.log))

    def keep_in_sight(self) -> None:
        """Keep the end in sight; who reads further up is left alone."""
        if self._sticks:
            self.show_end()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stay at the end from now on, or no longer."""
        super().watch_scroll_y(old_value, new_value)
        if self.at_bottom():
            self._sticks = True
        elif new_value < old_value:
            self._sticks = False

    def draw(self, row: int, width: int) -> Strip:
        """Draw one line."""
        inks, line = self.inks, line_of(self.story.log[row])
        pieces: list[Piece] = [(f"{line.t_s:8.2f} ", inks["dim"]), (f"{line.glyph} ", inks[line.role])]
        if line.node is not None:
            pieces.append((f"{line.node} ", inks["strong"]))
        pieces.append((line.words, inks["text"]))
        return line_strip(pieces, width, self.base)
