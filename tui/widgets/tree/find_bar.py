"""The line in which the user types what to find or to filter."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

_HINTS = {
    "find": "words, or an id such as 0.2.1",
    "filter": "words  status:open  score>0.5  depth=2  tokens>40  is:frontier",
}


class FindBar(Horizontal):
    """A label and an input; hidden while nothing is asked."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "close", show=False)]
    DEFAULT_CSS: ClassVar[str] = "FindBar { height: 1; display: none; }"

    class Asked(Message):
        """The user has typed something."""

        def __init__(self, kind: str, text: str) -> None:
            """Say whether to ``find`` or to ``filter``, and what."""
            super().__init__()
            self.kind = kind
            self.text = text

    class Left(Message):
        """The user has thought better of it."""

    def __init__(self) -> None:
        """Start hidden."""
        super().__init__()
        self._kind = "find"

    def compose(self) -> ComposeResult:
        """Label and input."""
        yield Static("find", id="find-label", markup=False)
        yield Input(compact=True, id="find-input", select_on_focus=True)

    def ask(self, kind: str, text: str) -> None:
        """Ask for something to ``find`` or to ``filter``."""
        self._kind = kind
        self.query_one("#find-label", Static).update(kind)
        field = self.query_one(Input)
        field.placeholder = _HINTS[kind]
        field.value = text
        self.display = True
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Hand on what was typed."""
        event.stop()
        self.display = False
        self.post_message(self.Asked(self._kind, event.value))

    def action_leave(self) -> None:
        """Close without asking."""
        self.display = False
        self.post_message(self.Left())

    def on_descendant_blur(self, _event: events.DescendantBlur) -> None:
        """Close when the user goes elsewhere."""
        self.display = False
