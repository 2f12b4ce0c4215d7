"""Make text safe for a terminal: what could move the cursor, hide or reorder text becomes visible or goes.

Model text, prompts, file contents and traces are data. A terminal would obey some of it: escape sequences (title,
clipboard, mouse), C1 controls, carriage return and backspace (overwriting), bidirectional overrides (reordering).
"""

from __future__ import annotations

import json

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_C1 = range(0x80, 0xA0)
_SURROGATES = range(0xD800, 0xE000)
_KEPT = "\n\t"


def _visible() -> dict[int, str]:
    """Map every character that a terminal might obey to what is shown in its place."""
    table = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT}
    table |= {0x7F: "\u2421", 0x0D: ""}
    table |= {code: f"\\x{code:02x}" for code in _C1}
    table |= {code: f"\\u{code:04x}" for code in _BIDI}
    table |= dict.fromkeys(_SURROGATES, "\ufffd")
    return table


_TABLE = _visible()
_JSON_TABLE = {code: f"\\u{code:04x}" for code in (0x7F, *_C1, *_BIDI, 0x2028, 0x2029, *_SURROGATES)}


def clean_text(text: str) -> str:
    """Return ``text`` with controls made visible (ESC as ``␛``, others by their code) and CR removed; keeps LF and tab.

    Works character by character, so cleaning pieces equals cleaning the whole.
    """
    return text.translate(_TABLE)


def one_line(text: str) -> str:
    """Return cleaned ``text`` on one line: runs of white space become one space."""
    return " ".join(clean_text(text).split())


def to_json(value: object, *, indent: int | None = None) -> str:
    """Write JSON as UTF-8 text whose control and reordering characters are escaped.

    Raises:
        ValueError: a number is NaN or infinite, which JSON cannot say.
    """
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent).translate(_JSON_TABLE)
