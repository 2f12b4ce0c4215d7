"""The engine screen: the page map, who holds pages, who runs, who waits for what, and the curves."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.timer import Timer

from pie_mlx.engine import Engine
from pie_mlx.search.tree import NodeId
from pie_mlx.tui.bridge import Batch
from pie_mlx.tui.desk import Desk
from pie_mlx.tui.screens.page import Page
from pie_mlx.tui.story import Change
from pie_mlx.tui.widgets.engine.page_map import PageMap
from pie_mlx.tui.widgets.engine.tables import (
    CONTEXT_COLUMNS,
    REQUEST_COLUMNS,
    context_rows,
    curve_lines,
    legend_lines,
    page_words,
    request_rows,
    waiting_lines,
)
from pie_mlx.tui.widgets.frame.line_view import TextLines, inks_of
from pie_mlx.tui.widgets.frame.table import Table

_SETTLE_S = 1.0
"""Seconds after which fresh and freed pages look like the others."""


class EngineScreen(Page):
    """Watch pages light up and go dark."""

    name_in_help = "Engine"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next pane"),
        Binding("R", "read", "read again"),
        Binding("o", "owner", "mark this owner"),
        Binding("C", "clear_cache", "clear the cache"),
        Binding("w", "app.alarms", "watchdog"),
        Binding("escape", "unmark", "no mark", show=False),
    ]

    def __init__(self, desk: Desk) -> None:
        """Share the desk."""
        super().__init__(desk)
        self._settling: Timer | None = None

    def content(self) -> ComposeResult:
        """Map on the left, tables on the right, curves below."""
        with Horizontal(id="middle"):
            with Vertical(id="map-pane"):
                yield PageMap(self.desk.gauges, id="map")
                yield TextLines(id="legend")
            with Vertical(id="tables"):
                yield Table(CONTEXT_COLUMNS, id="contexts")
                yield Table(REQUEST_COLUMNS, id="requests")
        with Horizontal(id="below"):
            yield TextLines(id="curves")
            yield TextLines(id="waiting")

    def on_mount(self) -> None:
        """Name the panes."""
        titles = {"#map-pane": "pages", "#contexts": "contexts", "#requests": "requests", "#curves": "steps"}
        for pane, title in {**titles, "#waiting": "waiting"}.items():
            self.query_one(pane).border_title = title
        for quiet in ("#legend", "#curves", "#waiting"):
            self.query_one(quiet).can_focus = False
        self.query_one(PageMap).focus()

    def on_screen_resume(self) -> None:
        """Ask for page maps while the screen is shown."""
        self.desk.bridge.wants_pages = True
        super().on_screen_resume()

    def on_screen_suspend(self) -> None:
        """A page map costs time on a large pool: no longer ask."""
        self.desk.bridge.wants_pages = False

    def take(self, batch: Batch, change: Change) -> None:
        """Show the new readings."""
        if not self.is_current:
            return
        if batch.readings is not None:
            self._show()
        elif batch.engine:
            self._say_state()

    def catch_up(self) -> None:
        """Read the engine now."""
        self.action_read()

    def action_read(self) -> None:
        """Read the engine now; nothing else does while it is idle."""
        readings, pages = self.desk.bridge.read()
        self.desk.gauges.feed([], readings, pages)
        self._show()

    def _show(self) -> None:
        """Draw everything again."""
        gauges, inks = self.desk.gauges, inks_of(self.app)
        self.query_one(PageMap).show_pages()
        self.query_one("#contexts", Table).set_rows(context_rows(gauges, inks))
        self.query_one("#requests", Table).set_rows(request_rows(gauges, inks))
        self.query_one("#curves", TextLines).set_lines(curve_lines(gauges, inks, self.query_one("#curves").size.width))
        self.query_one("#waiting", TextLines).set_lines(waiting_lines(gauges, inks))
        per_cell = self.query_one(PageMap).layout_now.per_cell
        self.query_one("#map-pane").border_title = "pages" if per_cell == 1 else f"pages, {per_cell} a cell"
        if gauges.readings is not None:
            self.query_one("#map-pane").border_subtitle = f"each shared {gauges.readings.pages.sharing_ratio:.1f}×"
        self._say_state()
        if gauges.fresh or gauges.freed:
            if self._settling is not None:
                self._settling.stop()
            self._settling = self.set_timer(_SETTLE_S, self._settle)

    def _settle(self) -> None:
        """Let new pages be like the others."""
        self._settling = None
        if self.desk.gauges.settle():
            self.query_one(PageMap).refresh()

    def on_resize(self) -> None:
        """Curves are as long as there is room."""
        self.call_after_refresh(self._show)

    def _say_state(self) -> None:
        """Say in the title which engine this is, and how it stands."""
        engine, remote, gauges = self.desk.sources.engine, self.desk.sources.remote, self.desk.gauges
        subject = remote.subject if remote is not None else "engine" if engine is None else _subject(engine)
        if remote is not None and remote.is_lost:
            self.entitle(subject, "✗ no answer", "bad")
            return
        if gauges.readings is None:
            self.entitle(subject if remote is not None else "a trace has no engine", "", "dim")
            return
        if gauges.ended is not None or not gauges.readings.is_alive:
            self.entitle(subject, "✗ the engine has ended", "bad")
            return
        busy = len(gauges.readings.requests)
        self.entitle(subject, f"● {busy} requests" if busy else "○ idle", "good" if busy else "dim")

    # --- keys -------------------------------------------------------------------------------------

    def on_page_map_pointed(self, message: PageMap.Pointed) -> None:
        """Say what is under the cursor."""
        gauges, inks = self.desk.gauges, inks_of(self.app)
        words = page_words(message.first, message.pages, gauges, self.query_one(PageMap).layout_now.per_cell)
        self.query_one("#legend", TextLines).set_lines([*legend_lines(gauges, inks), [(words, inks["strong"])]])

    def action_owner(self) -> None:
        """Let all pages of one context stand out: the map's under its cursor, or the table's."""
        page_map = self.query_one(PageMap)
        table = self.query_one("#contexts", Table)
        if table.body.has_focus and self.desk.gauges.readings is not None:
            contexts = sorted(self.desk.gauges.readings.contexts, key=lambda c: (-c.num_pages, c.id))
            page_map.owner = contexts[table.body.cursor].id if contexts else None
            return
        under = page_map.cell_pages(page_map.cursor)
        owners = under[0].owners if under else ()
        page_map.owner = owners[0] if owners else None

    def mark_node(self, node: NodeId) -> None:
        """Let the pages of a search's node stand out."""
        readings = self.desk.gauges.readings
        found = [c.id for c in readings.contexts if c.name.endswith(f"/{node}")] if readings is not None else []
        self.query_one(PageMap).owner = found[0] if found else None

    def action_unmark(self) -> None:
        """Let no pages stand out."""
        self.query_one(PageMap).owner = None

    def action_clear_cache(self) -> None:
        """Drop the prefix cache; whoever asks again computes again."""
        engine = self.desk.sources.engine
        if engine is None:
            self.notify("only the engine of this workbench can be steered from here", markup=False)
        else:
            self.notify(f"the prefix cache is empty: {engine.clear_cache()} pages came back", markup=False)
            self.action_read()


def _subject(engine: Engine) -> str:
    """Return which model runs on what."""
    facts = engine.facts
    return f"{facts.model} · {facts.device} · {facts.dtype} · {engine.settings.page_size} tokens a page"
