"""OSC 52: a terminal's own clipboard, also over SSH."""

from __future__ import annotations

import base64

MAX_BYTES = 74_994
"""What terminals take at most: 100,000 characters of base64 with the sequence around them."""


def osc52(text: str) -> str | None:
    """Return the sequence that asks a terminal to copy ``text``; None if it is longer than terminals take."""
    raw = text.encode("utf-8", "replace")
    if len(raw) > MAX_BYTES:
        return None
    return f"\x1b]52;c;{base64.b64encode(raw).decode('ascii')}\x07"
