"""The transcript: finished blocks are laid out once and stay; only the tail is laid out as it grows."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from pie_mlx.chat import Turn
from pie_mlx.tui.text import clean_text
from pie_mlx.tui.widgets.frame.line_view import inks_of

_BLOCK_CHARS = 1_200
"""A tail longer than this is cut at its last line end, and what is before becomes a finished block."""


class Transcript(VerticalScroll, can_focus=True):
    """Messages, replies and notices, oldest first; stays at the end unless it was scrolled up."""

    DEFAULT_CSS: ClassVar[str] = "Transcript { scrollbar-size-vertical: 1; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Start empty."""
        super().__init__(id=id)
        self._sticks = True
        """Whether the end is kept in sight."""
        self._tail: Static | None = None
        self._tail_text = ""
        self._tail_style = "text"
        self._shown = ("", "")
        """Reasoning and answer of the running reply that are laid out."""

    async def show_path(self, turns: list[Turn]) -> None:
        """Show other turns; what was there is gone."""
        await self.remove_children()
        self._tail, self._tail_text, self._shown = None, "", ("", "")
        blocks = [Static(text, markup=False, classes=kind) for turn in turns for kind, text in self._turn(turn)]
        await self.mount(*blocks)
        self._sticks = True
        self._keep_end()

    def _turn(self, turn: Turn) -> list[tuple[str, Text]]:
        """Return a turn's blocks."""
        inks = inks_of(self.app)
        if turn.role == "user":
            return [("said", _headed("❯ you", turn.text, inks["accent"], inks["strong"]))]
        blocks = []
        if turn.reasoning:
            blocks.append(("thought", _headed("… reasoning", turn.reasoning, inks["dim"], inks["dim"])))
        mark = "  (partial)" if turn.is_partial else ""
        blocks.append(("answer", _headed(f"● {turn.model or 'model'}{mark}", turn.text, inks["info"], inks["text"])))
        return blocks

    def say(self, text: str, *, role: str = "dim") -> None:
        """Add a notice."""
        inks = inks_of(self.app)
        self._append(Static(Text(clean_text(text), style=inks[role]), markup=False, classes="notice"))

    def add_message(self, text: str) -> None:
        """Add what the user said."""
        inks = inks_of(self.app)
        self._append(Static(_headed("❯ you", text, inks["accent"], inks["strong"]), markup=False, classes="said"))

    # --- a reply as it comes --------------------------------------------------------------------

    def begin_reply(self, model: str) -> None:
        """Begin a reply's block."""
        inks = inks_of(self.app)
        self._append(Static(Text(f"● {model}", style=inks["info"] + Style(bold=True)), markup=False, classes="head"))
        self._shown = ("", "")
        self._tail, self._tail_text = None, ""

    def show_reply(self, reasoning: str, answer: str) -> None:
        """Show a running reply: only what is new is laid out, and what is finished stays as it is."""
        old_reasoning, old_answer = self._shown
        if len(reasoning) > len(old_reasoning):
            self._grow(reasoning[len(old_reasoning) :], "dim")
        if len(answer) > len(old_answer):
            self._grow(answer[len(old_answer) :], "text")
        self._shown = (reasoning, answer)

    def _grow(self, piece: str, style: str) -> None:
        """Add to the tail; a long tail gives its finished lines to a block of their own."""
        if self._tail is None or style != self._tail_style:
            self._new_tail(style)
        self._tail_text += piece
        cut = self._tail_text.rfind("\n") if len(self._tail_text) > _BLOCK_CHARS else -1
        assert self._tail is not None, "a tail was just made"
        if cut > 0:
            rest = self._tail_text[cut + 1 :]
            self._tail.update(self._styled(self._tail_text[:cut]))
            self._new_tail(style)
            self._tail_text = rest
        self._tail.update(self._styled(self._tail_text))
        self._keep_end()

    def _new_tail(self, style: str) -> None:
        """Begin another block."""
        self._tail, self._tail_text, self._tail_style = Static(markup=False, classes="answer"), "", style
        self._append(self._tail)

    def _styled(self, text: str) -> Text:
        """Return a text in the tail's ink, literal."""
        return Text(clean_text(text), style=inks_of(self.app)[self._tail_style])

    def end_reply(self, words: str | None) -> None:
        """End the reply; ``words`` say why, where it did not come to its own end."""
        if words:
            self.say(words, role="warn")
        self._tail, self._tail_text = None, ""

    def _append(self, block: Static) -> None:
        """Add a block."""
        _ = self.mount(block)
        self._keep_end()

    def _keep_end(self) -> None:
        """Keep the end in sight for a reader who is there, once the sizes are known."""
        if self._sticks:
            self.call_after_refresh(self._show_end)

    def _show_end(self) -> None:
        """Go to the end, unless the reader has scrolled up since that was wished."""
        if self._sticks:
            self.scroll_end(animate=False, immediate=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Stay at the end from now on, or no longer."""
        super().watch_scroll_y(old_value, new_value)
        if new_value >= self.max_scroll_y - 1:
            self._sticks = True
        elif new_value < old_value:
            self._sticks = False

    def on_resize(self) -> None:
        """Keep the end in sight in a window of another height."""
        self._keep_end()


def _headed(head: str, text: str, head_style: Style, style: Style) -> Text:
    """Return a text under a head."""
    out = Text(f"{clean_text(head)}\n", style=head_style + Style(bold=True))
    return out.append(clean_text(text), style + Style(bold=False))
