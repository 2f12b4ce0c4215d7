"""The tree screen: the tree or another view of it, a node's detail, levels, pool and log."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import ContentSwitcher

from pie_mlx.search.trace_events import FinishReason
from pie_mlx.tui.bridge import Batch
from pie_mlx.tui.desk import Desk
from pie_mlx.tui.looks import LOOKS
from pie_mlx.tui.screens.engine import EngineScreen
from pie_mlx.tui.screens.replaying import Replaying
from pie_mlx.tui.screens.searching import Searching
from pie_mlx.tui.screens.steering import STEERING, Steering
from pie_mlx.tui.story import Change
from pie_mlx.tui.text import clock, quantity
from pie_mlx.tui.widgets.frame.line_view import TextLines
from pie_mlx.tui.widgets.frame.table import Table
from pie_mlx.tui.widgets.tree.detail import Detail
from pie_mlx.tui.widgets.tree.find_bar import FindBar
from pie_mlx.tui.widgets.tree.strips import DepthStrip, LogView, PoolGauge
from pie_mlx.tui.widgets.tree.tree_view import TreeHead, TreeView
from pie_mlx.tui.widgets.tree.views import LEVEL_COLUMNS, Flame, best_path_lines, level_rows

VIEWS = ("tree", "best", "levels", "flame")
_ALARMING = (FinishReason.STARVED, FinishReason.FAILED)
_END_ROLES: dict[str, str] = {
    reason: "good" if reason is FinishReason.ANSWER else "bad" if reason in _ALARMING else "warn"
    for reason in FinishReason
}
"""The colour of how an unchecked run ended."""


class TreeScreen(Steering, Replaying, Searching):
    """Watch a search grow, and steer it."""

    name_in_help = "Tree"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "pause", "pause/go on"),
        Binding("full_stop", "step", "step"),
        Binding("enter", "detail", "detail"),
        Binding("z", "follow", "follow"),
        Binding("x", "prune", "prune"),
        Binding("r", "expand", "expand again"),
        Binding("i", "edit", "edit"),
        Binding("I", "insert", "add a thought", show=False),
        Binding("L", "lock", "lock"),
        Binding("a", "accept", "accept"),
        Binding("u", "undo", "undo", show=False),
        Binding("S", "cancel_run", "end the run", show=False),
        Binding("c", "chat", "to chat"),
        Binding("d", "diff", "diff"),
        Binding("slash", "find", "find"),
        Binding("n", "find_next(1)", "next match", show=False),
        Binding("N", "find_next(-1)", "previous match", show=False),
        Binding("f", "filter", "filter"),
        Binding("v", "view", "view"),
        Binding("left_square_bracket", "back(1)", "back", key_display="["),
        Binding("right_square_bracket", "back(-1)", "forward", key_display="]"),
        Binding("left_parenthesis", "jump(0)", "to the beginning", show=False),
        Binding("right_parenthesis", "jump(1)", "to the end, and on", show=False),
        Binding("left_curly_bracket", "speed(-1)", "slower", show=False),
        Binding("right_curly_bracket", "speed(1)", "faster", show=False),
        Binding("s", "search", "new search"),
        Binding("E", "export", "export"),
        Binding("P", "pages", "pages"),
        Binding("y", "copy", "copy the thought", show=False),
        Binding("escape", "clear", "clear filter and mark", show=False),
        Binding("tab", "app.focus_next", "next pane", show=False),
    ]

    def __init__(self, desk: Desk) -> None:
        """Share the desk."""
        super().__init__(desk)
        self.wants_detail: bool | None = None
        """Whether the detail pane is open; None leaves it to the width."""

    def content(self) -> ComposeResult:
        """Tree and detail side by side; levels, pool and log below."""
        story = self.desk.story
        with Horizontal(id="middle"):
            with ContentSwitcher(initial="tree", id="views"):
                with Vertical(id="tree"):
                    yield TreeHead()
                    yield TreeView(story, id="tree-view")
                yield TextLines(id="best")
                yield Table(LEVEL_COLUMNS, id="levels")
                yield Flame(story, id="flame")
            yield Detail(id="detail")
        with Horizontal(id="below"):
            with Vertical(id="measures"):
                yield DepthStrip(story, id="depths")
                yield PoolGauge(story, id="pool")
            yield LogView(story, id="log")
        yield FindBar()

    def on_mount(self) -> None:
        """Begin at the tree; name the panes."""
        titles = {"#middle": "", "#detail": "detail", "#depths": "levels", "#pool": "pool", "#log": "log"}
        for pane, title in titles.items():
            self.query_one(pane).border_title = title
        self.tree_view.follows = self.desk.run is not None or self.desk.sources.live
        self.tree_view.focus()

    @property
    def tree_view(self) -> TreeView:
        """The tree."""
        return self.query_one("#tree-view", TreeView)

    @property
    def view(self) -> str:
        """Which view is shown: one of :data:`VIEWS`."""
        return self.query_one("#views", ContentSwitcher).current or "tree"

    # --- what happened --------------------------------------------------------------------------

    def take(self, batch: Batch, change: Change) -> None:
        """Show new events."""
        if batch.search or batch.header:
            self.show_change(change)
        elif batch.readings is not None:
            self.show_state()

    def begin_anew(self) -> None:
        """Show another run from its first event on."""
        self.stop_playing()
        self.forget_steering()
        self.action_clear()
        self.tree_view.follows = True
        self.catch_up()

    def catch_up(self) -> None:
        """Show the story as it is."""
        self.show_change(Change(rebuilt=True))

    def show_change(self, change: Change) -> None:
        """Let every pane look again at what changed."""
        self.tree_view.show_change(change)
        self.query_one(DepthStrip).show_change()
        self.query_one(PoolGauge).refresh()
        self.query_one(LogView).show_change()
        self._show_view()
        self.show_state()

    def _show_view(self) -> None:
        """Draw the other view, if one is shown."""
        if self.view == "best":
            lines = self.query_one("#best", TextLines)
            lines.set_lines(best_path_lines(self.desk.story, self.app, lines.size.width - 2))
        elif self.view == "levels":
            self.query_one("#levels", Table).set_rows(level_rows(self.desk.story, self.app))
        elif self.view == "flame":
            self.query_one(Flame).show_change()

    def show_state(self) -> None:
        """Say in the title what is shown, and how it stands."""
        story = self.desk.story
        header = story.header
        name = story.path.name if story.path is not None else ""
        parts = [header.task, story.start.strategy if story.start else "", header.model] if header else [name]
        parts.append(story.tree.question)
        self.entitle(" · ".join(part for part in parts if part), *self._state())
        self.refresh_bindings()
        counts = story.tree.counts()
        order = [status for status in LOOKS if counts.get(status)]
        legend = "  ".join(f"{LOOKS[status].glyph} {counts[status]} {status.value}" for status in order)
        self.query_one("#views").border_subtitle = legend
        self.query_one(TreeHead).caption = quantity(len(story.tree), "thought")

    def _state(self) -> tuple[str, str]:
        """Return how the run stands, in words, and their role."""
        story = self.desk.story
        time = clock(story.elapsed_s)
        if story.fault is not None:
            return f"✗ {story.fault}", "bad"
        if not story.at_end:
            sign = "▶" if self.is_playing else "‖"
            return f"⟲ {sign} {story.position}/{len(story.events)}  {time}  {self.speed:g}×", "warn"
        if story.tree.outcome is not None:
            outcome = story.tree.outcome
            sign, role = {True: ("✓ ", "good"), False: ("✗ ", "bad"), None: ("■ ", "")}[outcome.solved]
            return f"{sign}{outcome.reason} {time}", _END_ROLES[outcome.reason] if outcome.solved is None else role
        if story.tree.paused or self._is_braked:
            return f"‖ paused {time}", "warn"
        if not story.events:
            is_free = self.desk.run is None and self.desk.sources.open_search is not None
            return ("s begins a search" if is_free else "waiting for the first event"), "dim"
        return f"● running {time}", "good"

    def on_tree_view_moved(self, message: TreeView.Moved) -> None:
        """Show the node under the cursor."""
        self.query_one(Detail).show_node(message.node, self.desk.story)

    # --- panes ------------------------------------------------------------------------------------

    def action_detail(self) -> None:
        """Open or close the detail pane."""
        pane = self.query_one(Detail)
        self.wants_detail = not pane.display
        self.set_class(self.wants_detail, "-detail")
        self.set_class(not self.wants_detail, "-no-detail")

    def action_follow(self) -> None:
        """Let the cursor follow what is written, or stay."""
        view = self.tree_view
        view.follows = not view.follows
        if view.follows and self.desk.story.latest is not None:
            view.go_to(self.desk.story.latest)
        self.notify("the cursor follows" if view.follows else "the cursor stays", markup=False, timeout=2)

    def action_view(self) -> None:
        """Go on to the next view: tree, best path, levels, flame."""
        switcher = self.query_one("#views", ContentSwitcher)
        switcher.current = VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]
        names = {"tree": self.tree_view, "best": self.query_one("#best"), "flame": self.query_one(Flame)}
        names.get(self.view, self.query_one("#levels", Table).body).focus()
        # Sizes are known only after the layout; the best path is wrapped to its width.
        self.call_after_refresh(self._show_view)

    async def action_pages(self) -> None:
        """Show the pages of the node on the engine screen; without an engine, the curve is all there is."""
        if self.desk.sources.engine is None:
            story = self.desk.story
            words = f"the trace holds the pool's curve only: peak {story.peak_pages}, now {story.tree.pool.held} held"
            self.notify(words, markup=False)
            return
        node = self.tree_view.node
        await self.app.run_action("app.go('engine')")
        if node is not None and isinstance(self.app.screen, EngineScreen):
            self.app.screen.mark_node(node.id)

    def action_copy(self) -> None:
        """Copy the thought under the cursor."""
        node = self.tree_view.node
        if node is not None:
            self.app.copy_to_clipboard(node.text)
            self.notify(f"copied {quantity(len(node.text), 'character')}", markup=False, timeout=2)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer steering only where there is a run to steer."""
        if action in STEERING and not self.desk.is_steerable:
            return None
        if action == "search" and (self.desk.is_steerable or self.desk.sources.open_search is None):
            return None
        if action == "pause" and not self.desk.story.events:
            return None
        return super().check_action(action, parameters)
