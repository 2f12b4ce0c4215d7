"""Every key of a screen, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Static

from pie_mlx.tui.inks import Inks
from pie_mlx.tui.looks import FRONTIER, LOCKED, LOOKS
from pie_mlx.tui.screens.page import Dialog, Page
from pie_mlx.tui.widgets.frame.bars import key_name
from pie_mlx.tui.widgets.frame.line_view import inks_of

_STOCK = frozenset({"app.focus_previous", "screen.copy_text", "app.help_quit", "page_left", "page_right"})
"""Actions that Textual gives every screen, and that no one looks for here."""


class HelpScreen(Dialog):
    """Keys of the screen below, and what the glyphs mean."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss(None)", "close")]

    def __init__(self, below: Screen[object]) -> None:
        """Explain the screen ``below``."""
        super().__init__()
        self._below = below

    def compose(self) -> ComposeResult:
        """One long text."""
        with Vertical(id="box", classes="wide") as box:
            name = self._below.name_in_help if isinstance(self._below, Page) else ""
            box.border_title = f"{name} keys".strip()
            inks = inks_of(self.app)
            with VerticalScroll(), Horizontal():
                yield Static(keys_text(("this screen", _keys(self._below)), inks=inks), markup=False)
                right = keys_text(
                    ("in the pane", _pane_keys(self._below)), ("everywhere", _app_keys(self._below)), inks=inks
                )
                yield Static(right.append_text(glyphs_text(inks)), markup=False)
            yield Static("esc closes   ^p: everything by name", markup=False, classes="hint")


def keys_text(*groups: tuple[str, Iterator[tuple[str, str]]], inks: Inks) -> Text:
    """Return keys and what they do, by group; an empty group is left out."""
    out = Text()
    for title, entries in groups:
        lines = list(entries)
        out.append(f"{title}\n" if lines else "", inks["head"])
        for keys, words in lines:
            out.append(f"{keys:>12}  ", inks["accent"] + Style(bold=True)).append(f"{words}\n", inks["text"])
    return out


def glyphs_text(inks: Inks) -> Text:
    """Return what the glyphs of the tree mean."""
    out = Text().append("glyphs\n", inks["head"])
    for status, look in LOOKS.items():
        out.append(f"{look.glyph:>12}  ", inks[look.role]).append(f"{status.value}\n", inks["text"])
    marks = (
        (FRONTIER, "in the frontier"), (LOCKED, "locked into the beam"), ("⊞ 3", "folded, with its children"),
        ("?", "no readable value: last, but not 0"), ("2+5", "pages: own + shared with others"),
    )  # fmt: skip
    for glyph, words in marks:
        out.append(f"{glyph:>12}  ", inks["accent"]).append(f"{words}\n", inks["text"])
    return out


def _keys(screen: Screen[object]) -> Iterator[tuple[str, str]]:
    """Yield the keys of a screen."""
    yield from _written(screen._bindings.key_to_bindings)  # noqa: SLF001  Textual has no public list of them


def _pane_keys(screen: Screen[object]) -> Iterator[tuple[str, str]]:
    """Yield the keys of the widget with the focus."""
    if screen.focused is not None:
        yield from _written(screen.focused._bindings.key_to_bindings)  # noqa: SLF001  as above


def _app_keys(screen: Screen[object]) -> Iterator[tuple[str, str]]:
    """Yield the keys that work on every screen."""
    yield from _written(screen.app._bindings.key_to_bindings)  # noqa: SLF001  as above


def _written(bindings: dict[str, list[Binding]]) -> Iterator[tuple[str, str]]:
    """Yield each action once, with all its keys."""
    keys: dict[tuple[str, str], list[str]] = {}
    for key, holders in bindings.items():
        for binding in holders:
            if binding.description and binding.action not in _STOCK:
                keys.setdefault((binding.action, binding.description), []).append(binding.key_display or key_name(key))
    for (_action, description), names in keys.items():
        yield " ".join(names), description
