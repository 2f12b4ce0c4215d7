"""Names and titles of sessions."""

from __future__ import annotations

from pie_mlx.errors import InvalidParameter

_TITLE_CHARS = 60
_MAX_NAME = 80


def title_of(text: str) -> str:
    """Return the beginning of a message on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _TITLE_CHARS else line[: _TITLE_CHARS - 1] + "…"


def check_session_name(name: str) -> str:
    """Return ``name`` without outer spaces.

    Raises:
        InvalidParameter: it is empty, too long or holds control characters.
    """
    trimmed = name.strip()
    if not trimmed or len(trimmed) > _MAX_NAME or not trimmed.isprintable():
        raise InvalidParameter("session name", name, f"1 to {_MAX_NAME} printable characters")
    return trimmed
