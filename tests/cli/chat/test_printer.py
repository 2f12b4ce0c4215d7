"""Replies on a screen: every character once, whatever streams in and however it is cut."""

from __future__ import annotations

import io

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pie_mlx.chat.blocks import Block, Kind
from pie_mlx.chat.reply import ReplyPiece
from pie_mlx.cli.chat.markdown import render_block
from pie_mlx.cli.chat.printer import ReplyPrinter
from pie_mlx.cli.chat.screen import Screen, columns_of


class _Emulated(io.StringIO):
    """A stream into an emulated terminal of a given size."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.emulator = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self._feed = pyte.Stream(self.emulator)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._feed.feed(text.replace("\n", "\r\n"))
        return super().write(text)

    def lines(self) -> list[str]:
        screen = self.emulator
        above = ["".join(row[x].data for x in range(screen.columns)) for row in screen.history.top]
        return [line.rstrip() for line in (*above, *screen.display)]


class _Sized(Screen):
    """A screen whose size is the emulator's: there is no terminal to ask."""

    def size(self) -> tuple[int, int]:
        emulator = self._stream.emulator  # type: ignore[attr-defined]
        return emulator.columns, emulator.lines


def _stream(
    text: str, *, size: int = 3, columns: int = 80, rows: int = 24, reasoning: str = "", show: str = "show"
) -> _Emulated:
    """Show a reply in pieces of ``size`` characters."""
    terminal = _Emulated(columns, rows)
    printer = ReplyPrinter(_Sized(terminal, "never"), theme="dark", reasoning=show)  # type: ignore[arg-type]
    for at in range(0, len(reasoning), size):
        printer.push(ReplyPiece(reasoning[at : at + size], ""))
    for at in range(0, len(text), size):
        printer.push(ReplyPiece("", text[at : at + size]))
    printer.finish()
    return terminal


@pytest.mark.parametrize("columns", [20, 80])
@pytest.mark.parametrize("rows", [5, 24])
def test_a_long_reply_of_all_kinds_is_printed_once(columns: int, rows: int) -> None:
    """Prose, lists, tables and code taller than the screen: every word stands there exactly once."""
    text = "".join(
        f"word{n}a **bold{n}b** 😀 你好\n\n- item{n}c\n- item{n}d\n\n```py\nx{n}e = 1\n```\n\n" for n in range(20)
    )
    text += "| h1 | h2 |\n|---|---|\n" + "".join(f"| cell{n}f | y |\n" for n in range(30))
    shown = "".join("".join(_stream(text, columns=columns, rows=rows).lines()).split())
    for n in range(20):
        for word in (f"word{n}a", f"bold{n}b", f"item{n}c", f"item{n}d", f"x{n}e"):
            assert shown.count(word) == 1, word
    for n in range(30):
        assert shown.count(f"cell{n}f") == 1


@settings(max_examples=60)
@given(
    st.lists(
        st.sampled_from(["w{}w", "😀", "你好", "\n", "\n\n", "```\n", "- ", "**", "`", "| ", "[/x]", "<b>", "\t"]),
        min_size=1,
        max_size=60,
    ),
    st.integers(1, 7),
    st.sampled_from([(80, 24), (20, 6), (12, 3)]),
)
def test_every_word_appears_once(parts: list[str], size: int, shape: tuple[int, int]) -> None:
    """Whatever Markdown arrives, no word is shown twice and none is lost."""
    text = " ".join(part.format(number) for number, part in enumerate(parts))
    shown = "".join("".join(_stream(text, size=size, columns=shape[0], rows=shape[1]).lines()).split())
    for number, part in enumerate(parts):
        if part == "w{}w":
            assert shown.count(f"w{number}w") == 1


@pytest.mark.parametrize("mark", [">", "> ", "- ", "1. "])
@pytest.mark.parametrize("depth", [4, 8, 20, 600])
def test_a_deep_quote_keeps_its_text(mark: str, depth: int) -> None:
    """Where nesting leaves no room for words, or the parser gives up, the source is shown instead of nothing."""
    lines = _stream(f"first\n{mark * depth} alpha beta\n\nlast", columns=20, size=40).lines()
    shown = "".join(sign for sign in "".join(lines) if sign.isalpha())
    assert shown == "firstalphabetalast"


@pytest.mark.parametrize(
    "text", ["&lt;b&gt; &amp;c", "![alt](http://x/y.png)", '[a](http://u "title")', "| " + "wide | " * 30]
)
def test_nothing_that_is_written_is_left_out(text: str) -> None:
    """Entities are text, as are the parts of links and pictures that a terminal cannot show otherwise."""
    table = text.startswith("|")
    text += f"\n|{'---|' * 30}\n| {'cell | ' * 30}" if table else ""
    shown = "".join("".join(_stream(text, columns=30).lines()).split())
    if table:
        assert (shown.count("wide"), shown.count("cell")) == (30, 30)
    else:
        assert all(word in shown for word in text.replace("(", " ").replace(")", " ").split() if word.isalnum())
        assert "&lt;" not in text or "&lt;b&gt;&amp;c" in shown


def test_nothing_above_the_tail_is_painted_again() -> None:
    """What is written for one piece does not grow with the reply: erasing reaches back over the tail alone."""
    terminal = _Emulated(80, 24)
    printer = ReplyPrinter(_Sized(terminal, "never"), theme="dark", reasoning="show")
    costs = []
    for number in range(200):
        before = len(terminal.getvalue())
        printer.push(ReplyPiece("", f"paragraph {number} has some words\n\n"))
        costs.append(len(terminal.getvalue()) - before)
    printer.finish()
    assert max(costs[100:]) <= max(costs[:100]) + 4


