"""A table with a fixed head whose rows are drawn when they are on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.strip import Strip
from textual.widget import Widget

from pie_mlx.tui.text import fit
from pie_mlx.tui.widgets.frame.line_view import CursorLines, Line, Piece, inks_of, line_strip


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, its cells (0 takes what is left), the side, and the least table that shows it."""

    head: str
    cells: int
    right: bool = False
    least_width: int = 0


class _Head(Widget):
    """The line above the rows."""

    DEFAULT_CSS: ClassVar[str] = "_Head { height: 1; }"

    def __init__(self, table: Table) -> None:
        """Stand above a table's rows."""
        super().__init__()
        self._table = table

    def render_line(self, y: int) -> Strip:
        """Draw the heads."""
        style = inks_of(self.app)["head"]
        heads = [(column.head, style) for column in self._table.columns]
        line = [(" ", style), *self._table.lay_out(heads, self.size.width - 2)]
        return line_strip(line, self.size.width, self.visual_style.rich_style)


class _Body(CursorLines):
    """The rows."""

    def __init__(self, table: Table) -> None:
        """Hold a table's rows."""
        super().__init__()
        self._table = table

    def draw(self, row: int, width: int) -> Strip:
        """Lay a row's cells out."""
        is_here = row == self.cursor and self.has_focus
        base = self.base + self.inks.cursor if is_here else self.base
        mark: Piece = ("❯" if is_here else " ", self.inks["accent"])
        return line_strip([mark, *self._table.lay_out(self._lines[row], width - 1)], width, base)


class Table(Vertical):
    """Rows of styled cells under heads."""

    DEFAULT_CSS: ClassVar[str] = "Table { height: 1fr; }"

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:  # noqa: A002
        """Make a table with these columns and no row."""
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.body = _Body(self)

    def compose(self) -> ComposeResult:
        """Head and rows."""
        yield _Head(self)
        yield self.body

    def set_rows(self, rows: Sequence[Line]) -> None:
        """Show other rows: one piece a column."""
        self.body.set_lines(rows)
        self.body.cursor = min(self.body.cursor, max(0, len(rows) - 1))

    @property
    def text(self) -> str:
        """All rows as plain text."""
        return self.body.text

    def lay_out(self, cells: Line, width: int) -> list[Piece]:
        """Return a row's cells at their columns' widths; columns that do not fit are left out."""
        shown = [
            (column, cell) for column, cell in zip(self.columns, cells, strict=True) if width >= column.least_width
        ]
        fixed = sum(column.cells for column, _cell in shown) + len(shown) - 1
        wide = max(0, width - fixed)
        out: list[Piece] = []
        for column, (text, style) in shown:
            out += [(fit(text, column.cells or wide, right=column.right), style), (" ", Style())]
        return out[:-1]
