"""The transcript: finished blocks are laid out once and stay; only the tail is laid out as it grows."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.containers import VerticalScroll
from textual.widgets import Static

from pie_mlx.chat import Turn
from pie_mlx.chat.blocks import Block, BlockSplitter, Kind
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.markdown import block_text
from pie_mlx.tui.text import clean_text
from pie_mlx.tui.widgets.frame.line_view import inks_of

_BLOCK_CHARS = 1_200
"""A block longer than this is full: what comes next goes into another one."""


_MOST_BLOCKS = 60
"""More blocks than this: the older ones become a single one. The layout of a frame looks at every block there is."""
_OLD = "said old"
_KINDS = frozenset({"said", "thought", "head", "answer", "notice"})
_GAPS = {"answer": "\n"}
"""What stands before a block inside another, by its kind; others are set off by an empty line."""


class Transcript(VerticalScroll, can_focus=True):
    """Messages, replies and notices, oldest first; stays at the end unless it was scrolled up."""

    FOCUS_ON_CLICK = False
    DEFAULT_CSS: ClassVar[str] = "Transcript { scrollbar-size-vertical: 1; scrollbar-gutter: stable; padding: 0 1; }"

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Start empty."""
        super().__init__(id=id)
        self._sticks = True
        """Whether the end is kept in sight."""
        self._tail: Static | None = None
        self._part: _Part | None = None
        self._shown = ("", "")
        """Reasoning and answer of the running reply that are laid out."""

    async def show_path(self, turns: list[Turn]) -> None:
        """Show other turns; what was there is gone."""
        await self.remove_children()
        self._tail, self._part, self._shown = None, None, ("", "")
        blocks = [block for turn in turns for block in self._turn(turn)]
        whole: list[tuple[str, Text]] = []
        while old := _num_old([kind for kind, _text in blocks]):
            whole.append((_OLD, _joined(blocks[:old])))
            blocks = blocks[old:]
        await self.mount(*(Static(text, markup=False, classes=kind) for kind, text in [*whole, *blocks]))
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
        head = Text(f"● {clean_text(turn.model or 'model')}{mark}", style=inks["info"] + Style(bold=True))
        blocks.append(("head", head))
        part = _Part(inks, dark=self.app.current_theme.dark, is_answer=True)
        blocks += [("answer", full) for full in part.push(turn.text)]
        return [*blocks, ("answer", part.finish())]

    def say(self, text: str, *, role: str = "dim") -> None:
        """Add a notice."""
        inks = inks_of(self.app)
        self._append(Static(Text(clean_text(text), style=inks[role]), markup=False, classes="notice"))

    def add_message(self, text: str) -> None:
        """Add what the user said."""
        inks = inks_of(self.app)
        self._join_old()
        self._append(Static(_headed("❯ you", text, inks["accent"], inks["strong"]), markup=False, classes="said"))

    def _join_old(self) -> None:
        """Make the older blocks a single one, which looks the same; between turns all blocks are finished."""
        blocks = [block for block in self.query_children(Static) if not block.has_class("old")]
        kinds = [next(iter(block.classes & _KINDS), "answer") for block in blocks]
        old = _num_old(kinds)
        if not old:
            return
        texts = [block.content for block in blocks[:old]]
        joined = _joined([(kind, text) for kind, text in zip(kinds, texts, strict=False) if isinstance(text, Text)])
        with self.app.batch_update():
            _ = self.mount(Static(joined, markup=False, classes=_OLD), before=blocks[0])
            _ = self.remove_children(blocks[:old])

    # --- a reply as it comes --------------------------------------------------------------------

    def begin_reply(self, model: str) -> None:
        """Begin a reply's block."""
        inks = inks_of(self.app)
        self._append(Static(Text(f"● {model}", style=inks["info"] + Style(bold=True)), markup=False, classes="head"))
        self._shown = ("", "")
        self._part = None

    def show_reply(self, reasoning: str, answer: str) -> None:
        """Show a running reply: only what is new is laid out, and what is finished stays as it is."""
        old_reasoning, old_answer = self._shown
        if len(reasoning) > len(old_reasoning):
            self._grow(reasoning[len(old_reasoning) :], is_answer=False)
        if len(answer) > len(old_answer):
            self._grow(answer[len(old_answer) :], is_answer=True)
        self._shown = (reasoning, answer)

    def _grow(self, piece: str, *, is_answer: bool) -> None:
        """Add a piece to the part of the reply that is being written; a full block is left as it is."""
        if self._part is None or self._part.is_answer is not is_answer:
            self._end_part()
            self._part = _Part(inks_of(self.app), dark=self.app.current_theme.dark, is_answer=is_answer)
            self._open_block()
        for full in self._part.push(piece):
            assert self._tail is not None, "a part has a block"
            self._tail.update(full)
            self._open_block()
        assert self._tail is not None, "a part has a block"
        self._tail.update(self._part.shown())
        self._keep_end()

    def _open_block(self) -> None:
        """Begin another block."""
        self._tail = Static(markup=False, classes="answer")
        self._append(self._tail)

    def _end_part(self) -> None:
        """Finish what is still open: an answer's tail becomes Markdown too."""
        if self._part is not None and self._tail is not None:
            self._tail.update(self._part.finish())
        self._part, self._tail = None, None

    def end_reply(self, words: str | None) -> None:
        """End the reply; ``words`` say why, where it did not come to its own end."""
        self._end_part()
        if words:
            self.say(words, role="warn")
        self._keep_end()

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


