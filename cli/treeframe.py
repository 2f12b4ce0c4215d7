"""One frame of a search for the terminal: a heading, the tree, the pool's bar and the counts."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from pie_mlx.cli.clean import one_line
from pie_mlx.cli.treerows import LOOKS, Canvas, Columns, draw_rows, fit
from pie_mlx.search.tree import NodeStatus, PoolCounts, Tree

_BAR_CELLS = 24
_LEAST_ROWS = 1
_TALL = 16


@dataclass(frozen=True, slots=True)
class Caption:
    """What is written above the tree."""

    title: str
    elapsed_s: float | None = None


def draw_frame(tree: Tree, caption: Caption, canvas: Canvas) -> list[Text]:
    """Return the lines of a frame: never more than ``canvas.height``, none wider than ``canvas.width``."""
    parts = (_pool_line(tree.pool, canvas), *_count_lines(tree, canvas), _alarm_line(tree, canvas))
    foot = [line for line in parts if line is not None]
    spare = canvas.height - 1 - len(foot)
    airy = spare >= 8
    head = [_head_line(tree, caption, canvas), *([Text()] if airy else [])]
    room = max(canvas.height - len(head) - len(foot) - (1 if airy else 0), _LEAST_ROWS)
    rows = list(draw_rows(tree, Canvas(canvas.width, room, canvas.unicode, canvas.frame)))
    lines = [*head, *rows, *([Text()] if airy else []), *foot]
    return lines[: max(canvas.height, 1)]


def _head_line(tree: Tree, caption: Caption, canvas: Canvas) -> Text:
    """Return title and clock on the left, the columns' names on the right."""
    right = Columns.fitting(canvas.width).header()
    left = Text(one_line(caption.title), style="bold", no_wrap=True)
    if caption.elapsed_s is not None:
        left.append(f"  {clock(caption.elapsed_s)}", "dim")
    if tree.paused:
        left.append("  paused", "bold yellow")
    left = fit(left, canvas.width - right.cell_len)
    left.pad_right(max(canvas.width - right.cell_len - left.cell_len, 0))
    return fit(left.append_text(right), canvas.width)


def clock(seconds: float) -> str:
    """Return seconds as a clock shows them."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _pool_line(pool: PoolCounts, canvas: Canvas) -> Text | None:
    """Return the pool as a bar and in figures; None before it was read."""
    total = pool.free + pool.private + pool.shared + pool.cached
    if not total:
        return None
    line = Text("pool ", style="bold", no_wrap=True)
    line.append_text(pool_bar(pool, min(_BAR_CELLS, max(canvas.width // 4, 4)), unicode=canvas.unicode))
    line.append(f"  {pool.held} held", "bold")
    line.append(f" ({pool.shared} shared)", "cyan")
    line.append(f"  {pool.free} free of {total}", "dim")
    if pool.held and pool.viewed > pool.held:
        sign = "×" if canvas.unicode else "x"
        line.append(f"  {pool.viewed / pool.held:.1f}{sign} sharing", "green")
    if pool.cached:
        line.append(f"  {pool.cached} cached", "dim")
    if pool.evicted:
        line.append(f"  {pool.evicted} evicted", "yellow")
    return fit(line, canvas.width)


def pool_bar(pool: PoolCounts, cells: int, *, unicode: bool) -> Text:
    """Draw shared, own, cached and free pages as one bar of 4 cells or more; each kind has a glyph of its own."""
    total = pool.free + pool.private + pool.shared + pool.cached
    glyphs = "█▓▒░" if unicode else "#+-."
    counts = (pool.shared, pool.private, pool.cached, pool.free)
    bar = Text(no_wrap=True)
    drawn, seen = 0, 0
    for index, (glyph, count, style) in enumerate(zip(glyphs, counts, ("cyan", "blue", "dim", "dim"), strict=True)):
        seen += count
        until = round(cells * seen / total) if total else 0
        # A kind that is there shows, however small its share: it takes a cell and leaves one to each that follows.
        following = sum(1 for later in counts[index + 1 :] if later)
        until = min(max(until, drawn + (1 if count else 0)), cells - following)
        bar.append(glyph * (until - drawn), style)
        drawn = until
    return bar


def _count_lines(tree: Tree, canvas: Canvas) -> list[Text]:
    """Return how many nodes there are of each status (the legend of the glyphs), and the tokens."""
    parts = [Text(f"{len(tree)} nodes", style="bold"), Text(f"{tree.tokens().completion} tokens", style="dim")]
    counts = tree.counts()
    for status in NodeStatus:
        if counts.get(status):
            look = LOOKS[status]
            part = Text(f"{look.glyph if canvas.unicode else look.ascii} ", style=look.style)
            parts.append(part.append(f"{counts[status]} {status.value}", "not bold dim"))
    lines = [Text(no_wrap=True)]
    for part in parts:
        if lines[-1].cell_len and lines[-1].cell_len + 2 + part.cell_len > canvas.width:
            lines.append(Text(no_wrap=True))
        lines[-1].append("  " if lines[-1].cell_len else "").append_text(part)
    shown = lines[: 2 if canvas.height >= _TALL else 1]
    return [fit(line, canvas.width) for line in shown]


def _alarm_line(tree: Tree, canvas: Canvas) -> Text | None:
    """Return the latest alarm, or the latest notice; None while all is quiet."""
    if tree.alarms:
        return fit(Text(f"alarm  {one_line(tree.alarms[-1])}", style="bold red", no_wrap=True), canvas.width)
    if tree.notices:
        return fit(Text(f"note  {one_line(tree.notices[-1])}", style="yellow", no_wrap=True), canvas.width)
    return None
