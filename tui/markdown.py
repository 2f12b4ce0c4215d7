"""A finished block of a reply as styled text: Markdown's marks become styles, everything else stays literal.

The result is one text that the screen wraps at any width; it holds no link to click and no markup to obey. Where a
construct would lose words (a table's surplus cells), the block is shown as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from pie_mlx.chat.blocks import Block, Kind
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.text import clean_text, fit

_WORD = re.compile(r"\w+")
_RULE_CELLS = 24


def block_text(block: Block, inks: Inks, *, dark: bool) -> Text:
    """Return a finished block, cleaned and styled; it ends without a line break."""
    source = clean_text(block.text)
    if block.kind is Kind.CODE:
        return _code(source, block.language, inks, dark=dark)
    if block.kind is Kind.FENCE:
        return Text(source, style=inks["dim"])
    margin = source[: len(source) - len(source.lstrip(" "))] if block.kind is Kind.ITEM else ""
    styled = _Writer(inks, margin).write(_parser().parse(source))
    return styled if _words(styled.plain) == _words(source) else Text(source, style=inks["text"])


def _words(text: str) -> list[str]:
    """Return the words of a text: what no style may lose."""
    return _WORD.findall(text.replace("_", " "))


@cache
def _parser() -> MarkdownIt:
    """Return the parser; HTML, backslashes and entities are text, since a reply about them must show them."""
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["escape", "entity", "html_block", "html_inline", "reference", "autolink"])


def _code(line: str, language: str, inks: Inks, *, dark: bool) -> Text:
    """Return one line of code, highlighted where its language is known."""
    syntax = _syntax(language, dark)
    if syntax is not None and line.strip():
        text = syntax.highlight(line)
        text.rstrip()
        # The highlighter may normalise white space; the code itself must not change.
        if text.plain == line.rstrip():
            return Text("  ") + text
    return Text(f"  {line}", style=inks["text"])


@cache
def _syntax(language: str, dark: bool) -> Syntax | None:  # noqa: FBT001  a key of the cache
    """Return the highlighter of a language; None where there is none."""
    if not language or not re.fullmatch(r"[\w+#-]+", language):
        return None
    syntax = Syntax("", language, theme="monokai" if dark else "friendly", background_color="default")
    return None if syntax.lexer is None else syntax


class _Writer:
    """Walks a block's tokens and writes them as text."""

    def __init__(self, inks: Inks, margin: str) -> None:
        """Write in ``inks``; each line begins with ``margin``."""
        self._inks = inks
        self._margin = margin
        self._out = Text(style=inks["text"])
        self._lead = ""
        self._depth = 0
        self._styles: list[Style] = []
        self._addresses: list[str] = []

    def write(self, tokens: list[Token]) -> Text:
        """Return the text of a block's tokens."""
        at = 0
        while at < len(tokens):
            if tokens[at].type == "table_open":
                end = next(n for n in range(at, len(tokens)) if tokens[n].type == "table_close")
                self._table(tokens[at : end + 1])
                at = end
            else:
                self._block(tokens[at])
            at += 1
        return self._out

    def _block(self, token: Token) -> None:
        """Write a token outside tables."""
        kind = token.type
        if kind in ("bullet_list_open", "ordered_list_open", "blockquote_open"):
            self._depth += 1
            self._lead = "▏ " if kind == "blockquote_open" else self._lead
        elif kind in ("bullet_list_close", "ordered_list_close", "blockquote_close"):
            self._depth -= 1
        elif kind == "list_item_open":
            self._lead = f"{token.info}{token.markup} " if token.info else "• "
        elif kind == "heading_open":
            self._styles.append(self._inks["head"] + Style(bold=True))
        elif kind == "heading_close":
            self._styles.pop()
        elif kind == "inline":
            self._begin_line()
            self._inline(token.children or [])
        elif kind == "hr":
            self._begin_line()
            self._out.append("─" * _RULE_CELLS, self._inks["dim"])
        elif kind in ("fence", "code_block"):
            for line in token.content.rstrip("\n").split("\n"):
                self._begin_line()
                self._out.append(f"  {line}", self._inks["info"])

    def _begin_line(self) -> None:
        """Begin another line, with the mark of its list item."""
        if self._out.plain:
            self._out.append("\n")
        self._out.append(self._margin + "  " * max(0, self._depth - 1) + self._lead, self._inks["accent"])
        self._lead = "  " if self._depth else ""

    def _inline(self, tokens: list[Token]) -> None:
        """Write what stands inside a line."""
        for token in tokens:
            _INLINE.get(token.type, _Writer.plain_text)(self, token)

    def plain_text(self, token: Token) -> None:
        """Write a piece of text in the styles that hold here."""
        self._out.append(token.content, Style.combine(self._styles) if self._styles else None)

    def line_break(self, _token: Token) -> None:
        """Break the line: one in a reply is meant as one."""
        self._begin_line()

    def code_span(self, token: Token) -> None:
        """Write code inside a line."""
        self._out.append(token.content, self._inks["info"])

    def style_open(self, token: Token) -> None:
        """Begin a style."""
        self._styles.append(_STYLES[token.type.removesuffix("_open")])

    def style_close(self, _token: Token) -> None:
        """End a style."""
        self._styles.pop()

    def link_open(self, token: Token) -> None:
        """Begin a link: its words are underlined, its address follows."""
        self._styles.append(Style(underline=True))
        self._addresses.append(self._address(token, "href"))

    def link_close(self, _token: Token) -> None:
        """Write the address behind the link's words."""
        self._styles.pop()
        self._out.append(f" ({self._addresses.pop()})", self._inks["dim"])

    def image(self, token: Token) -> None:
        """Write a picture's words and address."""
        self._inline(token.children or [])
        self._out.append(f" ({self._address(token, 'src')})", self._inks["dim"])

    def _address(self, token: Token, name: str) -> str:
        """Return where a link or a picture points, with its title."""
        title = token.attrs.get("title")
        return f"{token.attrs.get(name, '')}" + (f" {title}" if title else "")

    def _table(self, tokens: list[Token]) -> None:
        """Write a table in columns."""
        rows: list[list[str]] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(_literal(token.children or []))
        widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for number, row in enumerate(rows):
            self._begin_line()
            style = self._inks["strong"] if number == 0 else self._inks["text"]
            for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
                self._out.append(" │ " if column else "", self._inks["dim"])
                self._out.append(fit(cell, width), style)


def _literal(tokens: list[Token]) -> str:
    """Return the words of a cell without styles."""
    return "".join(" " if token.type == "softbreak" else token.content for token in tokens)


_STYLES = {"strong": Style(bold=True), "em": Style(italic=True), "s": Style(strike=True)}
_INLINE: dict[str, Callable[[_Writer, Token], None]] = {
    "softbreak": _Writer.line_break,
    "hardbreak": _Writer.line_break,
    "code_inline": _Writer.code_span,
    "link_open": _Writer.link_open,
    "link_close": _Writer.link_close,
    "image": _Writer.image,
    **{f"{name}_open": _Writer.style_open for name in _STYLES},
    **{f"{name}_close": _Writer.style_close for name in _STYLES},
}
