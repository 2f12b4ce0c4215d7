"""Small dialogs: a yes or no, a text, and where an export goes."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Button, Input, OptionList, Static, TextArea
from textual.widgets.option_list import Option

from pie_mlx.errors import PieError
from pie_mlx.search.export import FORMATS, export
from pie_mlx.search.trace import Trace
from pie_mlx.tui.bridge import describe
from pie_mlx.tui.screens.page import Dialog
from pie_mlx.tui.text import clean_text

_SUFFIXES = {
    "html": "html",
    "svg": "svg",
    "mermaid": "mmd",
    "dot": "dot",
    "json": "json",
    "speedscope": "speedscope.json",
}
_ABOUT = {
    "html": "one file, opens anywhere, no network",
    "svg": "a picture",
    "mermaid": "for Markdown",
    "dot": "for Graphviz",
    "json": "for programs",
    "speedscope": "time and tokens as a flame",
}


class Confirm(Dialog):
    """Asks before something is lost; ``y`` or the button is yes, everything else no. Dismisses with a bool."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
        Binding("left,right,h,l", "app.focus_next", "the other", show=False),
    ]

    def __init__(self, title: str, question: str, *, yes: str) -> None:
        """Ask ``question``; ``yes`` is the word on the button."""
        super().__init__()
        self._title, self._question, self._yes = title, question, yes

    def compose(self) -> ComposeResult:
        """Question and two buttons; no is chosen at first."""
        with Vertical(id="box") as box:
            box.border_title = self._title
            yield Static(clean_text(self._question), markup=False)
            with Horizontal(classes="buttons"):
                yield Button("no (n)", id="no", compact=True)
                yield Button(f"{self._yes} (y)", id="yes", variant="warning", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer."""
        _ = self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:  # noqa: FBT001  a key's parameter comes by position
        """Answer."""
        _ = self.dismiss(answer)


class AskText(Dialog):
    """Asks for a text; dismisses with it, or with None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "done", "done", priority=True),
        Binding("escape", "dismiss(None)", "cancel"),
    ]

    def __init__(self, title: str, prompt: str, text: str, *, one_line: bool = False) -> None:
        """Offer ``text`` for editing."""
        super().__init__()
        self._title, self._prompt, self._text, self._one_line = title, prompt, text, one_line

    def compose(self) -> ComposeResult:
        """Prompt and field."""
        with Vertical(id="box") as box:
            box.border_title = self._title
            yield Static(self._prompt, markup=False)
            if self._one_line:
                yield Input(self._text, compact=True, id="field")
                yield Static("enter: done   esc: cancel", markup=False, classes="hint")
            else:
                yield TextArea(clean_text(self._text), id="field", show_line_numbers=False, compact=True)
                yield Static("ctrl+s: done   esc: cancel", markup=False, classes="hint")

    def on_mount(self) -> None:
        """Start at the end of the field."""
        field = self.query_one("#field")
        field.focus()
        if isinstance(field, TextArea):
            field.move_cursor(field.document.end)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the line."""
        _ = self.dismiss(event.value)

    def action_done(self) -> None:
        """Take the text."""
        field = self.query_one("#field")
        assert isinstance(field, Input | TextArea), "the field is one of the two"
        _ = self.dismiss(field.value if isinstance(field, Input) else field.text)


class ExportDialog(Dialog):
    """Chooses a format and a file, and writes it; nothing is overwritten."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "cancel")]

    def __init__(self, trace: Trace) -> None:
        """Export a trace."""
        super().__init__()
        self._trace = trace
        self._format = "html"

    def compose(self) -> ComposeResult:
        """Formats and the file's name."""
        with Vertical(id="box") as box:
            box.border_title = "export"
            options = [Option(f"{name:<11} {_ABOUT[name]}", id=name) for name in FORMATS]
            yield OptionList(*options, markup=False, compact=True)
            yield Input(str(self._path()), compact=True, id="file")
            yield Static("↑↓: format   enter: write   esc: cancel", markup=False, classes="hint")

    def _path(self) -> Path:
        """Return the file that a format goes to if nothing else is said."""
        stem = self._trace.path.name.removesuffix(".jsonl") or "tree"
        return Path(f"{stem}.{_SUFFIXES[self._format]}")

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Name the file after the format."""
        self._format = event.option.id or "html"
        self.query_one("#file", Input).value = str(self._path())

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def write(self) -> None:
        """Write the file."""
        path = Path(self.query_one("#file", Input).value).expanduser()
        try:
            text = export(self._trace, self._format)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except PieError as error:
            self.notify(describe(error), severity="error", markup=False)
        except FileExistsError:
            self.notify(f"{path} is there already: choose another name", severity="error", markup=False)
        except OSError as error:
            self.notify(f"{path}: {error.strerror}", severity="error", markup=False)
        else:
            self.notify(f"written: {path}", markup=False)
            _ = self.dismiss(path)
