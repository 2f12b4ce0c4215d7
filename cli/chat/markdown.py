"""One finished block of Markdown as Rich shows it: nothing is dropped, nothing is markup, no background is painted."""

from __future__ import annotations

import string
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Literal

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown
from rich.syntax import Syntax
from rich.text import Text

from pie_mlx.chat.blocks import Block, Kind
from pie_mlx.cli.clean import clean_text

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.console import RenderableType

Theme = Literal["dark", "light"]
"""What the terminal's background is."""


class _PlainHeading(Heading):
    """A heading at the left margin, without a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Literal(Markdown):
    """Markdown whose HTML, entities and backslashes are text: a reply about them must show them."""

    elements = {**Markdown.elements, "heading_open": _PlainHeading}  # noqa: RUF012  (rich's own form)

    def __init__(self, markup: str) -> None:
        """Parse ``markup``."""
        super().__init__(markup, hyperlinks=False)
        self.parsed = _parser().parse(markup)


class _Whole:
    """Markdown if all of its text fits as that, else its source: deep quotes and wide tables leave words no room."""

    def __init__(self, markdown: Markdown, source: str) -> None:
        """Show ``markdown``, or ``source``."""
        self._markdown = markdown
        self._source = source

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        segments = list(console.render(self._markdown, options))
        if _words(self._source) <= _words("".join(segment.text for segment in segments)):
            yield from segments
        else:
            yield Text(self._source)


def _words(text: str) -> Counter[str]:
    """Count the characters that no mark of Markdown is made of."""
    return Counter("".join(text.split()).translate(_NO_MARKS))


_NO_MARKS = str.maketrans("", "", string.punctuation)


@cache
def _parser() -> MarkdownIt:
    """Return the parser."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["entity", "escape", "html_block", "html_inline", "reference"])


def render_block(block: Block, theme: Theme) -> RenderableType:
    """Return a finished block, ready to be printed."""
    text = clean_text(block.text)
    if block.kind is Kind.CODE:
        return _highlighted(text, block.language, theme)
    if block.kind is Kind.FENCE:
        return Text(text, style="dim")
    # One line break in a reply is meant as one.
    markdown = _Literal("\n".join(f"{line}  " if line else "" for line in text.split("\n")))
    # Marks alone, as a line of many `>`, would leave nothing to be seen.
    return _Whole(markdown, text) if any(_has_content(token) for token in markdown.parsed) else Text(text)


def _has_content(token: Token) -> bool:
    return bool(token.content) or token.type == "hr"


def _highlighted(line: str, language: str, theme: Theme) -> Text:
    """Return one line of code in the terminal's own colours."""
    line = line.expandtabs(4)
    syntax = _syntax(language, theme)
    if syntax is None or not line.strip():
        return Text(line)
    text = syntax.highlight(line)
    text.rstrip()
    # The highlighter may normalise white space; the code itself must not change.
    return text if text.plain == line.rstrip() else Text(line)


@cache
def _syntax(language: str, theme: Theme) -> Syntax | None:
    """Return the highlighter of a language; None where there is none."""
    if not language or not language.replace("+", "").replace("#", "").replace("-", "").isalnum():
        return None
    syntax = Syntax("", language, theme=f"ansi_{theme}", background_color="default")
    return None if syntax.lexer is None else syntax
