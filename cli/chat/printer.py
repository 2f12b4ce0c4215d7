"""Shows a reply as it streams: reasoning dim, finished blocks once, and a tail that is replaced when it is finished."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

from pie_mlx.chat.blocks import Block, BlockSplitter

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pie_mlx.chat.reply import ReplyPiece
    from pie_mlx.cli.chat.markdown import Theme
    from pie_mlx.cli.chat.screen import Screen

_FOLD_EVERY_S = 0.5


class ReplyPrinter:
    """One reply on one screen."""

    def __init__(self, screen: Screen, *, theme: Theme, reasoning: Literal["show", "fold", "hide"]) -> None:
        """Start a reply."""
        self._screen = screen
        self._theme = theme
        self._reasoning = reasoning
        self._splitter = BlockSplitter()
        self._is_raw = False
        self._is_thinking = False
        self._is_waiting = False
        self._began_s = time.monotonic()
        self._folded_s = 0.0
        self._num_words = 0
        self._has_answer = False

    def wait(self, text: str) -> None:
        """Show what is waited for, in place of nothing; it goes when the first piece comes."""
        if not self._is_waiting and not self._screen.has_tail:
            self._is_waiting = True
            self._show_line(text)

    def push(self, piece: ReplyPiece) -> None:
        """Show a piece."""
        if piece.reasoning:
            self._end_waiting()
            self._show_reasoning(piece.reasoning)
        if piece.answer:
            self._end_waiting()
            self._end_reasoning()
            self._show_answer(piece.answer)

    def finish(self) -> None:
        """Show what is left as finished; the cursor is then at the beginning of a line."""
        self._end_waiting()
        self._end_reasoning()
        if self._is_raw or self._screen.is_stuck:
            self._screen.end_tail()
            return
        self._print(self._splitter.finish())
        self._screen.erase()

    def _show_line(self, text: str) -> None:
        """Show a line that will go again."""
        self._screen.append(text, style="dim")
        self._screen.show_held()

    def _end_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._screen.erase()

    # --- reasoning -------------------------------------------------------------------------

    def _show_reasoning(self, text: str) -> None:
        """Show reasoning whole, or as one line that says how much there is."""
        self._is_thinking = True
        self._num_words += len(text.split())
        if self._reasoning == "show":
            self._screen.append(text, style="dim italic")
            return
        now = time.monotonic()
        if now - self._folded_s >= _FOLD_EVERY_S:
            self._folded_s = now
            self._screen.erase()
            self._show_line(f"thinking: {self._num_words} words (Ctrl-C stops)")

    def _end_reasoning(self) -> None:
        """End the reasoning before the answer, or before nothing."""
        if not self._is_thinking:
            return
        self._is_thinking = False
        if self._reasoning == "show":
            self._screen.end_tail()
            self._screen.line()
            return
        self._screen.erase()
        if self._reasoning == "fold":
            took = time.monotonic() - self._began_s
            words = f"thought for {took:.1f} s, {self._num_words} words (/set reasoning show)"
            self._screen.line(words, style="dim")

    # --- answer ----------------------------------------------------------------------------

    def _show_answer(self, text: str) -> None:
        """Print the blocks that are now finished; let the tail grow."""
        if not self._has_answer:
            text = text.lstrip("\n")
            self._has_answer = bool(text)
        if self._is_raw or self._screen.is_stuck:
            self._show_raw(text)
            return
        blocks = self._splitter.push(text)
        if blocks:
            self._print(blocks)
            self._screen.append(self._splitter.tail)
        else:
            self._screen.append(text)

    def _show_raw(self, text: str) -> None:
        """Go on as plain text, because the tail on the screen stays as it is, until a block ends with a line."""
        self._is_raw = True
        self._screen.append(text)
        self._splitter.push(text)
        if not self._splitter.tail:
            self._screen.end_tail()
            self._is_raw = False

    def _print(self, blocks: list[Block]) -> None:
        """Print finished blocks in place of the tail."""
        from pie_mlx.cli.chat.markdown import render_block

        rendered: list[RenderableType] = []
        for block in blocks:
            if block.has_gap:
                rendered.append("")
            rendered.append(render_block(block, self._theme))
        if rendered:
            self._screen.render(*rendered)
