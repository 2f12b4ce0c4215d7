"""The chat screen: transcript, branches, composer and the figures of the last reply."""

from __future__ import annotations

import threading
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical

from pie_mlx.chat import ChatSession, Reply, commands
from pie_mlx.chat.actions import question_of
from pie_mlx.chat.drawing import draw_tree
from pie_mlx.chat.results import Copied, EditPrompt, Exported, Generating, Leave, Moved, Result, Said, TreeDrawn
from pie_mlx.chat.status import read_status
from pie_mlx.errors import PieError, UsageError
from pie_mlx.tui.bridge import Batch, Bridge, describe
from pie_mlx.tui.desk import Desk
from pie_mlx.tui.handover import open_chat
from pie_mlx.tui.screens.page import Page
from pie_mlx.tui.story import Change
from pie_mlx.tui.text import one_line
from pie_mlx.tui.widgets.chat.composer import Composer
from pie_mlx.tui.widgets.chat.transcript import Transcript
from pie_mlx.tui.widgets.frame.line_view import CursorLines, Line, TextLines, inks_of

_MAX_SUGGESTIONS = 6


class ChatScreen(Page):
    """Talk with the model; branches on the side."""

    name_in_help = "Chat"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "stop", "stop", key_display="esc"),
        Binding("ctrl+c", "copy_or_stop", "copy what is selected, or stop", show=False),
        Binding("ctrl+d", "end", "leave", show=False),
        Binding("tab", "complete", "complete", show=False, priority=True),
        Binding("ctrl+b", "branches", "branches", key_display="^b"),
        Binding("pageup", "scroll(-1)", "up", show=False),
        Binding("pagedown", "scroll(1)", "down", show=False),
        Binding("f3", "app.go('tree')", "tree"),
        Binding("f4", "app.go('engine')", "engine"),
        Binding("f1", "app.help", "help"),
    ]

    def __init__(self, desk: Desk) -> None:
        """Share the desk."""
        super().__init__(desk)
        self._shown: tuple[object, ...] = ()
        """Session, branch and number of turns that the transcript shows."""
        self._edits = False
        """Whether what is sent next rewrites the last message."""

    def content(self) -> ComposeResult:
        """Transcript and branches; suggestions, composer and figures below."""
        with Horizontal(id="middle"):
            yield Transcript(id="transcript")
            with Vertical(id="side"):
                yield CursorLines(id="branches")
        yield TextLines(id="suggestions")
        yield Composer(id="composer")
        yield TextLines(id="figures")

    def on_mount(self) -> None:
        """Name the panes."""
        self.query_one("#side").border_title = "branches"
        composer = self.query_one(Composer)
        composer.border_title = "message or /command"
        for quiet in ("#suggestions", "#figures"):
            self.query_one(quiet).can_focus = False
        composer.focus()

    @property
    def chat(self) -> ChatSession | None:
        """The conversation, None while there is none."""
        return self.desk.chat

    # --- what happens ---------------------------------------------------------------------------

    def take(self, batch: Batch, change: Change) -> None:
        """Show how a reply goes on."""
        for reply in batch.replies:
            self._show_reply(reply)
        if batch.replies or (batch.readings is not None and self.is_current):
            self._show_figures()

    def catch_up(self) -> None:
        """Open the conversation the first time, and show where it stands."""
        try:
            open_chat(self.desk)
        except PieError as error:
            self.query_one(Transcript).say(describe(error), role="warn")
            self.entitle("no conversation", "", "dim")
            return
        self.call_later(self._show_path)

    async def _show_path(self) -> None:
        """Show the current branch, unless it is what is shown."""
        chat = self.chat
        if chat is None:
            return
        path = chat.path()
        now = (chat.facts.id, chat.branch, len(path))
        if now != self._shown and chat.reply is None:
            self._shown = now
            await self.query_one(Transcript).show_path(path)
        self._show_side()
        self._show_figures()
        self._say_notices()

    def _say_notices(self) -> None:
        """Say what the session has to say."""
        for notice in self.chat.take_notices() if self.chat is not None else []:
            self.query_one(Transcript).say(notice, role="warn")

    def _show_side(self) -> None:
        """Draw the branches."""
        chat, inks = self.chat, inks_of(self.app)
        if chat is None:
            return
        lines: list[Line] = []
        for line in draw_tree(chat.conversation.tree):
            style = inks["strong"] if line.is_current else inks["text"] if line.is_on_path else inks["dim"]
            mark = "●" if line.is_current else "○"
            names = f"{', '.join(line.branches)} " if line.branches else ""
            partial = " (partial)" if line.is_partial else ""
            words = (one_line(line.text) + partial, style)
            lines.append([(line.stem, inks["dim"]), (f"{mark} ", style), (names, inks["accent"]), words])
        self.query_one("#branches", CursorLines).set_lines(lines or [[("no turn yet", inks["dim"])]])

    def _show_figures(self) -> None:
        """Say how full context and pool are, and how fast the last reply was."""
        chat, inks = self.chat, inks_of(self.app)
        if chat is None:
            return
        words = read_status(chat).line(max(10, self.size.width - 4))
        self.query_one("#figures", TextLines).set_lines([[(" " + one_line(words), inks["dim"])]])
        running = chat.reply
        state = (f"● {running.phase}", "good") if running is not None else ("○ ready", "dim")
        self.entitle(f"{chat.facts.name} · branch {chat.branch}", *state)
        self.refresh_bindings()

    # --- sending ----------------------------------------------------------------------------------

    async def on_composer_sent(self, message: Composer.Sent) -> None:
        """Say a message, or run a command."""
        self.query_one("#suggestions").display = False
        if self.chat is None:
            return
        try:
            await self._take_line(self.chat, message.text)
        except PieError as error:
            self.query_one(Transcript).say(describe(error), role="bad")
            self.query_one(Composer).load_text(message.text)
        self._show_side()
        self._show_figures()

    async def _take_line(self, chat: ChatSession, text: str) -> None:
        """Do what a line asks.

        Raises:
            PieError: it was refused; nothing has changed.
        """
        parsed = commands.parse(text)
        if isinstance(parsed, commands.Call) and parsed.name == "mouse":
            await self._switch_mouse(parsed.argument)
            return
        if isinstance(parsed, commands.Call) and parsed.name == "search":
            question = question_of(chat, parsed.argument)
            self.ask_search(question)
            self.query_one(Transcript).say(f"searching “{one_line(question)}”: F3 shows the tree, c there comes back")
            return
        if isinstance(parsed, commands.Call):
            await self._show_result(commands.run(chat, parsed))
            return
        edits, self._edits = self._edits, False
        reply = chat.edit(parsed.text) if edits else chat.send(parsed.text)
        if edits:
            await self.query_one(Transcript).show_path(chat.path()[:-2])
        self.query_one(Transcript).add_message(parsed.text)
        self._follow(reply)

    async def _switch_mouse(self, wanted: str) -> None:
        """Take the mouse, or leave it to the terminal; without a word, the other of the two.

        Raises:
            UsageError: the word is neither on nor off.
        """
        if wanted not in ("", "on", "off"):
            raise UsageError(f"the mouse cannot be {wanted!r}", "/mouse on or /mouse off")
        await self.app.run_action(f"app.mouse('{wanted}')")

    async def _show_result(self, result: Result) -> None:
        """Show what a command came to."""
        transcript = self.query_one(Transcript)
        match result:
            case Said(text):
                transcript.say(text, role="text")
            case Generating(reply):
                assert self.chat is not None, "a command ran on it"
                await transcript.show_path(self.chat.path()[:-1])
                self._follow(reply)
            case EditPrompt(text):
                self._edits = True
                self.query_one(Composer).load_text(text)
                transcript.say("what you send now takes the place of your last message")
            case TreeDrawn(lines):
                transcript.say("\n".join(str(line) for line in lines), role="text")
            case Moved(_branch, text):
                self._shown = ()
                await self._show_path()
                transcript.say(text)
            case Copied(text, _sequence):
                self.app.copy_to_clipboard(text)
                transcript.say(f"copied {len(text):,} characters, where the terminal allows it")
            case Exported(path, num_bytes):
                transcript.say(f"written: {path} ({num_bytes:,} bytes)")
            case Leave():
                await self.app.run_action("app.leave")

    def _follow(self, reply: Reply) -> None:
        """Show a reply as it comes; a thread reads it, so that the screen never waits."""
        assert self.chat is not None, "a reply belongs to a conversation"
        self._say_notices()
        self.query_one(Transcript).begin_reply(self.chat.model)
        threading.Thread(target=_read, args=(reply, self.desk.bridge), name="pie-tui-reply", daemon=True).start()

    def _show_reply(self, reply: Reply) -> None:
        """Show what there is of a reply."""
        text = reply.text
        transcript = self.query_one(Transcript)
        transcript.show_reply(text.reasoning, text.answer)
        if not reply.is_over:
            return
        transcript.end_reply(None if reply.error is None else describe(reply.error))
        if self.chat is not None:
            self._shown = (self.chat.facts.id, self.chat.branch, len(self.chat.path()))
        self._say_notices()
        self._show_side()

    # --- keys ---------------------------------------------------------------------------------------

    def action_stop(self) -> None:
        """Stop the reply; with none, close the suggestions."""
        self.query_one("#suggestions").display = False
        if self.chat is not None and self.chat.reply is not None:
            self.chat.reply.stop()
        else:
            self.query_one(Composer).focus()

    def action_copy_or_stop(self) -> None:
        """Copy what is selected with the mouse; without a selection, stop the reply."""
        selected = self.get_selected_text()
        if not selected:
            self.action_stop()
            return
        self.app.copy_to_clipboard(selected)
        self.clear_selection()
        self.notify(f"copied {len(selected):,} characters", markup=False, timeout=2)

    async def action_end(self) -> None:
        """Stop a running reply; leave at an empty composer."""
        if self.chat is not None and self.chat.reply is not None:
            self.chat.reply.stop()
        elif not self.query_one(Composer).text:
            await self.app.run_action("app.leave")

    def action_branches(self) -> None:
        """Show or hide the branches."""
        side = self.query_one("#side")
        self.set_class(not side.display, "-side")
        self.set_class(side.display, "-no-side")

    def action_scroll(self, pages: int) -> None:
        """Scroll the transcript."""
        transcript = self.query_one(Transcript)
        transcript.scroll_relative(y=pages * max(1, transcript.size.height - 2), animate=False)

    def on_text_area_changed(self) -> None:
        """Offer completions of a command."""
        composer, lines = self.query_one(Composer), self.query_one("#suggestions", TextLines)
        found = commands.complete(self.chat, composer.text) if self.chat is not None else []
        inks = inks_of(self.app)
        shown: list[Line] = [
            [(f" {one_line(each.text):<12} ", inks["accent"]), (one_line(each.about), inks["dim"])]
            for each in found[:_MAX_SUGGESTIONS]
        ]
        lines.display = bool(shown)
        lines.styles.height = len(shown)
        lines.set_lines(shown)

    def action_complete(self) -> None:
        """Take the first completion; without one, go to the next pane."""
        composer = self.query_one(Composer)
        found = commands.complete(self.chat, composer.text) if self.chat is not None and composer.has_focus else []
        if not found:
            self.focus_next()
            return
        first = found[0]
        kept = composer.text[: len(composer.text) - first.replaces]
        composer.load_text(f"{kept}{first.text} ")
        composer.move_cursor(composer.document.end)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to stop only while there is something to stop."""
        if action == "stop" and (self.chat is None or self.chat.reply is None):
            return None
        return super().check_action(action, parameters)


def _read(reply: Reply, bridge: Bridge) -> None:
    """Read a reply to its end, telling the bridge of every piece."""
    try:
        for _piece in reply:
            bridge.offer_reply(reply)
    except PieError:
        # The reply holds its own error, and whoever shows the reply shows it.
        pass
    finally:
        bridge.offer_reply(reply)
