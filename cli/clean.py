"""Text and JSON for the terminal: cleaned, so that nothing of them is obeyed."""

from __future__ import annotations

import json

from pie_mlx.clean import BIDI, C1, SURROGATES, clean_text

__all__ = ["clean_text", "one_line", "to_json"]

_JSON_TABLE = {code: f"\\u{code:04x}" for code in (0x7F, *C1, *BIDI, 0x2028, 0x2029, *SURROGATES)}


def one_line(text: str) -> str:
    """Return cleaned ``text`` on one line: runs of white space become one space."""
    return " ".join(clean_text(text).split())


def to_json(value: object, *, indent: int | None = None) -> str:
    """Write JSON as UTF-8 text whose control and reordering characters are escaped.

    Raises:
        ValueError: a number is NaN or infinite, which JSON cannot say.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent).translate(_JSON_TABLE)
