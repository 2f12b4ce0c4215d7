"""Title, alarm banner, keys and the notice for small windows: what every screen has around its content."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.cells import cell_len
from rich.style import Style
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, TextArea

from pie_mlx.tui.text import fit, one_line
from pie_mlx.tui.widgets.frame.line_view import Piece, inks_of, line_strip

if TYPE_CHECKING:
    from pie_mlx.tui.alarms import AlarmNote

LEAST_WIDTH, LEAST_HEIGHT = 60, 16
_WIDE = 96
"""Columns from which the banner has room to say what its key shows."""
_KEY_NAMES = {
    "space": "space", "full_stop": ".", "question_mark": "?", "slash": "/", "left_square_bracket": "[",
    "right_square_bracket": "]", "enter": "⏎", "escape": "esc", "left_curly_bracket": "{", "right_curly_bracket": "}",
    "left_parenthesis": "(", "right_parenthesis": ")", "up": "↑", "down": "↓", "left": "←", "right": "→",
    "pageup": "pgup", "pagedown": "pgdn", "circumflex_accent": "^",
}  # fmt: skip


def key_name(key: str) -> str:
    """Return how a key is written for people."""
    first = key.split(",", maxsplit=1)[0]
    if first.startswith("ctrl+"):
        return f"^{first.removeprefix('ctrl+')}"
    return _KEY_NAMES.get(first, first)


class Bar(Widget):
    """One line across the screen."""

    DEFAULT_CSS: ClassVar[str] = "Bar { height: 1; width: 1fr; }"

    def pieces(self) -> list[Piece]:
        """Return what stands in the line."""
        raise NotImplementedError

    def render_line(self, y: int) -> Strip:
        """Draw the line."""
        base = self.visual_style.rich_style
        width = self.size.width
        return line_strip(self.pieces() if y == 0 else [], width, base) if width > 0 else Strip.blank(0, base)


class TitleBar(Bar):
    """Program, screens, what is shown, and on the right how it stands."""

    subject: reactive[str] = reactive("")
    state: reactive[tuple[str, str]] = reactive(("", "dim"))
    """Words, and the role of their colour."""

    SCREENS: ClassVar[tuple[tuple[str, str], ...]] = (("chat", "Chat"), ("tree", "Tree"), ("engine", "Engine"))

    def pieces(self) -> list[Piece]:
        """Return the title; the state keeps its place, the subject gives way."""
        inks = inks_of(self.app)
        words, role = self.state
        out: list[Piece] = [(" pie-mlx ", inks["accent"] + Style(bold=True, reverse=True)), (" ", inks["text"])]
        for number, (mode, name) in enumerate(self.SCREENS, start=1):
            is_here = self.app.current_mode == mode
            style = inks["strong"] + Style(underline=True) if is_here else inks["dim"]
            out += [(f"{number} ", inks["dim"]), (name, style), ("  ", inks["dim"])]
        used = sum(cell_len(text) for text, _style in out)
        room = self.size.width - used - cell_len(words) - 2
        out += [(fit(one_line(self.subject), max(room, 0)), inks["text"]), (" ", inks["dim"]), (words, inks[role])]
        return out


class AlarmBanner(Bar):
    """The latest alarm in words; gone while there is none."""

    alarm: reactive[AlarmNote | None] = reactive(None)

    def watch_alarm(self, alarm: AlarmNote | None) -> None:
        """Show the banner only while there is an alarm."""
        self.display = alarm is not None
        self.set_class(alarm is not None and alarm.level != "failure", "-warning")

    def on_mount(self) -> None:
        """Start hidden."""
        self.display = self.alarm is not None

    def pieces(self) -> list[Piece]:
        """Return kind, words, and the key that opens the report."""
        alarm = self.alarm
        if alarm is None:
            return []
        strong = Style(bold=True)
        mark = "▲" if alarm.level == "failure" else "△"
        tail = "  w: who, why, what helps " if self.size.width >= _WIDE else "  w: why "
        head = f" {mark} {alarm.kind.upper()} "
        room = self.size.width - cell_len(head) - cell_len(tail) - 1
        return [(head, strong + Style(reverse=True)), (" " + fit(alarm.words, room), strong), (tail, strong)]

    def on_click(self) -> None:
        """Open the report."""
        self.app.call_later(self.app.run_action, "app.alarms")


class KeyBar(Bar):
    """The keys that do something here and now; ``? help`` always."""

    def on_mount(self) -> None:
        """Follow the focus."""
        self.screen.bindings_updated_signal.subscribe(self, lambda _screen: self.refresh())

    def pieces(self) -> list[Piece]:
        """Return keys and their words, as many as there is room for."""
        inks = inks_of(self.app)
        # Where text is typed, a question mark is text.
        tail = ("f1" if isinstance(self.screen.focused, TextArea | Input) else "?", "help")
        room = self.size.width - cell_len("f1 help") - 2
        out: list[Piece] = [(" ", inks["dim"])]
        seen: set[str] = set()
        for active in self.screen.active_bindings.values():
            binding = active.binding
            if not binding.show or not active.enabled or binding.action in seen or binding.action == "app.help":
                continue
            seen.add(binding.action)
            key = binding.key_display or key_name(binding.key)
            cells = cell_len(key) + cell_len(binding.description) + 3
            if cells > room:
                break
            room -= cells
            out += [(key, inks["accent"] + Style(bold=True)), (f" {binding.description}  ", inks["dim"])]
        return [*out, (tail[0], inks["accent"] + Style(bold=True)), (f" {tail[1]}", inks["dim"])]


class TooSmall(Widget):
    """What is said instead of a screen that has no room."""

    def render_line(self, y: int) -> Strip:
        """Say it in the middle."""
        base = self.visual_style.rich_style
        width, height = self.size
        lines = (
            f"too small: {self.app.size.width}×{self.app.size.height}",
            f"pie-mlx needs {LEAST_WIDTH}×{LEAST_HEIGHT}",
            "make the window larger",
        )
        row = y - max(0, (height - len(lines)) // 2)
        if not 0 <= row < len(lines):
            return Strip.blank(width, base)
        text = lines[row][: max(width, 0)]
        return line_strip([(" " * max(0, (width - len(text)) // 2), base), (text, Style(bold=row == 0))], width, base)
