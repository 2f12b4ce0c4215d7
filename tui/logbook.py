"""One line of the log for each event of a run: when, a glyph, which node, and what happened in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pie_mlx.search.trace_events import (
    Accepted,
    AlarmRaised,
    Deduplicated,
    Edited,
    Event,
    Finished,
    Inserted,
    Locked,
    NodeDone,
    NodeStarted,
    Noticed,
    Paused,
    Pruned,
    Resumed,
    RunStarted,
    Scored,
    Selected,
    Stepped,
    Verdict,
)
from pie_mlx.search.tree import NodeId
from pie_mlx.tui.looks import value_text
from pie_mlx.tui.text import one_line, quantity


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line: seconds since the start, glyph, its role's colour, the node, and the words."""

    t_s: float
    glyph: str
    role: str
    node: NodeId | None
    words: str


def line_of(event: Event) -> LogLine:
    """Return the line that tells an event."""
    glyph, role, words = _LINES[type(event)](event)
    return LogLine(event.t_ns / 1e9, glyph, role, event.node, one_line(words))


def _run_started(event: RunStarted) -> tuple[str, str, str]:
    oracle = ", with the oracle" if event.oracle else ""
    return "▶", "accent", f"{event.strategy} search, scored by {event.scorer}{oracle}: {event.question}"


def _node_done(event: NodeDone) -> tuple[str, str, str]:
    if event.error is not None:
        return "✗", "bad", f"failed: {event.error}"
    if event.verdict is not Verdict.OK:
        return "!", "warn", f"{event.verdict.value}: {event.reason or event.text}"
    cost = f"{event.tokens.completion} tokens, {event.tokens.cached} of {event.tokens.prompt} cached"
    return ("◆" if event.terminal else "○"), ("good" if event.terminal else "info"), f"{event.text}  ({cost})"


def _scored(event: Scored) -> tuple[str, str, str]:
    score = event.score
    if score.error is not None:
        return "?", "bad", f"{score.kind} score failed: {score.error}"
    mass = "" if score.mass is None else f", mass {score.mass:.2f}"
    low = " (low: the labels were hardly meant)" if score.mass is not None and score.mass < 0.2 else ""
    return "≈", "info", f"{score.kind} {value_text(score)}{mass}{low}"


def _pruned(event: Pruned) -> tuple[str, str, str]:
    return "×", "dim", f"pruned {event.reason}, {quantity(event.freed_pages, 'page')} came back"


def _deduplicated(event: Deduplicated) -> tuple[str, str, str]:
    return "≡", "dim", f"the same state as {event.duplicate_of}, {quantity(event.freed_pages, 'page')} came back"


def _selected(event: Selected) -> tuple[str, str, str]:
    return "▸", "accent", f"frontier: {', '.join(event.nodes)} {event.reason}"


def _finished(event: Finished) -> tuple[str, str, str]:
    if event.error is not None:
        return "✗", "bad", f"{event.reason.value}: {event.error}"
    solved = {None: "", True: ", checked: right", False: ", checked: wrong"}[event.solved]
    answer = "no answer" if event.answer is None else event.answer
    return "■", "best" if event.solved else "strong", f"{event.reason.value}{solved}: {answer}"


_LINES: dict[type[Event], Callable[[Any], tuple[str, str, str]]] = {
    RunStarted: _run_started,
    NodeStarted: lambda _event: ("◌", "busy", "is being written"),
    NodeDone: _node_done,
    Scored: _scored,
    Pruned: _pruned,
    Deduplicated: _deduplicated,
    Selected: _selected,
    AlarmRaised: lambda event: ("▲", "bad", f"alarm, {event.kind}: {event.message}"),
    Paused: lambda _event: ("‖", "warn", "paused"),
    Resumed: lambda _event: ("▶", "accent", "goes on"),
    Stepped: lambda _event: ("→", "accent", "one step"),
    Edited: lambda event: ("✎", "accent", f"edited by hand: {event.text}"),
    Inserted: lambda event: ("+", "accent", f"added by hand: {event.text}"),
    Locked: lambda event: ("▪", "accent", "locked into the beam" if event.locked else "let go"),
    Accepted: lambda event: ("★", "best", f"accepted by the {event.by}"),
    Finished: _finished,
    Noticed: lambda event: ("i", "dim", event.text),
}
