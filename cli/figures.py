"""Numbers as people read them."""

from __future__ import annotations


def format_bytes(size: int | None) -> str:
    """Return bytes in the largest decimal unit that fits, ``–`` for None."""
    if size is None:
        return "–"
    for unit, power in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= power:
            value = size / power
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{size} B"


def format_count(number: int | None) -> str:
    """Return a whole number with thousands apart, ``–`` for None."""
    return "–" if number is None else f"{number:,}"


def format_seconds(seconds: float) -> str:
    """Return a duration with the digits that matter."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
