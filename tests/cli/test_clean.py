"""Text from a model reaches a terminal as text."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.cli.clean import clean_text, one_line, to_json

_ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
_BIDI = {"\u202a", "\u202b", "\u202c", "\u202d", "\u202e", "\u2066", "\u2067", "\u2068", "\u2069"}


def _is_harmless(text: str) -> bool:
    """Whether a terminal shows the text and does nothing else."""
    return not any(
        (unicodedata.category(sign) in ("Cc", "Cs") and sign not in "\n\t") or sign in _BIDI for sign in text
    )


@given(_ANY_TEXT)
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    """No control character, bidirectional override or lone surrogate survives, whatever the text."""
    assert _is_harmless(clean_text(text))
    assert _is_harmless(one_line(text))
    assert "\n" not in one_line(text)


@given(st.lists(_ANY_TEXT))
def test_cleaning_pieces_equals_cleaning_the_whole(pieces: list[str]) -> None:
    """A sequence cannot slip through by arriving in two pieces."""
    assert "".join(clean_text(piece) for piece in pieces) == clean_text("".join(pieces))


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cf"))))
def test_ordinary_text_is_left_alone(text: str) -> None:
    """Words of any script pass unchanged, markup-like brackets included."""
    assert clean_text(text) == text


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J", "␛[2J"),
        ("\x1b]0;title\x07", "␛]0;title␇"),
        ("\x1b]52;c;aGk=\x1b\\", "␛]52;c;aGk=␛\\"),
        ("\x9b31m", "\\x9b31m"),
        ("safe\rEVIL", "safeEVIL"),
        ("a\b\bb", "a␈␈b"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("line\n\ttab", "line\n\ttab"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_what_is_removed_is_shown(hostile: str, shown: str) -> None:
    """The reader sees that something was there."""
    assert clean_text(hostile) == shown


@given(st.text())
def test_json_is_the_same_text_and_harmless(text: str) -> None:
    """Escaping in JSON loses nothing and lets nothing through."""
    written = to_json({"text": text})
    assert json.loads(written) == {"text": text}
    assert _is_harmless(written)
    assert "\n" not in written


def test_json_refuses_what_it_cannot_say() -> None:
    """NaN is not JSON."""
    with pytest.raises(ValueError, match="JSON"):
        to_json(float("nan"))
