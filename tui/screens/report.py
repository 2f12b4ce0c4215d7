"""The watchdog's alarms with their reports, and buttons for what helps."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Static

from pie_mlx.engine import Engine
from pie_mlx.engine.readings import ContextReading
from pie_mlx.errors import ContextBusy, ContextClosed, PieError
from pie_mlx.search.node import FINAL
from pie_mlx.search.tree import Node, rank_key
from pie_mlx.tui.alarms import AlarmNote, report_lines
from pie_mlx.tui.bridge import describe
from pie_mlx.tui.desk import Desk
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.looks import value_text
from pie_mlx.tui.screens.dialogs import Confirm
from pie_mlx.tui.screens.page import Dialog
from pie_mlx.tui.text import count, one_line, quantity
from pie_mlx.tui.widgets.frame.line_view import inks_of

IDLE_S = 5.0
"""Contexts that nobody touched for this long are idle."""


class ReportScreen(Dialog):
    """All alarms, the latest first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,w", "dismiss(None)", "close"),
        Binding("d", "forget", "dismiss the alarms"),
    ]

    def __init__(self, desk: Desk) -> None:
        """Show a desk's alarms."""
        super().__init__()
        self.desk = desk

    def compose(self) -> ComposeResult:
        """Reports and buttons."""
        has_engine = self.desk.sources.engine is not None
        with Vertical(id="box", classes="wide") as box:
            box.border_title = "watchdog"
            with VerticalScroll():
                yield Static(report_text(self.desk.alarms, inks_of(self.app)), markup=False, id="reports")
            with Horizontal(classes="buttons"):
                if has_engine:
                    yield Button("clear the prefix cache", id="clear", compact=True)
                    yield Button("close idle contexts", id="close-idle", variant="warning", compact=True)
                if weakest_branch(self.desk) is not None:
                    yield Button("lower the beam", id="lower", variant="warning", compact=True)
                if self.desk.alarms:
                    yield Button("dismiss (d)", id="forget", compact=True)
            yield Static("esc closes", markup=False, classes="hint")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Do what the button says."""
        engine = self.desk.sources.engine
        if event.button.id == "forget":
            self.action_forget()
        elif event.button.id == "lower":
            self._ask_to_lower()
        elif engine is not None and event.button.id == "clear":
            freed = engine.clear_cache()
            self.notify(f"the prefix cache is empty: {freed} pages came back", markup=False)
        elif engine is not None:
            self._ask_to_close(engine)

    def action_forget(self) -> None:
        """Take the alarms as read."""
        self.desk.alarms.clear()
        _ = self.dismiss(None)

    def _ask_to_lower(self) -> None:
        """Say which branch would be lost, and prune it after a yes."""
        run, weakest = self.desk.run, weakest_branch(self.desk)
        if run is None or weakest is None:
            self.notify("there is no branch to spare", markup=False)
            return
        value = value_text(weakest.score) or "not scored"
        question = (
            f"Prune {weakest.id} ({value}), the weakest of {len(self.desk.story.tree.selected)} branches?\n"
            f"{one_line(weakest.text, 160)}\nIts pages come back at once; L on it takes it back."
        )

        def decide(answer: object) -> None:
            if answer is not True:
                return
            try:
                run.prune(weakest.id)
            except PieError as error:
                self.notify(describe(error), severity="error", markup=False, timeout=8)
            else:
                self.notify(f"{weakest.id} is pruned", markup=False)

        _ = self.app.push_screen(Confirm("lower the beam", question, yes="prune it"), decide)

    def _ask_to_close(self, engine: Engine) -> None:
        """Say what would be lost, and close after a yes."""
        idle = idle_contexts(engine, self.desk)
        if not idle:
            self.notify(f"no context was idle for {IDLE_S:g} s", markup=False)
            return
        private = sum(context.num_private for context in idle)
        names = ", ".join(context.name or f"context {context.id}" for context in idle[:6])
        more = f" and {len(idle) - 6} more" if len(idle) > 6 else ""
        pinned = sum(context.pinned for context in idle)
        whose = f" {pinned} of them pinned: their owner meant to keep them." if pinned else ""
        question = (
            f"Close {quantity(len(idle), 'context')} ({names}{more})?{whose}\n"
            f"At least {quantity(private, 'page')} come back. "
            "A chat or search computes its own again when it wants it; whoever else meant to use one gets the error "
            "'context closed'."
        )

        def decide(answer: object) -> None:
            if answer is True:
                self.notify(f"{quantity(close_idle(engine, self.desk), 'context')} closed", markup=False)

        _ = self.app.push_screen(Confirm("close idle contexts", question, yes="close them"), decide)


def idle_contexts(engine: Engine, desk: Desk) -> list[ContextReading]:
    """Return the contexts with pages that nobody touched for :data:`IDLE_S`: pinned ones too, which starve others.

    Those of a search that goes on are spared: it may be the one that waits, and closes what it does not need itself.
    """
    running = f"{desk.run.name}/" if desk.run is not None and desk.is_steerable else None
    return [
        each
        for each in engine.readings().contexts
        if each.request is None
        and each.num_pages
        and each.idle_s >= IDLE_S
        and not (running and each.name.startswith(running))
    ]


def close_idle(engine: Engine, desk: Desk) -> int:
    """Close the idle contexts, except those that were asked for something or closed meanwhile; return how many."""
    num_closed = 0
    for reading in idle_contexts(engine, desk):
        try:
            engine.close_context(reading.id)
        except (ContextBusy, ContextClosed):
            continue
        num_closed += 1
    return num_closed


def weakest_branch(desk: Desk) -> Node | None:
    """Return the node of the frontier that ranks last; None where it is the only one, or no run can be steered."""
    tree = desk.story.tree
    if not desk.is_steerable or len(tree.selected) < 2:
        return None
    alive = [tree[node] for node in tree.selected if tree[node].status not in FINAL and not tree[node].locked]
    return max(alive, key=rank_key) if len(alive) > 1 else None


def report_text(alarms: list[AlarmNote], inks: Inks) -> Text:
    """Return every alarm's report, the latest first."""
    if not alarms:
        return Text("No alarm. The watchdog looks for stalls, starvation, leaks and a dead device.", style=inks["text"])
    out = Text()
    for number, note in enumerate(reversed(alarms)):
        mark = "▲" if note.level == "failure" else "△"
        role = "bad" if note.level == "failure" else "warn"
        out.append("\n" if number else "").append(f"{mark} {note.kind.upper()}", inks[role] + Style(bold=True))
        out.append(f"  {note.level}\n", inks["dim"])
        for name, words in report_lines(note):
            style = inks["strong"] if name == "helps" else inks["text"]
            out.append(f"  {name:<6} ", inks["head"]).append(f"{words}\n", style)
    return out


def alarm_total(alarms: list[AlarmNote]) -> str:
    """Return how many alarms there are, in words."""
    return f"{count(len(alarms))} alarm{'s' if len(alarms) != 1 else ''}" if alarms else "no alarm"
