"""Widgets that draw their own lines: only those on the screen are ever made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.geometry import Region, Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from pie_mlx.tui.inks import Inks, inks_for
from pie_mlx.tui.text import fit

Piece = tuple[str, Style]
"""A run of text in one style; the text is cleaned already."""
Line = Sequence[Piece]


def inks_of(app: App[Any]) -> Inks:
    """Return the inks of the app's theme."""
    theme = app.current_theme
    return inks_for(theme.name, dark=theme.dark)


def line_strip(pieces: Iterable[Piece], width: int, base: Style) -> Strip:
    """Return pieces as a line of exactly ``width`` cells, cut with ``…``."""
    segments: list[Segment] = []
    left = width
    for text, style in pieces:
        if left <= 0:
            break
        cells = cell_len(text)
        shown = text if cells <= left else fit(text, left)
        segments.append(Segment(shown, base + style))
        left -= min(cells, left)
    if left > 0:
        segments.append(Segment(" " * left, base))
    return Strip(segments, width)


class LineView(ScrollView, can_focus=True):
    """Rows of one line each, drawn when they are on the screen."""

    DEFAULT_CSS: ClassVar[str] = """
    LineView { height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; overflow-x: hidden; }
    """

    num_drawn = 0
    """How many lines were drawn since the start; what a key costs can be read off it."""

    @property
    def inks(self) -> Inks:
        """The inks of the theme."""
        return inks_of(self.app)

    @property
    def base(self) -> Style:
        """The style that every piece is laid over: the widget's own background."""
        return self.visual_style.rich_style

    def set_num_rows(self, number: int) -> None:
        """Say how many rows there are, and draw again."""
        self.virtual_size = Size(0, number)
        self.keep_in_sight()
        self.refresh()

    def on_resize(self) -> None:
        """Keep in sight what must be, in a window of another size."""
        self.keep_in_sight()

    def keep_in_sight(self) -> None:
        """Scroll to what must stay on the screen when the rows or the window change; here nothing must."""

    def num_rows(self) -> int:
        """Return how many rows there are."""
        return self.virtual_size.height

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Move the scroll bar too, also one that is on its way: Textual moves only one that is shown already."""
        super().watch_scroll_y(old_value, new_value)
        self.vertical_scrollbar.position = new_value

    def render_line(self, y: int) -> Strip:
        """Draw the row at line ``y`` of the window."""
        row = y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        if row >= self.num_rows() or width <= 0:
            return Strip.blank(max(width, 0), self.base)
        LineView.num_drawn += 1
        return self.draw(row, width)

    def draw(self, row: int, width: int) -> Strip:
        """Draw one row."""
        raise NotImplementedError

    def show_row(self, row: int) -> None:
        """Scroll so that a row is on the screen."""
        height = self.scrollable_content_region.height
        if height > 0:
            self.scroll_to_region(Region(0, row, 1, 1), animate=False, force=True)

    def show_end(self) -> None:
        """Scroll to the last row, now and not after the next refresh, when other rows may be there."""
        self.scroll_to(y=self.max_scroll_y, animate=False, force=True)

    def at_bottom(self) -> bool:
        """Whether the last row is on the screen."""
        return self.scroll_offset.y >= self.max_scroll_y


class TextLines(LineView):
    """Lines that were made beforehand; no cursor."""

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None, classes: str | None = None) -> None:  # noqa: A002
        """Show ``lines``."""
        super().__init__(id=id, classes=classes)
        self._lines: list[Line] = list(lines)

    def set_lines(self, lines: Iterable[Line]) -> None:
        """Show other lines."""
        self._lines = list(lines)
        self.set_num_rows(len(self._lines))

    def on_mount(self) -> None:
        """Measure what there is."""
        self.set_num_rows(len(self._lines))

    def draw(self, row: int, width: int) -> Strip:
        """Draw one line."""
        return line_strip(self._lines[row], width, self.base)

    @property
    def text(self) -> str:
        """All lines as plain text."""
        return "\n".join("".join(piece for piece, _style in line).rstrip() for line in self._lines)


class CursorLines(TextLines):
    """Lines with a cursor on one of them."""

    cursor: reactive[int] = reactive(0)

    def validate_cursor(self, cursor: int) -> int:
        """Keep the cursor on a line."""
        return max(0, min(cursor, self.num_rows() - 1))

    def watch_cursor(self, cursor: int) -> None:
        """Keep the cursor on the screen."""
        self.show_row(cursor)
        self.refresh()

    def draw(self, row: int, width: int) -> Strip:
        """Draw one line, with a mark before the one under the cursor."""
        is_here = row == self.cursor and self.has_focus
        base = self.base + self.inks.cursor if is_here else self.base
        mark = ("❯" if is_here else " ", self.inks["accent"])
        return line_strip([mark, *self._lines[row]], width, base)
