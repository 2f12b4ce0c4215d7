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
from pie_mlx.tui.alarms import AlarmNote, report_lines
from pie_mlx.tui.desk import Desk
from pie_mlx.tui.inks import Inks
from pie_mlx.tui.screens.dialogs import Confirm
from pie_mlx.tui.screens.page import Dialog
from pie_mlx.tui.text import count
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
                if self.desk.alarms:
                    yield Button("dismiss (d)", id="forget", compact=True)
            yield Static("esc closes", markup=False, classes="hint")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Do what the button says."""
        engine = self.desk.sources.engine
        if event.button.id == "forget":
            self.action_forget()
        elif engine is not None and event.button.id == "clear":
            freed = engine.clear_cache()
            self.notify(f"the prefix cache is empty: {freed} pages came back", markup=False)
        elif engine is not None:
            self._ask_to_close(engine)

    def action_forget(self) -> None:
        """Take the alarms as read."""
        self.desk.alarms.clear()
        _ = self.dismiss(None)

    def _ask_to_close(self, engine: Engine) -> None:
        """Say what would be lost, and close after a yes."""
        idle = idle_contexts(engine)
        if not idle:
            self.notify(f"no context was idle for {IDLE_S:g} s", markup=False)
            return
        private = sum(context.num_private for context in idle)
        names = ", ".join(context.name or f"context {context.id}" for context in idle[:6])
        more = f" and {len(idle) - 6} more" if len(idle) > 6 else ""
        question = (
            f"Close {len(idle)} contexts ({names}{more})?\nAt least {private} pages come back. "
            "Whoever still meant to use one gets the error 'context closed'. This cannot be taken back."
        )

        def decide(answer: object) -> None:
            if answer is True:
                self.notify(f"{close_idle(engine)} contexts are closed", markup=False)

        _ = self.app.push_screen(Confirm("close idle contexts", question, yes="close them"), decide)


def idle_contexts(engine: Engine) -> list[ContextReading]:
    """Return the contexts without a request that nobody touched for :data:`IDLE_S` and nobody pinned."""
    readings = engine.readings()
    return [c for c in readings.contexts if c.request is None and not c.pinned and c.idle_s >= IDLE_S]


def close_idle(engine: Engine) -> int:
    """Close the idle contexts, except those that were asked for something meanwhile; return how many."""
    idle, num_closed = idle_contexts(engine), 0
    with engine.locked() as core:
        for reading in idle:
            sequence = core.sequences.get(reading.id)
            if sequence is not None and sequence.job is None:
                core.close(reading.id)
                num_closed += 1
    return num_closed


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
