"""A search tree as rows of text: guides, glyphs and scores, cut to a height by leaving out the dull middle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from pie_mlx.cli.clean import one_line
from pie_mlx.search.tree import ROOT, Node, NodeId, NodeStatus, Tree

SCORE_BAR_CELLS = 6
_S = NodeStatus


@dataclass(frozen=True, slots=True)
class Look:
    """How a status is drawn; glyphs differ in shape, so that colour is never needed."""

    glyph: str
    ascii: str
    style: str


LOOKS = {
    _S.WRITING: Look("◌", "~", "yellow"),
    _S.OPEN: Look("○", "o", "cyan"),
    _S.EXPANDING: Look("◐", "%", "cyan"),
    _S.EXPANDED: Look("●", "*", "blue"),
    _S.DONE: Look("◆", "+", "green"),
    _S.ACCEPTED: Look("★", "#", "bold green"),
    _S.PRUNED: Look("×", "x", "dim"),
    _S.DUPLICATE: Look("≡", "=", "dim"),
    _S.INVALID: Look("!", "!", "dim red"),
    _S.FAILED: Look("✗", "X", "bold red"),
}
_WRITING_FRAMES = "◜◠◝◞◡◟"
_DEAD = frozenset({_S.PRUNED, _S.DUPLICATE, _S.INVALID})


@dataclass(frozen=True, slots=True)
class Canvas:
    """What the rows are drawn on."""

    width: int
    height: int
    unicode: bool = True
    frame: int = 0
    """Counts the frames: the turning mark of a thought that is being written."""

    @property
    def guides(self) -> tuple[str, str, str, str]:
        """Branch, last branch, line and gap."""
        return ("├─ ", "└─ ", "│  ", "   ") if self.unicode else ("|- ", "`- ", "|  ", "   ")


@dataclass(frozen=True, slots=True)
class Row:
    """One node, and the guides before it."""

    guide: str
    node: Node


def rows_of(tree: Tree, canvas: Canvas) -> list[Row]:
    """Return a row for each node, parents first."""
    branch, last, line, gap = canvas.guides
    rows: list[Row] = []
    stack: list[tuple[NodeId, str, str]] = [(ROOT, "", "")] if ROOT in tree else []
    while stack:
        node_id, own, below = stack.pop()
        node = tree[node_id]
        rows.append(Row(own, node))
        ends = len(node.children) - 1
        children = [
            (child, below + (last if index == ends else branch), below + (gap if index == ends else line))
            for index, child in enumerate(node.children)
        ]
        stack.extend(reversed(children))
    return rows


def elide(rows: Sequence[Row], tree: Tree, height: int) -> list[Row | int]:
    """Return at most ``height`` entries in tree order: the rows that matter most, and counts of those left out."""
    if len(rows) <= height:
        return list(rows)
    best = {node.id for node in tree.best_path()}
    order = sorted(range(len(rows)), key=lambda index: (_weight(rows[index].node, best), -index))
    for num_kept in range(max(height - 1, 1), 0, -1):
        entries = _with_gaps(rows, sorted(order[:num_kept]))
        if len(entries) <= height:
            return entries
    return [len(rows)] if height > 0 else []


def _weight(node: Node, best: set[NodeId]) -> int:
    """Rank a node for showing: the root and the best path, what moves, the frontier, the living, the dead."""
    if node.id == ROOT or node.status in (_S.ACCEPTED, _S.FAILED):
        return 0
    if node.id in best:
        return 1
    if node.selected or node.locked or node.status in (_S.WRITING, _S.EXPANDING):
        return 2
    if node.status in _DEAD:
        return 5
    return 3 if node.status in (_S.DONE, _S.OPEN) else 4


def _with_gaps(rows: Sequence[Row], kept: Sequence[int]) -> list[Row | int]:
    """Return the kept rows with a count wherever rows between them are left out; a single one is shown instead."""
    entries: list[Row | int] = []
    next_index = 0
    for index in (*kept, len(rows)):
        if index - next_index == 1:
            entries.append(rows[next_index])
        elif index > next_index:
            entries.append(index - next_index)
        if index < len(rows):
            entries.append(rows[index])
        next_index = index + 1
    return entries


def draw_rows(tree: Tree, canvas: Canvas) -> Iterator[Text]:
    """Yield at most ``canvas.height`` lines, none wider than ``canvas.width``."""
    rows = rows_of(tree, canvas)
    low, high = score_range(tree)
    columns = Columns.fitting(canvas.width)
    for entry in elide(rows, tree, canvas.height):
        if isinstance(entry, int):
            mark = "⋮" if canvas.unicode else ":"
            yield fit(Text(f"  {mark} {entry} more", style="dim"), canvas.width)
        else:
            yield _draw(entry, tree, canvas, columns.cells(entry.node, low, high, unicode=canvas.unicode))


def draw_plain(tree: Tree) -> Iterator[str]:
    """Yield a line for every node, nothing cut: score, tokens and pages first, then the tree."""
    canvas = Canvas(0, 0)
    for row in rows_of(tree, canvas):
        node = row.node
        left = f"{score_text(node):>6} {node.tokens.completion or '':>5} {pages_text(node):>7}"
        mark = _mark(node, unicode=True)
        yield f"{left}  {row.guide}{LOOKS[node.status].glyph}{mark}{node.id} {_text_of(node, tree)}".rstrip()


def _draw(row: Row, tree: Tree, canvas: Canvas, right: Text) -> Text:
    """Draw one row: guide, glyph, id and thought on the left; score, tokens and pages on the right."""
    node = row.node
    look = LOOKS[node.status]
    dull = node.status in _DEAD
    left = Text(row.guide, style="dim", no_wrap=True)
    left.append(_glyph(node, canvas), look.style)
    left.append(_mark(node, unicode=canvas.unicode), "bold")
    left.append(f"{node.id} ", "dim" if dull else "bold" if node.selected else "")
    room = canvas.width - right.cell_len - left.cell_len - (1 if right.cell_len else 0)
    left.append_text(_thought(node, tree, room))
    left = fit(left, canvas.width - right.cell_len)
    left.pad_right(max(canvas.width - right.cell_len - left.cell_len, 0))
    return left.append_text(right)


def _glyph(node: Node, canvas: Canvas) -> str:
    """Return the status glyph; a thought being written turns."""
    if not canvas.unicode:
        return LOOKS[node.status].ascii
    if node.status is _S.WRITING:
        return _WRITING_FRAMES[canvas.frame % len(_WRITING_FRAMES)]
    return LOOKS[node.status].glyph


def _mark(node: Node, *, unicode: bool) -> str:
    """Return the mark behind the glyph: in the frontier, locked, or neither."""
    if node.locked:
        return "▪" if unicode else "L"
    if node.selected:
        return "▸" if unicode else ">"
    return " "


def _text_of(node: Node, tree: Tree) -> str:
    """Return what stands in a node's row: its thought, and why it came to nothing."""
    text = one_line(node.text or (tree.question if node.id == ROOT else ""))
    if node.status is _S.DUPLICATE:
        return f"= {node.duplicate_of}  {text}"
    if node.status in (_S.INVALID, _S.FAILED) and node.reason:
        return f"{text}  ({one_line(node.reason)})".lstrip()
    return text


