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
from pie_mlx.tui.widgets.engine.page_map import CACHED, FREE, FRESH_FREE
from pie_mlx.tui.widgets.frame.bars import key_name
from pie_mlx.tui.widgets.frame.line_view import inks_of

_STOCK = frozenset({"app.focus_previous", "screen.copy_text", "app.help_quit", "page_left", "page_right"})
"""Actions that Textual gives every screen, and that no one looks for here."""


GLYPHS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Tree": (
        *((look.glyph, look.role, status.value) for status, look in LOOKS.items()),
        (FRONTIER, "accent", "in the frontier"),
        (LOCKED, "accent", "locked into the beam"),
        ("⊞ 3", "accent", "folded, with its children"),
        ("?", "accent", "no readable value: last, but not 0"),
        ("2+5", "accent", "pages: own + shared with others"),
    ),
    "Engine": (
        ("a … z", "info", "a page that one context views"),
        ("2 … 9 +", "good", "that so many view: computed once"),
        (CACHED, "dim", "that only the prefix cache holds"),
        (FREE, "dim", "that is free"),
        (FRESH_FREE, "busy", "that was freed a moment ago"),
        ("▂▅█ ░▒▓ -~=", "text", "many a cell: shared, own, cached"),
    ),
}
"""By the screen's name: a glyph, the role of its colour, and what it means."""


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
                yield Static(right.append_text(glyphs_text(name, inks)), markup=False)
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


def glyphs_text(screen: str, inks: Inks) -> Text:
    """Return what the glyphs of a screen mean; nothing where it has none."""
    out = Text()
    for number, (glyph, role, words) in enumerate(GLYPHS.get(screen, ())):
        out.append("" if number else "glyphs\n", inks["head"])
        out.append(f"{glyph:>12}  ", inks[role]).append(f"{words}\n", inks["text"])
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
