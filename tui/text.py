"""Text for the screen: literal, cleaned of what a terminal would obey, and measured in cells.

Model text is data. Nothing here, and no widget that uses it, reads markup.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)
_C1 = range(0x80, 0xA0)
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"


def _table() -> dict[int, str]:
    """Map every character that a terminal might obey to what is shown in its place."""
    table = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    table |= {0x7F: "␡", 0x0D: ""}
    table |= {code: f"\\x{code:02x}" for code in _C1}
    table |= {code: f"\\u{code:04x}" for code in _BIDI}
    table |= dict.fromkeys(range(0xD800, 0xE000), "�")
    return table


_TABLE = _table()


def clean_text(text: str) -> str:
    """Return ``text`` with controls made visible (ESC as ``␛``), CR removed and tabs as spaces; keeps LF."""
    return text.translate(_TABLE).replace("\t", "    ")


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
    """Return a bar over ``cells`` cells, exact to an eighth of a cell; ``share`` is clipped to 0..1."""
    eighths = round(max(0.0, min(1.0, share)) * cells * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(cells)


def spark(values: Sequence[float], cells: int, *, top: float | None = None) -> str:
    """Return the last values as a sparkline of at most ``cells`` cells; ``top`` is the value of a full cell."""
    if not values or cells <= 0:
        return ""
    shown = _squeezed(values, cells)
    highest = max(top if top is not None else max(shown), 1e-12)
    return "".join(_LEVELS[min(7, max(0, int(value / highest * 7.999)))] for value in shown)


def _squeezed(values: Sequence[float], cells: int) -> list[float]:
    """Return at most ``cells`` values, each the largest of its share, so that no peak is lost."""
    if len(values) <= cells:
        return list(values)
    edges = [index * len(values) // cells for index in range(cells + 1)]
    return [max(values[low:high]) for low, high in zip(edges, edges[1:], strict=False)]


def count(number: int) -> str:
    """Return a whole number in few characters: ``950``, ``12.3k``, ``1.2M``."""
    if number < 10_000:
        return str(number)
    for unit, power in (("M", 1e6), ("k", 1e3)):
        if number >= power:
            value = number / power
            return f"{value:.1f}{unit}" if value < 100 else f"{value:.0f}{unit}"
    return str(number)


def seconds(value: float) -> str:
    """Return a duration with the digits that matter."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.1f} min"


def clock(value: float) -> str:
    """Return seconds as a clock shows them."""
    minutes, rest = divmod(int(value), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
