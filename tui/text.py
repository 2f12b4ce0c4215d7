"""Text for the screen: literal, cleaned of what a terminal would obey, and measured in cells.

Model text is data. Nothing here, and no widget that uses it, reads markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len, set_cell_size

from pie_mlx.clean import clean_text as cleaned

_LEVELS = "▁▂▃▄▅▆▇█"


def clean_text(text: str) -> str:
    """Return ``text`` with controls made visible (ESC as ``␛``), CR removed and tabs as spaces; keeps LF."""
    return cleaned(text).replace("\t", "    ")


def one_line(text: str, limit: int = 400) -> str:
    """Return cleaned text on one line, at most ``limit`` characters; runs of white space become one space."""
    return " ".join(clean_text(text[: 2 * limit]).split())[:limit]


def fit(text: str, cells: int, *, right: bool = False) -> str:
    """Return ``text`` in exactly ``cells`` cells: padded, or cut with ``…``."""
    if cells <= 0:
        return ""
    width = cell_len(text)
    if width > cells:
        return set_cell_size(text, cells - 1) + "…"
    return " " * (cells - width) + text if right else text + " " * (cells - width)


def bar(share: float, cells: int) -> str:
    """Return a bar of at most ``cells`` cells, exact to half a cell; ``share`` is clipped to 0..1."""
    full, half = divmod(round(max(0.0, min(1.0, share)) * cells * 2), 2)
    return "━" * full + ("╸" if half else "")


def spark(values: Sequence[float], cells: int, *, top: float | None = None) -> str:
    """Return values as a line of ``cells`` cells; ``top`` is the value of a full cell."""
    return curve(values, cells, 1, top=top)[0]


def curve(values: Sequence[float], cells: int, rows: int, *, top: float | None = None) -> list[str]:
    """Return values as a filled curve, ``rows`` lines of ``cells`` cells, the highest first.

    Where there are more values than cells, a cell shows the largest of its share, so that no peak is lost.
    """
    if not values or cells <= 0:
        return [""] * rows
    shown = _stretched(values, cells)
    highest = max(top if top is not None else max(shown), 1e-12)
    eighths = [max(0 if value <= 0 else 1, min(8 * rows, round(value / highest * 8 * rows))) for value in shown]
    return ["".join(_level(each - 8 * row) for each in eighths) for row in reversed(range(rows))]


def _level(eighths: int) -> str:
    """Return a cell that is filled to so many eighths."""
    return " " if eighths <= 0 else _LEVELS[min(eighths, 8) - 1]


def _stretched(values: Sequence[float], cells: int) -> list[float]:
    """Return one value a cell."""
    number = len(values)
    edges = [index * number / cells for index in range(cells + 1)]
    return [max(values[int(low) : max(int(low) + 1, int(high))]) for low, high in pairwise(edges)]


def count(number: int) -> str:
    """Return a whole number in few characters: ``950``, ``12.3k``, ``1.2M``."""
    if number < 10_000:
        return str(number)
    for unit, power in (("M", 1e6), ("k", 1e3)):
        if number >= power:
            value = number / power
            return f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"
    return str(number)


def quantity(number: int, thing: str) -> str:
    """Return a number of things in words: ``1 page``, ``12 pages``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def seconds(value: float) -> str:
    """Return a duration with the digits that matter."""
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.1f} min"


def clock(value: float) -> str:
    """Return seconds as a clock shows them."""
    minutes, rest = divmod(int(value), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