def _num_old(kinds: list[str]) -> int:
    """Return how many of the first blocks, about half and whole turns, are to become one; 0 while there are few."""
    begins = [at for at, kind in enumerate(kinds) if kind == "said" and at]
    if len(kinds) <= _MOST_BLOCKS or not begins:
        return 0
    return max((at for at in begins if at <= _MOST_BLOCKS // 2), default=begins[0])


def _joined(blocks: list[tuple[str, Text]]) -> Text:
    """Return blocks as one text, set off from each other as they are on the screen."""
    out = Text()
    for kind, text in blocks:
        out.append(_GAPS.get(kind, "\n\n") if out.plain else "")
        out.append_text(text)
    return out


def _headed(head: str, text: str, head_style: Style, style: Style) -> Text:
    """Return a text under a head."""
    out = Text(f"{clean_text(head)}\n", style=head_style + Style(bold=True))
    return out.append(clean_text(text), style + Style(bold=False))


class _Part:
    """Reasoning or answer of a reply while it is written: finished Markdown, and behind it the tail as it comes."""

    def __init__(self, inks: Inks, *, dark: bool, is_answer: bool) -> None:
        """Start empty; reasoning is plain text, an answer is Markdown."""
        self.is_answer = is_answer
        self._inks = inks
        self._dark = dark
        self._splitter = BlockSplitter()
        self._done = Text()

    def push(self, piece: str) -> list[Text]:
        """Take a piece; return the blocks that it filled. However long it is, they are as if it had come bit by bit."""
        length = max(1, _BLOCK_CHARS // 4)
        return [full for at in range(0, len(piece), length) for full in self._push(piece[at : at + length])]

    def _push(self, piece: str) -> list[Text]:
        """Take a short piece."""
        full = self._take(self._splitter.push(piece))
        tail = self._splitter.tail
        cut = tail.rfind("\n") if len(tail) > _BLOCK_CHARS else -1
        if cut > 0:
            # A paragraph without end: its lines so far are finished, so that the tail stays short.
            self._splitter = BlockSplitter()
            full += self._take([Block(Kind.TEXT, tail[:cut]), *self._splitter.push(tail[cut + 1 :])])
        return full

    def _take(self, blocks: list[Block]) -> list[Text]:
        """Lay finished blocks of Markdown out; return what is full."""
        full: list[Text] = []
        for block in blocks:
            if len(self._done) > _BLOCK_CHARS:
                full.append(self._done)
                # The gap between two blocks on the screen is a line of its own.
                self._done = Text(" ") if block.has_gap else Text()
            elif self._done.plain:
                self._done.append("\n\n" if block.has_gap else "\n")
            self._done.append_text(self._styled(block))
        return full

    def _styled(self, block: Block) -> Text:
        """Return a block in its style."""
        if self.is_answer:
            return block_text(block, self._inks, dark=self._dark)
        return Text(clean_text(block.text), style=self._inks["dim"])

    def shown(self) -> Text:
        """Return what is laid out now: finished blocks, and the tail as it is."""
        tail = self._splitter.tail.rstrip("\n")
        if not tail:
            return self._done
        between = "\n" if self._done.plain else ""
        style = self._inks["text" if self.is_answer else "dim"]
        return self._done.copy().append(between).append(clean_text(tail), style)

    def finish(self) -> Text:
        """Return the last block, whole."""
        full = self._take(self._splitter.finish())
        return Text("\n").join([*full, self._done])
