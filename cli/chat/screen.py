"""A terminal as the chat writes to it: finished lines, and under them a tail that can be taken back.

The tail is only ever appended to; it is erased once, when its final form is known. Lines are broken here, never by
the terminal, and wide characters are counted at their widest, so the rows to erase are known whatever the terminal
makes of an emoji. A tail that the screen could not hold, or that a resize has moved, stays as it is.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, TextIO

from pie_mlx.cli.clean import clean_text
from pie_mlx.cli.render import ColorWish, wants_color

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MIN_WIDTH = 8
_TAB = "    "
_WIDENING = "\ufe0f"
"""Asks for the wide form of the character before it."""


class Screen:
    """One terminal. All text is cleaned and taken literally."""

    def __init__(self, stream: TextIO, color: ColorWish = "auto") -> None:
        """Write to ``stream``."""
        self._stream = stream
        self._has_color = wants_color(color, stream)
        self._console = self._make_console()
        self._row = 0
        self._column = 0
        self._size = self.size()
        self._is_stuck = False
        self._style = ""

    def _make_console(self) -> Console:
        """Return the console that renders; nothing in text is markup to it, and no style has a background."""
        from rich.console import Console
        from rich.theme import Theme

        plain = {"markdown.code": "bold", "markdown.block_quote": "italic", "markdown.item.bullet": "bold"}
        return Console(
            file=io.StringIO(),
            force_terminal=self._has_color,
            no_color=not self._has_color,
            color_system="auto" if self._has_color else None,
            theme=Theme(plain),
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    @property
    def has_color(self) -> bool:
        """Whether styles are shown."""
        return self._has_color

    def size(self) -> tuple[int, int]:
        """Return columns and rows now."""
        try:
            columns, rows = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            columns, rows = 80, 24
        return max(columns or 80, _MIN_WIDTH), max(rows or 24, 2)

    # --- finished text ---------------------------------------------------------------------

    def line(self, text: str = "", *, style: str = "") -> None:
        """Write finished lines under each other; long ones are folded at words."""
        from rich.text import Text

        self.render(Text(clean_text(text), style=style))

    def render(self, *renderables: RenderableType) -> None:
        """Write something finished, in one write together with the erasing of a tail before it."""
        self._console.width = self.size()[0] - 1
        with self._console.capture() as capture:
            for renderable in renderables:
                self._console.print(renderable)
        lines = [line.rstrip(" ") for line in capture.get().split("\n")]
        self._write(self._take_back() + "\n".join(lines))

    def control(self, sequence: str) -> None:
        """Send a sequence of our own making, such as one for the clipboard."""
        self._write(sequence)

    # --- the tail --------------------------------------------------------------------------

    @property
    def has_tail(self) -> bool:
        """Whether there is a tail."""
        return self._row > 0 or self._column > 0

    @property
    def is_stuck(self) -> bool:
        """Whether the tail can no longer be taken back: it will stay as it is."""
        if self.has_tail and self._size != self.size():
            self._is_stuck = True
        return self._is_stuck

    def append(self, text: str, *, style: str = "") -> None:
        """Put text behind the tail; nothing that is on the screen is painted again."""
        if not text:
            return
        if not self.has_tail:
            self._size = self.size()
            self._is_stuck = False
        self._write(self._styled(self._broken(clean_text(text)), style))
        if self._row + 1 >= self._size[1]:
            self._is_stuck = True

    def erase(self) -> None:
        """Take the tail back; one that is stuck is only ended."""
        self._write(self._take_back())

    def end_tail(self) -> None:
        """Keep the tail as finished text."""
        if self.has_tail:
            self._write("\n" if self._column else "")
            self._forget()

    def _take_back(self) -> str:
        """Return what erases the tail, or ends one that is stuck; forget it."""
        if not self.has_tail:
            return ""
        if self.is_stuck:
            sequence = "\n" if self._column else ""
        else:
            sequence = "\r" + (f"\x1b[{self._row}A" if self._row else "") + "\x1b[J"
        self._forget()
        return sequence

    def _forget(self) -> None:
        self._row = self._column = 0
        self._is_stuck = False

    def _broken(self, text: str) -> str:
        """Break text into rows that the terminal has no reason to break again, and follow the cursor."""
        width = self.size()[0] - 1
        out: list[str] = []
        for character in text.replace("\t", _TAB):
            if character == "\n":
                out.append("\n")
                self._row, self._column = self._row + 1, 0
                continue
            columns = widest(character)
            if self._column + columns > width:
                out.append("\n")
                self._row, self._column = self._row + 1, 0
            out.append(character)
            self._column += columns
        return "".join(out)

    def _styled(self, text: str, style: str) -> str:
        """Return text in a style."""
        if not style or not self._has_color:
            return text
        from rich.style import Style

        parsed = Style.parse(style)
        return parsed.render(text, color_system=self._console._color_system)  # noqa: SLF001  (rich has no public way)

    def _write(self, text: str) -> None:
        """Write and flush."""
        if text:
            self._stream.write(text)
            self._stream.flush()


def widest(character: str) -> int:
    """Return the columns that a character takes in the terminal that gives it most."""
    from wcwidth import wcwidth

    if character == _WIDENING or "\U0001f1e6" <= character <= "\U0001f1ff":
        return 2
    return max(wcwidth(character), 0)
