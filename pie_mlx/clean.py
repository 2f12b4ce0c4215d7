"""Make text safe for a screen: what a terminal would obey, or what hides or reorders text, becomes visible or goes.

Model text, prompts, file contents and traces are data. A terminal would obey some of it: escape sequences (title,
clipboard, mouse), C1 controls, carriage return and backspace (overwriting), bidirectional overrides (reordering).
"""

from __future__ import annotations

BIDI = (0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
C1 = range(0x80, 0xA0)
SURROGATES = range(0xD800, 0xE000)
_KEPT = "\n\t"


def _visible() -> dict[int, str]:
    """Map every character that a terminal might obey to what is shown in its place."""
    table = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in _KEPT}
    table |= {0x7F: "\u2421", 0x0D: ""}
    table |= {code: f"\\x{code:02x}" for code in C1}
    table |= {code: f"\\u{code:04x}" for code in BIDI}
    table |= dict.fromkeys(SURROGATES, "\ufffd")
    return table


_TABLE = _visible()


def clean_text(text: str) -> str:
    """Return ``text`` with controls made visible (ESC as ``␛``, others by their code) and CR removed; keeps LF and tab.

    Works character by character, so cleaning pieces equals cleaning the whole.
    """
    return text.translate(_TABLE)
