"""Follow a search: a live tree for a person, a line an event for a file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from rich.console import Group
from rich.live import Live

from pie_mlx.cli.clean import one_line
from pie_mlx.cli.treeframe import Caption, draw_frame
from pie_mlx.cli.treerows import Canvas, score_text
from pie_mlx.search.trace import (
    AlarmRaised,
    Deduplicated,
    Event,
    Finished,
    NodeDone,
    Noticed,
    Pruned,
    RunStarted,
    Scored,
    Selected,
    apply,
)
from pie_mlx.search.tree import Tree

if TYPE_CHECKING:
    from rich.console import Console

    from pie_mlx.search.result import SearchResult
    from pie_mlx.search.run import Run

FRAME_S = 0.1
"""Seconds between two frames."""
_SUMMARY_LINES = 7
"""Lines that a run writes below its last frame, which is to stay in sight."""
_LONGEST_PAUSE_S = 2.0
"""A replay waits no longer for the next event."""


class View(Protocol):
    """What shows a run; events may come from any thread."""

    tree: Tree

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was."""
        ...

    def take(self, event: Event) -> None:
        """Take an event."""

    def paint(self) -> None:
        """Show what has changed."""


def make_view(console: Console, write_line: Callable[[str], None], title: str) -> View:
    """Return the live tree where a person looks on, else lines."""
    return LiveView(console, title) if console.is_terminal else LineView(write_line)


class LiveView:
    """The tree on the terminal's other screen; the last frame stays on the ordinary one.

    The other screen has no scrollback: a resize can neither repeat nor tear what was drawn.
    """

    def __init__(self, console: Console, title: str) -> None:
        """Draw under ``title``."""
        self.tree = Tree()
        self._console = console
        self._title = title
        self._lock = threading.Lock()
        self._frame = 0
        self._started_s = time.monotonic()
        self._live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False)

    def __enter__(self) -> Self:
        """Switch to the other screen."""
        self._started_s = time.monotonic()
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch back, and leave the last frame."""
        self._live.stop()
        if len(self.tree):
            self._console.print(self._draw(spare=_SUMMARY_LINES), end="")

    def take(self, event: Event) -> None:
        """Fold the event into the tree."""
        with self._lock:
            apply(self.tree, event)

    def paint(self) -> None:
        """Draw the next frame."""
        self._frame += 1
        self._live.update(self._draw(spare=0), refresh=True)

    def _draw(self, *, spare: int) -> Group:
        """Return the frame, ``spare`` lines lower than the terminal is high."""
        width, height = self._console.size
        unicode = self._console.encoding.startswith("utf")
        canvas = Canvas(max(width - 1, 1), max(height - spare, 1), unicode, self._frame)
        with self._lock:
            lines = draw_frame(self.tree, Caption(self._title, time.monotonic() - self._started_s), canvas)
        return Group(*lines)


class LineView:
    """One line for each event that a reader wants to know of."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        """Write through ``write_line``."""
        self.tree = Tree()
        self._write_line = write_line
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End."""

    def take(self, event: Event) -> None:
        """Fold the event into the tree, and write its line."""
        with self._lock:
            apply(self.tree, event)
            line = event_line(self.tree, event)
        if line:
            self._write_line(line)

    def paint(self) -> None:
        """Show nothing: lines are written when they come."""


def event_line(tree: Tree, event: Event) -> str | None:
    """Return an event as one line, None where it is not worth one; the tree has taken it already."""
    match event:
        case RunStarted():
            return f"start   {event.strategy} scored by {event.scorer}: {one_line(event.question)}"
        case NodeDone():
            node = tree[event.node]
            return f"{node.status.value:<7} {node.id}  {one_line(node.text or node.reason)}{_cost(event)}"
        case Scored():
            return f"score   {event.node}  {score_text(tree[event.node])}"
        case Pruned():
            return f"prune   {event.node}  {event.reason}, {event.freed_pages} pages freed"
        case Deduplicated():
            return f"same    {event.node}  as {event.duplicate_of}"
        case Selected():
            return f"keep    {' '.join(event.nodes) or 'none'}"
        case AlarmRaised():
            return f"alarm   {event.kind}: {event.message}"
        case Noticed():
            return f"note    {event.text}"
        case Finished():
            return f"finish  {event.reason.value}"
        case _:
            return None


def _cost(event: NodeDone) -> str:
    """Return what a thought cost, where it cost anything."""
    if not event.tokens.completion:
        return ""
    own = event.pages.total - event.pages.shared
    return f"  ({event.tokens.completion} tokens, pages {own} own + {event.pages.shared} shared)"


def follow(run: Run, view: View) -> SearchResult:
    """Start a run, show it until it is over, and return its result; Ctrl-C cancels it and keeps what it has.

    Raises:
        PieError: the trace could not be written.
    """
    with view:
        run.start()
        while not run.is_over:
            try:
                view.paint()
                time.sleep(FRAME_S)
            except KeyboardInterrupt:
                run.cancel()
        view.paint()
    return run.result()


def replay_events(events: Iterable[Event], view: View, *, speed: float | None) -> None:
    """Show recorded events in the rhythm of the run times ``speed``; None shows them at once."""
    with view:
        last_ns = 0
        for event in events:
            if speed is not None:
                _wait(view, min((event.t_ns - last_ns) / 1e9 / speed, _LONGEST_PAUSE_S))
            last_ns = event.t_ns
            view.take(event)
        view.paint()


def _wait(view: View, seconds: float) -> None:
    """Go on painting for ``seconds``."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if left > FRAME_S / 2:
            view.paint()
        time.sleep(min(left, FRAME_S))
