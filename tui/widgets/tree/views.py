"""Other views of the same tree: the best path in full, a table of its levels, and a flame."""

from __future__ import annotations

from typing import Any

from rich.style import Style
from rich.text import Text
from textual.app import App
from textual.strip import Strip

from pie_mlx.search.tree import ROOT, Node, NodeId, NodeStatus
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.looks import DULL, LOOKS, thought, value_text
from pie_mlx.tui.story import RunStory
from pie_mlx.tui.text import bar, clean_text, count, fit, one_line
from pie_mlx.tui.widgets.frame.line_view import Line, LineView, Piece, inks_of, line_strip
from pie_mlx.tui.widgets.frame.table import Column

LEVEL_COLUMNS = (
    Column("depth", 5, right=True),
    Column("nodes", 7, right=True),
    Column("alive", 7, right=True),
    Column("pruned", 7, right=True),
    Column("≡ same", 7, right=True, least_width=60),
    Column("! bad", 6, right=True, least_width=60),
    Column("best", 6, right=True),
    Column("mean", 6, right=True, least_width=60),
    Column("", 12, least_width=60),
    Column("", 0),
    Column("tokens", 8, right=True),
    Column("pages", 7, right=True, least_width=70),
)


def level_rows(story: RunStory, app: App[Any]) -> list[Line]:
    """Return a row for each depth: how many nodes of each fate, their values, tokens and pages."""
    inks = inks_of(app)
    return [_level_row(depth, nodes, story, inks) for depth, nodes in enumerate(story.levels)]


def _level_row(depth: int, nodes: list[Node], story: RunStory, inks: Inks) -> Line:
    """Return one depth's row."""
    by_status: dict[NodeStatus, int] = {}
    for node in nodes:
        by_status[node.status] = by_status.get(node.status, 0) + 1
    values = [node.value for node in nodes if node.value is not None]
    best, mean = (max(values), sum(values) / len(values)) if values else (None, None)
    bad = by_status.get(NodeStatus.INVALID, 0) + by_status.get(NodeStatus.FAILED, 0)
    heat = inks["dim"] if best is None else inks.heat(story.range.share(best))
    return (
        (str(depth), inks["head"]),
        (count(len(nodes)), inks["strong"]),
        (count(sum(1 for node in nodes if node.status not in DULL)), inks["info"]),
        (count(by_status.get(NodeStatus.PRUNED, 0)), inks["dim"]),
        (count(by_status.get(NodeStatus.DUPLICATE, 0)), inks["dim"]),
        (count(bad), inks["warn"] if bad else inks["dim"]),
        ("" if best is None else f"{best:.2f}", heat),
        ("" if mean is None else f"{mean:.2f}", inks["dim"]),
        (bar(0.0 if best is None else story.range.share(best), 12), heat),
        ("", inks["dim"]),
        (count(sum(node.tokens.completion for node in nodes)), inks["text"]),
        (count(sum(node.pages.total - node.pages.shared for node in nodes)), inks["text"]),
    )


def best_path_lines(story: RunStory, app: App[Any], width: int) -> list[Line]:
    """Return the thoughts on the best path in full, wrapped to ``width`` cells, with their scores."""
    inks = inks_of(app)
    lines: list[Line] = []
    for node in story.best_path():
        look = LOOKS[node.status]
        head: list[Piece] = [(f"{look.glyph} {node.id}  ", inks[look.role])]
        if node.value is not None:
            share = story.range.share(node.value)
            head += [(f"{bar(share, 12):<12}", inks.heat(share)), (f" {value_text(node.score)}", inks.heat(share))]
        head.append((f"  {node.tokens.completion} tokens", inks["dim"]))
        lines.append(head)
        text = clean_text(thought(node, story.tree))
        parts = Text(text).wrap(app.console, max(8, width - 4))
        lines += [[("│   ", inks["accent"]), (part.plain.rstrip("\n"), inks["text"])] for part in parts]
        lines.append([])
    outcome = story.tree.outcome
    if outcome is not None:
        solved = {None: "", True: "  ✓ checked: right", False: "  ✗ checked: wrong"}[outcome.solved]
        lines.append(
            [("★ ", inks["best"]), (one_line(outcome.answer or outcome.reason), inks["strong"]), (solved, inks["best"])]
        )
    return lines or [[("no finished node yet", inks["dim"])]]


class Flame(LineView):
    """Each depth a row, each node a block as wide as the tokens below it."""

    can_focus = True

    def __init__(self, story: RunStory, *, id: str | None = None) -> None:  # noqa: A002
        """Show a story's tree."""
        super().__init__(id=id)
        self.story = story
        self._weights: dict[NodeId, int] = {}
        self._version: tuple[int, int] = (-1, -1)
        self._rows: list[Line] = []

    def show_change(self) -> None:
        """Lay the blocks out again."""
        self._rows = flame_lines(self.story, self.inks, max(1, self.size.width - 1))
        self.set_num_rows(len(self._rows))

    def on_resize(self) -> None:
        """Lay out for the new width."""
        self.show_change()

    def draw(self, row: int, width: int) -> Strip:
        """Draw one depth."""
        return line_strip(self._rows[row], width, self.base)


def flame_lines(story: RunStory, inks: Inks, width: int) -> list[Line]:
    """Return the flame: blocks under their parents, as wide as their share of tokens; what is too thin is left out."""
    tree = story.tree
    if ROOT not in tree:
        return []
    weights = _weights(story)
    lines: list[Line] = []
    level: list[tuple[Node, int, int]] = [(tree.root, 0, width)]
    while level:
        lines.append(_blocks(level, story, inks))
        below: list[tuple[Node, int, int]] = []
        for node, left, cells in level:
            at, seen, total = left, 0, sum(weights[child] for child in node.children)
            for child in node.children:
                seen += weights[child]
                end = left + cells * seen // total
                if end > at:
                    below.append((tree[child], at, end - at))
                    at = end
        level = below
    return lines


def _weights(story: RunStory) -> dict[NodeId, int]:
    """Return for each node the tokens written in it and below, at least 1."""
    weights = {node.id: max(1, node.tokens.completion) for node in story.tree.nodes.values()}
    for nodes in reversed(story.levels):
        for node in nodes:
            if node.parent is not None:
                weights[node.parent] += weights[node.id]
    return weights


def _blocks(level: list[tuple[Node, int, int]], story: RunStory, inks: Inks) -> Line:
    """Return one depth's blocks with the gaps between them."""
    out: list[Piece] = []
    at = 0
    for node, left, cells in level:
        out.append((" " * (left - at), inks["dim"]))
        look, words = LOOKS[node.status], one_line(thought(node, story.tree), 60)
        dull = node.status in DULL or node.value is None
        style = inks[look.role] if dull else inks.heat(story.range.share(node.value or 0.0))
        label = fit(f"{look.glyph} {value_text(node.score)} {words}", cells - 1) if cells > 3 else ""
        block = (label or look.glyph).ljust(max(1, cells - 1)) if cells > 1 else look.glyph
        out.append((block, style + Style(reverse=True, bold=node.selected)))
        out.append((" " if cells > 1 else "", inks["dim"]))
        at = left + cells
    return out
