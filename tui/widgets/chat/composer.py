"""The composer: several lines, sent with Enter; a pasted text stays one message."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import TextArea

_NEWLINE_KEYS = frozenset({"ctrl+j", "alt+enter", "shift+enter"})


class Composer(TextArea):
    """A text area whose Enter sends; a line that ends in a backslash goes on instead."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "send", key_display="⏎"),
        Binding("ctrl+j", "newline", "new line", key_display="^j"),
    ]

    class Sent(Message):
        """The user has sent a message or a command."""

        def __init__(self, text: str) -> None:
            """Hold the text."""
            super().__init__()
            self.text = text

    class Typed(Message):
        """The text before the cursor has changed."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Start empty."""
        super().__init__(id=id, show_line_numbers=False, compact=True, tab_behavior="focus")
        self._sent: list[str] = []
        self._back = 0

    async def _on_key(self, event: events.Key) -> None:
        """Send, begin a line, or go through what was sent before."""
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.action_send()
        elif event.key in _NEWLINE_KEYS:
            event.stop()
            event.prevent_default()
            self.action_newline()
        elif event.key in ("up", "down") and self._recall(-1 if event.key == "up" else 1):
            event.stop()
            event.prevent_default()
        else:
            await super()._on_key(event)

    def action_send(self) -> None:
        """Send the text, unless its last line goes on."""
        if self.text.endswith("\\"):
            self.load_text(self.text[:-1] + "\n")
            self.move_cursor(self.document.end)
            return
        text = self.text
        if not text.strip():
            return
        self._sent.append(text)
        self._back = 0
        self.load_text("")
        self.post_message(self.Sent(text))

    def action_newline(self) -> None:
        """Begin another line."""
        self.insert("\n")

    def _recall(self, step: int) -> bool:
        """Go through what was sent, but only from the first or last line; inside the text the cursor moves."""
        row, _column = self.cursor_location
        edge = 0 if step < 0 else self.document.line_count - 1
        position = self._back - step
        if row != edge or not 0 <= position <= len(self._sent):
            return False
        self._back = position
        self.load_text(self._sent[-position] if position else "")
        self.move_cursor(self.document.end)
        return True
