"""Two thoughts side by side, and word by word what only one of them says."""

from __future__ import annotations

import difflib
import re
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from pie_mlx.search.tree import Node, Tree
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.looks import LOOKS, thought, value_text
from pie_mlx.tui.screens.page import Dialog
from pie_mlx.tui.text import clean_text
from pie_mlx.tui.widgets.frame.line_view import inks_of

_MAX_WORDS = 4_000
"""Words a side that are compared; comparing costs their product at worst."""


class DiffScreen(Dialog):
    """A dialog with two columns."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,d,enter", "dismiss(None)", "close")]

    def __init__(self, left: Node, right: Node, tree: Tree) -> None:
        """Compare two nodes of a tree."""
        super().__init__()
        self._left, self._right, self._tree = left, right, tree

    def compose(self) -> ComposeResult:
        """Two columns."""
        inks = inks_of(self.app)
        left, right = diff_texts(thought(self._left, self._tree), thought(self._right, self._tree), inks)
        with Vertical(id="box", classes="wide"):
            with Horizontal():
                for side, node, text in (("left", self._left, left), ("right", self._right, right)):
                    with VerticalScroll(id=side) as pane:
                        pane.border_title = f"{LOOKS[node.status].glyph} {node.id}  {value_text(node.score)}"
                        yield Static(text, markup=False)
            yield Static("only on this side: [-left-] {+right+}   esc closes", markup=False, classes="hint")


def diff_texts(left: str, right: str, inks: Inks) -> tuple[Text, Text]:
    """Return both texts; what only one says stands in marks, so that colour is not needed."""
    before, after = _words(left), _words(right)
    one, other = Text(), Text()
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        own, theirs = "".join(before[a:b]), "".join(after[c:d])
        if tag == "equal":
            one.append(own, inks["text"])
            other.append(theirs, inks["text"])
            continue
        if own:
            one.append(f"[-{own}-]", inks["bad"] + Style(bold=True))
        if theirs:
            other.append(f"{{+{theirs}+}}", inks["good"] + Style(bold=True))
    return one, other


def _words(text: str) -> list[str]:
    """Return words and the spaces between them."""
    return re.findall(r"\s+|\w+|[^\w\s]", clean_text(text))[:_MAX_WORDS]
