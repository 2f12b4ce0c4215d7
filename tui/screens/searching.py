"""Finding, filtering and comparing nodes."""

from __future__ import annotations

from pie_mlx.errors import UsageError
from pie_mlx.search.tree import NodeId
from pie_mlx.tui.bridge import describe
from pie_mlx.tui.desk import Desk
from pie_mlx.tui.rows import parse_filter
from pie_mlx.tui.screens.diff import DiffScreen
from pie_mlx.tui.screens.page import Page
from pie_mlx.tui.widgets.tree.find_bar import FindBar
from pie_mlx.tui.widgets.tree.tree_view import TreeView


class Searching(Page):
    """The part of the tree screen that looks for nodes."""

    def __init__(self, desk: Desk) -> None:
        """Start without a search."""
        super().__init__(desk)
        self._sought = ""
        self._marked: NodeId | None = None

    @property
    def tree_view(self) -> TreeView:
        """The tree; the screen has it."""
        raise NotImplementedError

    def action_find(self) -> None:
        """Ask what to find."""
        self.query_one(FindBar).ask("find", self._sought)

    def action_filter(self) -> None:
        """Ask what to show."""
        self.query_one(FindBar).ask("filter", "")

    def on_find_bar_asked(self, message: FindBar.Asked) -> None:
        """Find or filter."""
        self.tree_view.focus()
        if message.kind == "find":
            self._sought = message.text
            self.action_find_next(1)
            return
        try:
            match = parse_filter(message.text)
        except UsageError as error:
            self.notify(describe(error), severity="error", markup=False)
            return
        number = self.tree_view.set_filter(match)
        if match is not None:
            self.notify(f"{number} of {len(self.desk.story.tree)} match; esc shows all", markup=False, timeout=3)

    def on_find_bar_left(self, _message: FindBar.Left) -> None:
        """Go back to the tree."""
        self.tree_view.focus()

    def action_find_next(self, step: int) -> None:
        """Go to the next match, or the one before."""
        if not self._sought:
            self.action_find()
        elif not self.tree_view.find(self._sought, step=step):
            self.notify(f"nothing holds {self._sought!r}", severity="warning", markup=False, timeout=3)

    def action_clear(self) -> None:
        """Show all nodes, and forget the mark."""
        self._marked = None
        if self.tree_view.rows.match is not None:
            self.tree_view.set_filter(None)

    def action_diff(self) -> None:
        """Mark a node; with one marked, show how the one under the cursor differs from it."""
        node = self.tree_view.node
        if node is None:
            return
        if self._marked is None or self._marked not in self.desk.story.tree:
            self._marked = node.id
            self.notify(f"{node.id} is marked: go to another node and press d", markup=False, timeout=4)
        elif self._marked == node.id:
            self._marked = None
            self.notify("the mark is gone", markup=False, timeout=2)
        else:
            marked, self._marked = self.desk.story.tree[self._marked], None
            _ = self.app.push_screen(DiffScreen(marked, node, self.desk.story.tree))
