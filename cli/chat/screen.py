"""A terminal as the chat writes to it: finished lines, and under them a tail that can be taken back.

The tail is only ever appended to; it is erased once, when its final form is known. Lines are broken here, never by
the terminal, and wide characters are counted at their widest, so the rows to erase are known whatever the terminal
makes of an emoji. A word is shown when it is whole, so that it need not be broken. A tail that the screen could not
hold, or that a resize has moved, stays as it is.
"""

from __future__ import annotations

import io
import os
import re
from typing import TYPE_CHECKING, TextIO

from pie_mlx.cli.clean import clean_text
from pie_mlx.cli.render import ColorWish, wants_color

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_MIN_WIDTH = 8
_TAB = "    "
_WIDENING = "\ufe0f"
"""Asks for the wide form of the character before it."""
_ANYWHERE = r"\u2e80-\ufdff\uff00-\uffdc\U00020000-\U0003ffff"
_UNITS = re.compile(rf"\s|[{_ANYWHERE}]|[^\s{_ANYWHERE}]+")
"""A white space, a character of a script that breaks anywhere, or a word."""


class Screen:
    """One terminal. All text is cleaned and taken literally."""

    def __init__(self, stream: TextIO, color: ColorWish = "auto") -> None:
        """Write to ``stream``; a character that its encoding lacks is escaped instead of failing."""
        self._stream = stream
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
        self._has_color = wants_color(color, stream)
        self._console = self._make_console()
        self._row = 0
        self._column = 0
        self._size = self.size()
        self._is_stuck = False
        self._held = ""
        self._held_style = ""

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
        shown = [self._rendered(renderable) for renderable in renderables]
        self._write(self._take_back() + "".join(f"{text}\n" for text in shown))

    def _rendered(self, renderable: RenderableType) -> str:
        """Return something as lines, without the empty ones that Rich puts around it."""
        with self._console.capture() as capture:
            self._console.print(renderable)
        return "\n".join(line.rstrip(" ") for line in capture.get().split("\n")).strip("\n")

    def control(self, sequence: str) -> None:
        """Send a sequence of our own making, such as one for the clipboard."""
        self._write(sequence)

    # --- the tail --------------------------------------------------------------------------

    @property
    def has_tail(self) -> bool:
        """Whether there is a tail."""
        return self._row > 0 or self._column > 0 or self._held != ""

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
        units = _UNITS.findall(self._held + clean_text(text).replace("\t", _TAB))
        width = self.size()[0] - 1
        # A last word may go on in the next piece; one as long as half a row is not waited for.
        is_whole = units[-1].isspace() or columns_of(units[-1]) > width // 2
        self._held, self._held_style = ("" if is_whole else units.pop()), style
        self._place(units, width, style)

    def show_held(self) -> None:
        """Show the last word of the tail, although it may go on."""
        if self._held:
            held, self._held = self._held, ""
            self._place([held], self.size()[0] - 1, self._held_style)

    def _place(self, units: list[str], width: int, style: str) -> None:
        """Write words and white space, breaking rows between them."""
        self._write(self._styled("".join(self._broken(unit, width) for unit in units), style))
        if self._row + 1 >= self._size[1]:
            self._is_stuck = True

    def erase(self) -> None:
        """Take the tail back; one that is stuck is only ended."""
        if self.is_stuck:
            self.show_held()
        self._write(self._take_back())

    def end_tail(self) -> None:
        """Keep the tail as finished text."""
        self.show_held()
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
        self._held = ""
        self._is_stuck = False

    def _broken(self, unit: str, width: int) -> str:
        """Return one word or white space with the breaks that it needs in its row, and follow the cursor."""
        if unit == "\n":
            self._row, self._column = self._row + 1, 0
            return "\n"
        if unit == " " and self._column >= width:
            return ""
        out: list[str] = []
        if self._column and self._column + columns_of(unit) > width >= columns_of(unit):
            out.append("\n")
            self._row, self._column = self._row + 1, 0
        for character in unit:
            columns = columns_of(character)
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


def columns_of(text: str) -> int:
    """Return the columns that a text takes in the terminal that gives it most."""
    from wcwidth import wcwidth

    if text.isascii():
        return len(text)
    return sum(
        2 if character == _WIDENING or "\U0001f1e6" <= character <= "\U0001f1ff" else max(wcwidth(character), 0)
        for character in text
    )