def test_a_stop_inside_a_code_block_keeps_its_tail() -> None:
    """An open code block is shown to its last character."""
    lines = _stream("see\n\n```python\nx = 1\ny = 'unfinish").lines()
    assert lines[:5] == ["see", "", "```python", "x = 1", "y = 'unfinish"]


def test_code_is_shown_as_it_is() -> None:
    """Indentation, blank lines and brackets of code are not changed."""
    code = "```python\ndef f():\n    if x[0]:\n\n        return {'[red]': 1}\n```\n"
    assert _stream(code).lines()[:6] == code.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        "<div class='x'>kept</div>",
        "C:\\new\\table",
        "[/INST] [red]not red[/red] \\[",
        "[@click=app.quit]x[/]",
        "\\frac{1}{2} and \\(x\\)",
        "snake_case_name",
        "5 < 6 & 7 > 2",
    ],
)
def test_text_that_looks_like_markup_is_shown(text: str) -> None:
    """HTML, backslashes and bracket tags are what the model said."""
    assert _stream(text).lines()[0] == text


@pytest.mark.parametrize(
    "text", [">" * 10_000, "| a | b\n|--", "[x](", "![", "*" * 999, "```" * 50, "- " * 500, "#" * 50, "\u0000\ud800"]
)
def test_broken_markdown_is_no_failure(text: str) -> None:
    """Nothing that a model writes can end the chat, or swallow what it writes next."""
    _stream(text, size=100)
    assert "afterwards" in _stream(f"{text}\n\nafterwards", size=100).getvalue()


def test_controls_are_made_visible() -> None:
    """No control character of a reply reaches the terminal, in prose, code or reasoning."""
    evil = "\x1b[2J\x9b31m\x1b]52;c;QQ==\x07\r\b"
    terminal = _stream(f"{evil}\n\n```\n{evil}\n```\n\n- {evil}\n", reasoning=evil)
    written = terminal.getvalue()
    for control in ("\x1b[2J", "\x9b", "\x1b]", "\x07", "\b"):
        assert control not in written
    assert "␛[2J" in written


def test_a_resize_in_mid_reply_neither_loses_nor_doubles() -> None:
    """A tail that the resize has moved stays; what follows is rendered again from the next block on."""
    terminal = _Emulated(80, 24)
    printer = ReplyPrinter(_Sized(terminal, "never"), theme="dark", reasoning="show")
    text = "".join(f"line{n}x 😀 漢字 👨‍👩‍👧 with some more words to wrap\n\n" for n in range(60))
    for at in range(0, len(text), 3):
        if at == 600:
            terminal.emulator.resize(24, 60)
        if at == 1200:
            terminal.emulator.resize(30, 100)
        printer.push(ReplyPiece("", text[at : at + 3]))
    printer.finish()
    shown = "".join("".join(terminal.lines()).split())
    assert [shown.count(f"line{n}x") for n in range(60)] == [1] * 60


@pytest.mark.parametrize(
    ("show", "seen", "told"), [("show", True, False), ("fold", False, True), ("hide", False, False)]
)
def test_reasoning_is_shown_folded_or_hidden(show: str, *, seen: bool, told: bool) -> None:
    """Folded reasoning leaves one line; the answer is the same."""
    lines = _stream("so: 42", reasoning="hmm " * 50, show=show).lines()
    text = "\n".join(lines)
    assert ("hmm hmm" in text) is seen
    assert ("thought for" in text) is told
    assert "so: 42" in lines


def test_long_reasoning_costs_the_same_for_each_piece() -> None:
    """8,000 words of reasoning are appended, never painted again."""
    written = _stream("ok", reasoning="\\frac{a}{b} " * 8000, size=12).getvalue()
    assert len(written) < 8000 * 14


def test_words_are_not_broken_where_they_fit_in_a_row() -> None:
    """Streamed text breaks at spaces; a word longer than a row breaks anywhere."""
    lines = _stream("", reasoning="aaaa bbbb cccc dddd eeee " + "f" * 30, columns=20).lines()
    assert lines[0] == "aaaa bbbb cccc dddd"
    assert "".join(lines[1:]).startswith("eeee " + "f" * 30)


def test_widths_are_counted_at_their_widest() -> None:
    """Terminals disagree about joined emoji; the widest reading is used."""
    assert columns_of("abc") == 3
    assert columns_of("你好") == 4
    assert columns_of("👩‍👩‍👧") == 6
    assert columns_of("❤️") >= 2


def test_no_style_paints_a_background() -> None:
    """A reply is readable on light and dark terminals: only the terminal's own colours, no background."""
    terminal = _Emulated(80, 24)
    screen = _Sized(terminal, "always")
    for theme in ("dark", "light"):
        for block in (Block(Kind.TEXT, "# h `c` **b** [l](http://x)"), Block(Kind.CODE, "def f(): pass", "python")):
            screen.render(render_block(block, theme))
    import re

    codes = {code for group in re.findall(r"\x1b\[([\d;]*)m", terminal.getvalue()) for code in group.split(";")}
    assert codes
    assert not codes & {"38", "48", *(str(code) for code in (*range(40, 49), *range(100, 108)))}
    assert "\x1b]8" not in terminal.getvalue()
