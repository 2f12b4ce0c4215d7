"""The interactive chat: read a line, say it or run it, show what comes of it, until the user leaves."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from pie_mlx.chat.commands import Call, complete, parse, run
from pie_mlx.chat.drawing import draw_tree
from pie_mlx.chat.reply import ReplyPiece
from pie_mlx.chat.results import Copied, EditPrompt, Exported, Generating, Leave, Moved, Result, Said, TreeDrawn
from pie_mlx.chat.status import read_status
from pie_mlx.cli.chat.editor import Editor
from pie_mlx.cli.chat.printer import ReplyPrinter
from pie_mlx.cli.clean import clean_text
from pie_mlx.errors import PieError

if TYPE_CHECKING:
    from pathlib import Path

    from pie_mlx.chat.reply import Reply
    from pie_mlx.chat.session import ChatSession
    from pie_mlx.cli.chat.keyboard import Interrupts, Keyboard
    from pie_mlx.cli.chat.markdown import Theme
    from pie_mlx.cli.chat.screen import Screen
    from pie_mlx.cli.diagnostics import Stderr

_LOOK_EVERY_S = 0.05
"""How often the keyboard is looked at while nothing comes: well under what a person calls at once."""
_WAIT_S = 0.3
_MAX_MARK = 24
_MIN_PREVIEW, _MAX_PREVIEW = 12, 60
_MAX_RECALLED = 400


class ChatLoop:
    """One interactive chat on one terminal."""

    def __init__(
        self,
        session: ChatSession,
        screen: Screen,
        *,
        keyboard: Keyboard,
        stderr: Stderr,
        theme: Theme,
        history: Path | None,
    ) -> None:
        """Talk with ``session`` on ``screen``."""
        self._session = session
        self._screen = screen
        self._keyboard = keyboard
        self._stderr = stderr
        self._theme: Theme = theme
        self._is_editing = False
        self._default = ""
        self._is_over = False
        self._editor = Editor(
            complete=lambda line: complete(session, line),
            footer=self._footer,
            history=history,
            has_color=screen.has_color,
        )

    def run(self, interrupts: Interrupts) -> None:
        """Talk until the user leaves.

        Raises:
            PieError: the engine has ended, and why.
        """
        self._recall()
        self._tell_notices()
        while not self._is_over:
            line = self._read()
            if line is None:
                continue
            interrupts.clear()
            try:
                self._handle(line)
            except PieError as error:
                if not self._session.engine.is_alive:
                    raise
                self._report(error)
            self._tell_notices()

    def _read(self) -> str | None:
        """Return the next line; None where there is none, or no more."""
        default, self._default = self._default + self._keyboard.take_typed(), ""
        try:
            return self._editor.read(mark=self._mark(), default=default)
        except KeyboardInterrupt:
            self._is_editing = False
        except EOFError:
            self._is_over = True
        return None

    def _mark(self) -> str:
        """Say before the message what it will be: an edit, on which branch, with how many files."""
        parts = ["edit"] if self._is_editing else []
        if self._session.branch != "main":
            parts.append(self._session.branch)
        if self._session.attachments:
            parts.append(f"+{len(self._session.attachments)}")
        room = min(_MAX_MARK, self._screen.size()[0] // 3)
        return " ".join(parts)[:room]

    def _footer(self) -> str:
        """Return the line under the message."""
        return read_status(self._session).line(self._screen.size()[0] - 1)

    # --- lines -----------------------------------------------------------------------------

    def _handle(self, line: str) -> None:
        """Say a message or run a command."""
        was_editing, self._is_editing = self._is_editing, False
        parsed = parse(line)
        if isinstance(parsed, Call):
            before = self._session.facts.id
            self._show(run(self._session, parsed))
            if self._session.facts.id != before:
                self._recall()
        elif was_editing:
            self._show_reply(self._session.edit(parsed.text))
        else:
            self._show_reply(self._session.send(parsed.text))

    def _show(self, result: Result) -> None:
        """Show what a command came to."""
        screen = self._screen
        if isinstance(result, Generating):
            self._show_reply(result.reply)
        elif isinstance(result, Said | Moved):
            self._say(result.text)
        elif isinstance(result, EditPrompt):
            self._is_editing, self._default = True, result.text
        elif isinstance(result, TreeDrawn):
            self._draw()
        elif isinstance(result, Copied):
            self._copy(result)
        elif isinstance(result, Exported):
            screen.line(f"wrote {result.path} ({result.num_bytes:,} bytes)")
        else:
            assert isinstance(result, Leave), "every result has its case"
            self._is_over = True

    def _say(self, text: str) -> None:
        """Show what a command has to say; a listing stands apart from the next prompt."""
        from rich.text import Text

        shown = Text(clean_text(text))
        shown.highlight_regex(r"(?m)^/\w+", "bold")
        self._screen.render(shown)
        if "\n" in text:
            self._screen.line()

    def _draw(self) -> None:
        """Draw the tree as wide as the screen; the branch that the user is on stands out, the others are dim."""
        from rich.text import Text

        tree = self._session.conversation.tree
        beside = max(len(str(line)) - len(line.text) for line in draw_tree(tree))
        preview = (self._screen.size()[0] - 1 - len(" → ") - beside) // 2
        for line in draw_tree(tree, preview=min(max(preview, _MIN_PREVIEW), _MAX_PREVIEW)):
            shown = Text(clean_text(str(line)), style="bold" if line.is_current else "" if line.is_on_path else "dim")
            if line.branches:
                shown.stylize("cyan", len(shown) - len(line.names))
            self._screen.render(shown)
        self._screen.line()

    def _copy(self, copied: Copied) -> None:
        """Copy by the system's own command where there is one, else ask the terminal."""
        tool = shutil.which("pbcopy")
        if tool is not None:
            subprocess.run([tool], input=copied.text.encode(), check=True)
        elif copied.sequence is not None:
            self._screen.control(copied.sequence)
        else:
            self._screen.line(f"{len(copied.text):,} characters are more than terminals copy; use /export", style="dim")
            return
        self._screen.line(f"copied {len(copied.text):,} characters", style="dim")

    def _recall(self) -> None:
        """Show the last exchange of a session that is continued: one sees where it was left."""
        if not self._session.path():
            return
        message, reply = self._session.conversation.tree.last_exchange()
        text = message.text if len(message.text) <= _MAX_RECALLED else message.text[: _MAX_RECALLED - 1] + "…"
        self._screen.line(f"> {text}", style="dim")
        self._screen.line()
        printer = ReplyPrinter(self._screen, theme=self._theme, reasoning="hide")
        printer.push(ReplyPiece("", reply.text))
        printer.finish()
        self._screen.line()

    # --- replies ---------------------------------------------------------------------------

    def _show_reply(self, reply: Reply) -> None:
        """Show a reply as it comes; Ctrl-C and Ctrl-D stop it.

        Raises:
            PieError: generation failed; what there was has been shown and is kept.
        """
        printer = ReplyPrinter(self._screen, theme=self._theme, reasoning=self._session.settings.reasoning)
        self._screen.line()
        with self._keyboard.listening(), reply:
            try:
                self._follow(reply, printer)
            finally:
                printer.finish()
        self._screen.line()
        if self._keyboard.wants_to_leave:
            self._is_over = True

    def _follow(self, reply: Reply, printer: ReplyPrinter) -> None:
        """Take pieces until the reply ends, looking at the keyboard in between."""
        began_s = time.monotonic()
        while True:
            if self._keyboard.wants_stop():
                reply.stop()
            try:
                piece = reply.poll(_LOOK_EVERY_S)
            except TimeoutError:
                if time.monotonic() - began_s > _WAIT_S:
                    printer.wait(f"{reply.phase} {reply.completion.prompt_tokens:,} tokens (Ctrl-C stops)")
                continue
            if piece is None:
                return
            printer.push(piece)

    # --- talk ------------------------------------------------------------------------------

    def _tell_notices(self) -> None:
        """Show what the user should know."""
        for notice in self._session.take_notices():
            self._screen.line(notice, style="dim")

    def _report(self, error: PieError) -> None:
        """Show a failure; the chat goes on."""
        from pie_mlx.cli import logfile
        from pie_mlx.cli.diagnostics import Report

        logfile.failure(error.code, error)
        sys.stdout.flush()
        self._stderr.report(Report.of(error))
