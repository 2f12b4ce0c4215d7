"""One node as one line: guides, glyph, id and thought on the left; score, tokens and pages on the right."""

from __future__ import annotations

from dataclasses import dataclass

from rich.style import Style

from pie_mlx.search.tree import Node, NodeId
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.looks import DULL, FRONTIER, LOCKED, LOOKS, thought, value_text
from pie_mlx.tui.rows import Rows
from pie_mlx.tui.story import RunStory
from pie_mlx.tui.text import bar, count, fit, one_line
from pie_mlx.tui.widgets.frame.line_view import Piece

_VALUE = 5


@dataclass(frozen=True, slots=True)
class Columns:
    """Cells of the columns on the right; 0 leaves one out."""

    bar: int
    tokens: int
    pages: int

    @classmethod
    def fitting(cls, width: int) -> Columns:
        """Return the columns that a width has room for."""
        if width >= 96:
            return cls(12, 8, 9)
        if width >= 72:
            return cls(8, 8, 9)
        return cls(6, 5, 0) if width >= 52 else cls(4, 0, 0)

    @property
    def cells(self) -> int:
        """Cells of all columns together."""
        return 1 + self.bar + 1 + _VALUE + self.tokens + self.pages

    def head(self, inks: Inks) -> list[Piece]:
        """Return the columns' names."""
        style = inks["head"]
        text = " " + fit("score", self.bar + 1 + _VALUE, right=True)
        tokens = "tokens" if self.tokens > 6 else "tok"
        return [(text + fit(tokens, self.tokens, right=True) + fit("own+shr", self.pages, right=True), style)]

    def draw(self, node: Node, story: RunStory, inks: Inks) -> list[Piece]:
        """Return a node's score, tokens and pages."""
        value, text = node.value, value_text(node.score)
        out: list[Piece] = [(" ", inks["dim"])]
        if value is None:
            out += [(" " * self.bar, inks["track"]), (" " + fit(text, _VALUE, right=True), inks["warn"])]
        else:
            share = story.range.share(value)
            heat = inks.heat(share)
            dull = node.status in DULL
            filled = bar(share, self.bar)
            out.append((filled, inks["dim"] if dull else heat))
            out.append(("─" * (self.bar - len(filled)), inks["track"]))
            strong = Style(bold=not dull)
            out.append((" " + fit(text, _VALUE, right=True), (inks["dim"] if dull else heat) + strong))
        tokens = count(node.tokens.completion) if node.tokens.completion else ""
        out.append((fit(tokens, self.tokens, right=True), inks["dim"]))
        if self.pages:
            own = node.pages.total - node.pages.shared
            pages = f"{own}+{node.pages.shared}" if node.pages.total else ""
            out.append((fit(pages, self.pages, right=True), inks["info"]))
        return out


def draw_row(
    node: Node, rows: Rows, story: RunStory, inks: Inks, *, width: int, best: frozenset[NodeId]
) -> list[Piece]:
    """Return a row's pieces, ``width`` cells in all."""
    columns = Columns.fitting(width)
    look = LOOKS[node.status]
    dull = node.status in DULL
    out = _guides(node, rows, inks, width=width, best=best)
    out.append((look.glyph, inks[look.role]))
    mark = LOCKED if node.locked else FRONTIER if node.selected else " "
    out.append((mark, inks["accent"] + Style(bold=True)))
    name = inks["dim"] if dull else inks["strong"] if node.selected or node.id in best else inks["text"]
    out.append((f"{node.id} ", name))
    if node.id in rows.folded:
        out.append((f"⊞ {len(node.children)} ", inks["accent"]))
    used = sum(len(text) for text, _style in out)
    room = max(0, width - used - columns.cells)
    text = thought(node, story.tree)
    # A thought that is being written is read at its end.
    tail = LOOKS[node.status].role == "busy" and not node.children
    words = one_line(text[-4 * room :] if tail else text, 4 * room + 4)
    if tail and len(words) > room > 1:
        words = "…" + words[-(room - 1) :]
    style = inks["dim"] if dull else inks["busy"] if tail else inks["text"]
    out.append((fit(words, room), style))
    return [*out, *columns.draw(node, story, inks)]


def _guides(node: Node, rows: Rows, inks: Inks, *, width: int, best: frozenset[NodeId]) -> list[Piece]:
    """Return the lines before a node; levels that have no room are one ``⋯``."""
    follows = rows.guide(node)
    if not follows:
        return []
    most = max(1, (width * 2 // 5) // 2)
    out: list[Piece] = []
    if len(follows) > most:
        out.append((f"⋯{len(follows) - most} ", inks["dim"]))
        follows = follows[-most:]
    out.append(("".join("│ " if more else "  " for more in follows[:-1]), inks["track"] + inks["dim"]))
    on_best = node.id in best
    style = inks["accent"] if on_best else inks["dim"]
    out.append(("├─" if follows[-1] else "╰─", style))
    return out
