"""The page map: one cell a page, by owner and sharing; a cell stands for several pages where there are too many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from pie_mlx.engine.readings import PageReading
from pie_mlx.ids import ContextId, PageId
from pie_mlx.tui.gauges import Gauges
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.widgets.frame.line_view import inks_of

FREE, CACHED, FRESH_FREE = "·", "▒", "◌"
_LEVELS = {"shared": "▂▅█", "own": "░▒▓", "cached": "-~=", "free": "···"}
"""Where a cell stands for several pages: kind to glyphs for up to a third, two thirds, and all of them held."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How pages fall into cells."""

    width: int
    """Cells a row."""
    num_cells: int
    per_cell: int
    """Pages a cell."""
    pitch: int
    """Columns a cell: 2 where the pool is small enough for air between the pages."""

    @classmethod
    def of(cls, num_pages: int, width: int, height: int) -> Layout:
        """Return the finest layout that fits ``width`` by ``height`` cells."""
        width, height = max(1, width), max(1, height)
        if 0 < num_pages <= (width // 2) * height:
            return cls(width // 2, num_pages, 1, 2)
        per_cell = max(1, -(-num_pages // (width * height)))
        return cls(width, -(-num_pages // per_cell), per_cell, 1)


class PageMap(Widget, can_focus=True):
    """Cells with a cursor; what is under it is said by whoever listens to :class:`Pointed`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("l,right", "move(1, 0)", "right", show=False),
        Binding("h,left", "move(-1, 0)", "left", show=False),
        Binding("j,down", "move(0, 1)", "down", show=False),
        Binding("k,up", "move(0, -1)", "up", show=False),
    ]
    cursor: reactive[int] = reactive(0)
    owner: reactive[ContextId | None] = reactive(None)
    """A context whose pages stand out."""

    class Pointed(Message):
        """The cursor stands on these pages."""

        def __init__(self, first: PageId, pages: list[PageReading]) -> None:
            """Name the first page, and what is held of the cell's pages."""
            super().__init__()
            self.first = first
            self.pages = pages

    def __init__(self, gauges: Gauges, *, id: str | None = None) -> None:  # noqa: A002
        """Show the pages of ``gauges``."""
        super().__init__(id=id)
        self.gauges = gauges
        self._by_page: dict[int, PageReading] = {}

    @property
    def num_pages(self) -> int:
        """Pages of the pool."""
        return self.gauges.readings.pages.total if self.gauges.readings is not None else 0

    @property
    def layout_now(self) -> Layout:
        """How pages fall into cells at this size."""
        return Layout.of(self.num_pages, self.size.width, self.size.height)

    def show_pages(self) -> None:
        """Look at the page map again."""
        self._by_page = {page.page: page for page in self.gauges.pages}
        self.refresh()
        self._point()

    def cell_pages(self, cell: int) -> list[PageReading]:
        """Return what is held of a cell's pages."""
        per_cell = self.layout_now.per_cell
        first = cell * per_cell + 1
        found = (self._by_page.get(page) for page in range(first, min(first + per_cell, self.num_pages + 1)))
        return [page for page in found if page is not None]

    def render_line(self, y: int) -> Strip:
        """Draw one row of cells."""
        inks, base, layout = inks_of(self.app), self.visual_style.rich_style, self.layout_now
        segments: list[Segment] = []
        first = y * layout.width
        for cell in range(first, min(first + layout.width, layout.num_cells)):
            glyph, style = self._cell(cell, layout, inks)
            if cell == self.cursor and self.has_focus:
                style = style + Style(reverse=True)
            segments.append(Segment(glyph, base + style))
            if layout.pitch > 1:
                segments.append(Segment(" ", base))
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def _cell(self, cell: int, layout: Layout, inks: Inks) -> tuple[str, Style]:
        """Return a cell's glyph and style."""
        if layout.per_cell > 1:
            return many_pages(self.cell_pages(cell), layout.per_cell, inks)
        page = PageId(cell + 1)
        reading = self._by_page.get(page)
        if reading is None:
            freed = page in self.gauges.freed
            return (FRESH_FREE, inks["busy"]) if freed else (FREE, inks["dim"])
        glyph, style = one_page(reading, self.gauges, inks)
        if self.owner is not None and self.owner in reading.owners:
            return glyph, style + Style(reverse=True)
        return (glyph, style + Style(bold=True, underline=True)) if page in self.gauges.fresh else (glyph, style)

    # --- the cursor -----------------------------------------------------------------------------

    def action_move(self, columns: int, rows: int) -> None:
        """Move the cursor by cells."""
        layout = self.layout_now
        self.cursor = max(0, min(self.cursor + columns + rows * layout.width, layout.num_cells - 1))

    def watch_cursor(self) -> None:
        """Say what the cursor stands on."""
        self._point()

    def watch_has_focus(self, value: bool) -> None:  # noqa: FBT001  Textual calls it
        """Show or hide the cursor."""
        super().watch_has_focus(value)
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is."""
        layout = self.layout_now
        cell = event.y * layout.width + event.x // layout.pitch
        if cell < layout.num_cells:
            self.cursor = cell

    def _point(self) -> None:
        """Tell what is under the cursor."""
        if self.is_mounted and self.num_pages:
            first = PageId(self.cursor * self.layout_now.per_cell + 1)
            self.post_message(self.Pointed(first, self.cell_pages(self.cursor)))


def one_page(page: PageReading, gauges: Gauges, inks: Inks) -> tuple[str, Style]:
    """Return a held page's glyph: its owner's letter, the number of its owners, or the cache's."""
    if not page.owners:
        return CACHED, inks["dim"]
    if len(page.owners) == 1:
        return gauges.letter(page.owners[0]), inks.owner(gauges.rank(page.owners[0]))
    return gauges.sharing(len(page.owners)), inks.heat(min(1.0, len(page.owners) / 8)) + Style(bold=True)


def many_pages(pages: list[PageReading], per_cell: int, inks: Inks) -> tuple[str, Style]:
    """Return the glyph of a cell of several pages: its kind is what most of them are, its level how many are held."""
    shared = sum(1 for page in pages if len(page.owners) > 1)
    own = sum(1 for page in pages if len(page.owners) == 1)
    cached = len(pages) - shared - own
    kinds = {"shared": shared, "own": own, "cached": cached}
    kind = max(kinds, key=lambda name: kinds[name]) if pages else "free"
    level = min(2, 3 * len(pages) // (per_cell + 1))
    role = {"shared": "good", "own": "info", "cached": "dim", "free": "dim"}[kind]
    return _LEVELS[kind][level], inks[role]
