"""The tree itself: a flat list of visible rows, of which only those on the screen are drawn."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from pie_mlx.search.tree import ROOT, Node, NodeId, rank_key
from pie_mlx.tui.rows import Match, Rows
from pie_mlx.tui.story import Change, RunStory
from pie_mlx.tui.widgets.frame.line_view import LineView, Piece, inks_of, line_strip
from pie_mlx.tui.widgets.tree.row_drawing import Columns, draw_row

_BEST_PATH_UP_TO = 5_000
"""Nodes up to which the best path is marked while the tree grows, and in its past."""


class TreeHead(Widget):
    """The columns' names above the tree."""

    DEFAULT_CSS: ClassVar[str] = "TreeHead { height: 1; }"

    caption: reactive[str] = reactive("thoughts")

    def render_line(self, y: int) -> Strip:
        """Draw the names."""
        inks, width = inks_of(self.app), self.size.width - 1
        columns = Columns.fitting(width - 1)
        from pie_mlx.tui.text import fit

        left = fit(f" {self.caption}", max(0, width - columns.cells))
        return line_strip([(left, inks["head"]), *columns.head(inks)], self.size.width, self.visual_style.rich_style)


class TreeView(LineView):
    """A run's tree with a cursor; nodes fold, unfold, and are filtered."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "move(1)", "down", show=False),
        Binding("k,up", "move(-1)", "up", show=False),
        Binding("l,right", "unfold", "unfold, or to the first child", show=False),
        Binding("h,left", "fold", "fold, or to the parent", show=False),
        Binding("J", "sibling(1)", "next sibling", show=False),
        Binding("K", "sibling(-1)", "previous sibling", show=False),
        Binding("pagedown,ctrl+d", "page(1)", "page down", show=False),
        Binding("pageup,ctrl+u", "page(-1)", "page up", show=False),
        Binding("g,home", "move(-1000000000)", "first row", show=False),
        Binding("G,end", "move(1000000000)", "last row", show=False),
        Binding("b", "best", "to the best node", show=False),
        Binding("o", "fold_dull", "fold what was given up", show=False),
        Binding("O", "unfold_all", "unfold everything", show=False),
    ]

    class Moved(Message):
        """The cursor stands on another node, or on one that has changed."""

        def __init__(self, node: Node | None) -> None:
            """Name the node."""
            super().__init__()
            self.node = node

    def __init__(self, story: RunStory, *, id: str | None = None) -> None:  # noqa: A002
        """Show a story's tree."""
        super().__init__(id=id)
        self.story = story
        self.rows = Rows()
        self.cursor = 0
        self.follows = False
        self._best: frozenset[NodeId] = frozenset()

    @property
    def node(self) -> Node | None:
        """The node under the cursor."""
        return self.rows.nodes[self.cursor] if self.cursor < len(self.rows) else None

    # --- what happened ------------------------------------------------------------------------

    def show_change(self, change: Change) -> None:
        """Draw what a feed or a seek changed."""
        kept = self.node.id if self.node is not None else ROOT
        if (
            change.rebuilt
            or self.rows.tree is not self.story.tree
            or not self.rows.nodes
            or (self.rows.match is not None and change.num_events)
        ):
            self.rows.rebuild(self.story.tree)
        else:
            self.rows.remove(change.removed)
            self.rows.add(change.added)
        is_whole = self.story.is_over and self.story.at_end
        is_marked = is_whole or len(self.story.tree) <= _BEST_PATH_UP_TO
        self._best = frozenset(node.id for node in self.story.best_path()) if is_marked else frozenset()
        self.set_num_rows(len(self.rows))
        latest = self.story.latest
        if is_whole and change.num_events and self.story.best_path():
            latest = self.story.best_path()[-1].id  # what was heard of last is seldom what was found
        if self.follows and latest is not None:
            self._go(self.rows.nearest(latest))
        else:
            self._go(self.rows.nearest(kept))

    def set_filter(self, match: Match | None) -> int:
        """Show only what matches; return how many do."""
        kept = self.node.id if self.node is not None else ROOT
        number = self.rows.set_filter(match)
        self.set_num_rows(len(self.rows))
        self._go(self.rows.nearest(kept))
        return number

    def go_to(self, node: NodeId) -> None:
        """Put the cursor on a node, unfolding the way to it."""
        if node in self.story.tree:
            row = self.rows.reveal(node)
            self.set_num_rows(len(self.rows))
            self._go(row)

    def find(self, text: str, *, step: int = 1) -> bool:
        """Go to the next node whose id or text holds ``text``, folded ones too; whether there is one."""
        wanted = text.casefold()
        order = [node for node in self.story.tree.walk() if self.rows.match is None or self.rows.match(node)]
        if not order or not wanted:
            return False
        here = next((at for at, node in enumerate(order) if node is self.node), 0)
        for offset in range(1, len(order) + 1):
            node = order[(here + step * offset) % len(order)]
            if wanted in node.text.casefold() or wanted == node.id:
                self.go_to(node.id)
                return True
        return False

    def _go(self, row: int) -> None:
        """Put the cursor on a row, and say so."""
        before = self.cursor
        self.cursor = max(0, min(row, len(self.rows) - 1))
        self.show_row(self.cursor)
        if before != self.cursor:
            for line in (before, self.cursor):
                self.refresh_line(line - self.scroll_offset.y)
        self.post_message(self.Moved(self.node))

    def refresh_line(self, y: int) -> None:
        """Draw one line of the window again."""
        if 0 <= y < self.size.height:
            from textual.geometry import Region

            self.refresh(Region(0, y, self.size.width, 1))

    # --- drawing --------------------------------------------------------------------------------

    def draw(self, row: int, width: int) -> Strip:
        """Draw one node; a mark stands before the one under the cursor."""
        inks = self.inks
        is_here = row == self.cursor
        base = self.base + inks.cursor if is_here else self.base
        mark: Piece = ("❯" if is_here else " ", inks["accent"] + Style(bold=True))
        node = self.rows.nodes[row]
        pieces = draw_row(node, self.rows, self.story, inks, width=width - 1, best=self._best)
        return line_strip([mark, *pieces], width, base)

    # --- keys and mouse ---------------------------------------------------------------------------

    def _by_hand(self, row: int) -> None:
        """Move because the user wished it: following ends."""
        self.follows = False
        self._go(row)

    def action_move(self, rows: int) -> None:
        """Move by rows."""
        self._by_hand(self.cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move by windows."""
        self._by_hand(self.cursor + pages * max(1, self.size.height - 1))

    def action_unfold(self) -> None:
        """Unfold the node, or go to its first child."""
        if self.node is None:
            return
        if self.rows.unfold(self.cursor):
            self.set_num_rows(len(self.rows))
        elif self.cursor + 1 < len(self.rows) and self.rows.nodes[self.cursor + 1].parent == self.node.id:
            self._by_hand(self.cursor + 1)

    def action_fold(self) -> None:
        """Fold the node, or go to its parent."""
        if self.node is None:
            return
        if self.rows.fold(self.cursor):
            self.set_num_rows(len(self.rows))
        elif self.node.parent is not None:
            self._by_hand(self.rows.nearest(self.node.parent))

    def action_sibling(self, step: int) -> None:
        """Go to a sibling."""
        if self.node is None or self.node.parent is None:
            return
        siblings = self.story.tree[self.node.parent].children
        at = siblings.index(self.node.id) + step
        if 0 <= at < len(siblings):
            row = self.rows.index(siblings[at])
            if row is not None:
                self._by_hand(row)

    def action_best(self) -> None:
        """Go to the best node so far."""
        path = self.story.best_path()
        target = path[-1] if path else min(self.story.tree.nodes.values(), key=rank_key, default=None)
        if target is not None:
            self.follows = False
            self.go_to(target.id)

    def action_fold_dull(self) -> None:
        """Fold every subtree that was given up."""
        from pie_mlx.tui.looks import DULL

        kept = self.node.id if self.node is not None else ROOT
        self.rows.folded |= {n.id for n in self.story.tree.nodes.values() if n.children and n.status in DULL}
        self._rebuild(kept)

    def action_unfold_all(self) -> None:
        """Unfold every node."""
        kept = self.node.id if self.node is not None else ROOT
        self.rows.folded.clear()
        self._rebuild(kept)

    def _rebuild(self, kept: NodeId) -> None:
        """Make all rows again with the cursor where it was."""
        self.rows.rebuild(self.story.tree)
        self.set_num_rows(len(self.rows))
        self._go(self.rows.nearest(kept))

    def on_click(self, event: events.Click) -> None:
        """Go to the row; a second click folds or unfolds it."""
        row = event.y + self.scroll_offset.y
        if row >= len(self.rows):
            return
        if event.chain == 2 and not self.rows.unfold(row):
            self.rows.fold(row)
            self.set_num_rows(len(self.rows))
        self._by_hand(row)