def _thought(node: Node, tree: Tree, room: int) -> Text:
    """Return the node's text in ``room`` cells: its beginning, or its end while it is written."""
    text = _text_of(node, tree)
    if node.status is _S.WRITING and cell_len(text) > room > 1:
        text = "…" + _tail(text, room - 1)
    styles = {_S.ACCEPTED: "bold green", _S.PRUNED: "dim", _S.DUPLICATE: "dim", _S.INVALID: "dim", _S.FAILED: "red"}
    return fit(Text(text, style=styles.get(node.status, ""), no_wrap=True), max(room, 0))


def _tail(text: str, cells: int) -> str:
    """Return the end of ``text`` that fits ``cells``."""
    tail = text[-cells:] if cells > 0 else ""
    while cell_len(tail) > cells:
        tail = tail[1:]
    return tail


def fit(text: Text, cells: int) -> Text:
    """Cut a line to ``cells``, with an ellipsis where it was longer."""
    fitted = text.copy()
    fitted.truncate(max(cells, 0), overflow="ellipsis")
    return fitted


def score_range(tree: Tree) -> tuple[float, float]:
    """Return the ends of the score bars: 0 and 1, or the least and greatest value where one lies outside."""
    values = [node.value for node in tree.nodes.values() if node.value is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns stand on the right; a narrow terminal drops the less important."""

    score: bool
    bar: bool
    tokens: bool
    pages: bool

    @classmethod
    def fitting(cls, width: int) -> Columns:
        """Return the columns that leave room for the thoughts."""
        return cls(score=width >= 24, bar=width >= 56, tokens=width >= 48, pages=width >= 68)

    def cells(self, node: Node, low: float, high: float, *, unicode: bool) -> Text:
        """Return the right side of a node's row."""
        right = Text(no_wrap=True)
        if not self.score:
            return right
        right.append(" ")
        dull = node.status in _DEAD
        if self.bar:
            right.append_text(score_bar(node.value, low, high, unicode=unicode, dull=dull))
        right.append(f" {score_text(node):>5}", "dim" if dull else "")
        if self.tokens:
            right.append(f" {node.tokens.completion or '':>4}", "dim")
        if self.pages:
            right.append(f" {pages_text(node):>6}", "dim" if dull else "cyan")
        return right

    def header(self) -> Text:
        """Return the words above the columns."""
        right = Text(style="dim", no_wrap=True)
        if not self.score:
            return right
        right.append(" ")
        words = f"{'':{SCORE_BAR_CELLS}} score" if self.bar else " score"
        right.append(words + (f" {'tok':>4}" if self.tokens else "") + (f" {'pages':>6}" if self.pages else ""))
        return right


def score_text(node: Node) -> str:
    """Return a node's score: ``?`` where a judge gave no readable verdict, nothing where none has spoken."""
    if node.score is None:
        return ""
    return "?" if node.value is None else f"{node.value:.2f}"


def pages_text(node: Node) -> str:
    """Return a node's pages as ``own+shared``, nothing where it holds none."""
    return f"{node.pages.total - node.pages.shared}+{node.pages.shared}" if node.pages.total else ""


def score_bar(value: float | None, low: float, high: float, *, unicode: bool, dull: bool) -> Text:
    """Draw a score as a bar of :data:`SCORE_BAR_CELLS` cells, in steps of half a cell."""
    if value is None:
        return Text(" " * SCORE_BAR_CELLS)
    share = (value - low) / (high - low) if high > low else 1.0
    halves = round(min(max(share, 0.0), 1.0) * SCORE_BAR_CELLS * 2)
    full, half, rest = ("━", "╸", "─") if unicode else ("#", "=", "-")
    drawn = full * (halves // 2) + half * (halves % 2)
    style = "dim" if dull else "green" if share >= 2 / 3 else "yellow" if share >= 1 / 3 else "red"
    bar = Text(drawn, style=style, no_wrap=True)
    return bar.append(rest * (SCORE_BAR_CELLS - len(drawn)), "dim")
