"""The line editor: history, completion, messages of several lines; a paste is one message, whatever its line ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from pie_mlx.chat.commands import Suggestion
from pie_mlx.cli.clean import one_line

LEAVE_HINT = "Ctrl-D leaves"
_SHIFT_ENTER = ("\x1b[13;2u", "\x1b[27;2;13~")
"""What terminals send for Shift+Enter where they tell it from Enter."""

Complete = Callable[[str], list[Suggestion]]


class _Slash(Completer):
    """Offers slash commands and their arguments."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Yield what the commands offer for the text before the cursor."""
        for item in self._complete(document.text_before_cursor):
            yield Completion(item.text, start_position=-item.replaces, display_meta=one_line(item.about))


class Editor:
    """Reads messages from a terminal."""

    def __init__(self, *, complete: Complete, footer: Callable[[], str], history: Path | None, has_color: bool) -> None:
        """Offer ``complete``, show ``footer`` under the message, remember messages in ``history``."""
        for sequence in _SHIFT_ENTER:
            ANSI_SEQUENCES[sequence] = (Keys.Escape, Keys.ControlM)
        self._footer = footer
        self._hint = ""
        self._mark = ""
        self._session: PromptSession[str] = PromptSession(
            message=self._first_mark,
            prompt_continuation=self._next_mark,
            multiline=True,
            history=_open_history(history),
            completer=_Slash(complete),
            complete_while_typing=Condition(lambda: self._session.default_buffer.text.startswith("/")),
            key_bindings=self._bindings(),
            bottom_toolbar=self._toolbar,
            style=Style.from_dict({"bottom-toolbar": "noreverse", "bottom-toolbar.text": "noreverse"}),
            color_depth=None if has_color else ColorDepth.DEPTH_1_BIT,
            include_default_pygments_style=False,
            reserve_space_for_menu=4,
        )

    def read(self, *, mark: str, default: str = "") -> str:
        """Return the next message, without outer line breaks; ``mark`` says what it will be.

        Raises:
            EOFError: Ctrl-D on an empty message.
            KeyboardInterrupt: Ctrl-C on an empty message.
        """
        self._mark = mark
        typed = self._session.prompt(default=default, handle_sigint=False).strip("\n")
        # Bytes that are no text come as lone surrogates; together they may be text after all.
        return typed.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def _first_mark(self) -> FormattedText:
        """Show the mark; while there are several lines it says so."""
        return FormattedText([("bold ansicyan", f"{self._mark}> ")])

    def _next_mark(self, width: int, _line: int, _wraps: int) -> FormattedText:
        """Mark the lines after the first."""
        return FormattedText([("ansicyan", ". ".rjust(width))])

    def _toolbar(self) -> FormattedText:
        """Return the line at the bottom, which is to be found but not to be read; a hint takes its place once."""
        return FormattedText([("bold", self._hint) if self._hint else ("dim", self._footer())])

    def _bindings(self) -> KeyBindings:
        """Bind the keys that differ from the usual."""
        keys = KeyBindings()

        @keys.add("enter")
        def _send(event: KeyPressEvent) -> None:
            """Send; a backslash at the end goes on in the next line instead."""
            buffer = event.current_buffer
            text = buffer.document.text_before_cursor
            self._hint = ""
            if buffer.document.is_cursor_at_the_end and (len(text) - len(text.rstrip("\\"))) % 2:
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            elif buffer.text.strip():
                buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _break(event: KeyPressEvent) -> None:
            """Go on in the next line."""
            event.current_buffer.insert_text("\n")

        @keys.add("c-c")
        def _drop(event: KeyPressEvent) -> None:
            """Empty the message; an empty one tells how to leave."""
            buffer = event.current_buffer
            if buffer.text:
                buffer.reset()
                self._hint = ""
            else:
                self._hint = LEAVE_HINT
                event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

        return keys


def _open_history(path: Path | None) -> History:
    """Return the history in a file that only its owner can read."""
    if path is None:
        return InMemoryHistory()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return FileHistory(str(path))
