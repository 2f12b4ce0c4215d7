"""Markdown of a reply as styled text: marks become styles, no word is lost, nothing is obeyed."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_mlx.chat.blocks import BlockSplitter
from pie_mlx.tui.inks import inks_for
from pie_mlx.tui.markdown import block_text

_INKS = inks_for("pie-dark")
_MARKS = st.sampled_from([
    "word", "α", "12", " ", "  ", "\n", "\n\n", "*", "**", "_", "`", "```", "```python\n", "#", "# ", "- ", "1. ", "> ",
    "|", "|a|b|\n|-|-|\n", "[", "]", "(", ")", "![", "<b>", "&amp;", "\\", "~~", "---\n", "[/x]", "\x1b[2J", "    ",
])  # fmt: skip


def laid_out(source: str, *, dark: bool = True) -> str:
    """Return a whole reply as it is shown."""
    splitter = BlockSplitter()
    blocks = [*splitter.push(source), *splitter.finish()]
    return "\n".join(block_text(block, _INKS, dark=dark).plain for block in blocks)


def words(text: str) -> list[str]:
    """Return the words of a text."""
    return re.findall(r"[^\W_]+", text)


@given(st.lists(_MARKS, max_size=40).map("".join))
def test_no_word_is_lost(source: str) -> None:
    """Whatever is written, its words are there in their order, and nothing a terminal obeys."""
    shown = laid_out(source)
    assert words(shown) == words(source.replace("\x1b", "␛"))
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("**bold** and *soft* and `x = 1`", "bold and soft and x = 1"),
        ("# Head", "Head"),
        ("3. three\n4. four", "3. three\n4. four"),
        ("- one\n  - two", "• one\n  • two"),
        ("> said", "▏ said"),
        ("[a](b) ![c](d)", "a (b) c (d)"),
        ("|k|v|\n|-|-|\n|long|1|", "k    │ v\nlong │ 1"),
        ("```python\nx = 1\n```", "```python\n  x = 1\n```"),
        ("[@click=app.quit]x[/] &lt; <b> \\*", "[@click=app.quit]x[/] &lt; <b> \\*"),
        ("one\ntwo", "one\ntwo"),
    ],
)
def test_marks_become_styles(source: str, shown: str) -> None:
    """Each construct looks as it should."""
    assert laid_out(source) == shown


def test_styles_are_there() -> None:
    """Bold is bold, code is highlighted, a heading stands out, and code keeps its spaces."""
    [bold] = BlockSplitter().push("**b**\n\n")
    assert any(getattr(span.style, "bold", False) for span in block_text(bold, _INKS, dark=True).spans)
    splitter = BlockSplitter()
    _fence, code = splitter.push("```python\n    return  None\n")
    text = block_text(code, _INKS, dark=True)
    assert text.plain == "      return  None"
    assert len(text.spans) > 1
