"""What every screen of the workbench is: title, alarms, content, keys, and a notice where there is no room."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.message import Message
from textual.screen import ModalScreen, Screen

from pie_mlx.tui.bridge import Batch
from pie_mlx.tui.desk import Desk
from pie_mlx.tui.handover import check_search
from pie_mlx.tui.story import Change
from pie_mlx.tui.widgets.frame.bars import LEAST_HEIGHT, LEAST_WIDTH, AlarmBanner, KeyBar, TitleBar, TooSmall

WIDTHS: list[tuple[int, str]] = [(0, "-slim"), (LEAST_WIDTH, "-narrow"), (96, "-normal"), (140, "-wide")]
HEIGHTS: list[tuple[int, str]] = [(0, "-flat"), (LEAST_HEIGHT, "-short"), (26, "-normal-height"), (40, "-tall")]


class SearchAsked(Message):
    """A question is to be searched; the workbench answers."""

    def __init__(self, question: str) -> None:
        """Hold the question."""
        super().__init__()
        self.question = question


class Page(Screen[None]):
    """A full screen; it is told of each batch while it is shown, and catches up when it is shown again."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    name_in_help: ClassVar[str] = ""

    def __init__(self, desk: Desk) -> None:
        """Share the desk."""
        super().__init__()
        self.desk = desk

    def compose(self) -> ComposeResult:
        """Put the frame around the content."""
        yield TitleBar()
        yield AlarmBanner()
        yield from self.content()
        yield KeyBar()
        yield TooSmall()

    def content(self) -> ComposeResult:
        """Make what is between the bars."""
        raise NotImplementedError

    def take(self, batch: Batch, change: Change) -> None:
        """Show what a batch brought, and what it changed in the story."""
        raise NotImplementedError

    def catch_up(self) -> None:
        """Show everything as it is now."""
        raise NotImplementedError

    def on_screen_resume(self) -> None:
        """Show what happened while another screen was there."""
        self.show_alarm()
        self.catch_up()

    def show_alarm(self) -> None:
        """Put the latest alarm into the banner."""
        alarms = self.desk.alarms
        self.query_one(AlarmBanner).alarm = alarms[-1] if alarms else None

    def ask_search(self, question: str) -> None:
        """Let a question be searched on the tree screen.

        Raises:
            UsageError: there is no model, or a search runs.
        """
        check_search(self.desk)
        self.post_message(SearchAsked(question))

    def entitle(self, subject: str, words: str, role: str) -> None:
        """Set the title: what is shown, and how it stands."""
        title = self.query_one(TitleBar)
        title.subject, title.state = subject, (words, role)


class Dialog(ModalScreen[object]):
    """A box over a screen."""

    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
