"""The only writer of stdout: data, cleaned, flushed piece by piece, and without ANSI unless a terminal reads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Literal, TypeAlias

from pie_mlx.cli.clean import clean_text, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

ColorWish: TypeAlias = Literal["auto", "always", "never"]
"""What ``--color`` says."""

_WIDE = 100_000
"""Columns of a pipe: it has no edge, so nothing is wrapped or cut."""


class StdoutClosedError(Exception):
    """The reader of stdout has gone (``| head``): nothing more can be said, and that is no failure."""


def wants_color(wish: ColorWish, stream: IO[str]) -> bool:
    """Whether a stream gets ANSI: ``--color``, then NO_COLOR, TERM=dumb, and whether it is a terminal."""
    if wish != "auto":
        return wish == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return is_terminal(stream)


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether a person reads (or types) there."""
    return stream is not None and not stream.closed and stream.isatty()


def make_console(stream: IO[str], wish: ColorWish) -> Console:
    """Return a Rich console on ``stream`` that takes text literally and sends no ANSI where none is wanted."""
    from rich.console import Console

    colored = wants_color(wish, stream)
    return Console(
        file=stream,
        force_terminal=colored,
        no_color=not colored,
        color_system="auto" if colored else None,
        width=None if is_terminal(stream) else _WIDE,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


class Stdout:
    """Standard output of one command."""

    def __init__(self, color: ColorWish = "auto") -> None:
        """Write to ``sys.stdout``; a character that its encoding lacks is escaped instead of failing."""
        self._stream = sys.stdout
        self._color = color
        reconfigure = getattr(self._stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads it."""
        return is_terminal(self._stream)

    @property
    def width(self) -> int:
        """Columns of the terminal; a pipe has no edge."""
        return make_console(self._stream, self._color).width

    def text(self, text: str) -> None:
        """Write text, cleaned, and flush: the reader sees each piece when it comes.

        Raises:
            StdoutClosedError: nobody reads any more.
        """
        with _watching_pipe():
            self._stream.write(clean_text(text))
            self._stream.flush()

    def line(self, text: str = "") -> None:
        """Write one line, cleaned."""
        self.text(text + "\n")

    def json(self, value: object, *, compact: bool = False) -> None:
        """Write one JSON value: indented on a terminal, on one line in a pipe or where ``compact``."""
        indent = 2 if self.is_terminal and not compact else None
        with _watching_pipe():
            self._stream.write(to_json(value, indent=indent) + "\n")
            self._stream.flush()

    def show(self, *renderables: RenderableType) -> None:
        """Write Rich renderables; in a pipe they are plain, never wrapped, and lines end where their text ends."""
        console = make_console(self._stream, self._color)
        with console.capture() as capture:
            for renderable in renderables:
                console.print(renderable, soft_wrap=not self.is_terminal)
        lines = (line.rstrip(" ") for line in capture.get().split("\n"))
        with _watching_pipe():
            self._stream.write("\n".join(lines))
            self._stream.flush()

    def pairs(self, rows: Iterable[tuple[str, str]]) -> None:
        """Write labels and values as two columns without a heading."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for label, value in rows:
            table.add_row(Text(clean_text(label)), Text(clean_text(value)))
        self.show(table)

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        """Write rows as a table; ``right`` names the columns (from 0) of numbers."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for index, name in enumerate(header):
            table.add_column(name, justify="right" if index in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(clean_text(cell)) for cell in row))
        self.show(table)


@contextmanager
def _watching_pipe() -> Iterator[None]:
    """Turn a broken pipe into :class:`StdoutClosedError`."""
    try:
        yield
    except BrokenPipeError as error:
        raise StdoutClosedError from error


def abandon_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush cannot fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
