"""One task of a set: its search, what it reached, and how its scorer did against the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pie_mlx.engine import Engine
from pie_mlx.errors import Fact
from pie_mlx.search.metrics import EXACT_KINDS, RunMetrics, measure
from pie_mlx.search.node import ROOT
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.base import Task
from pie_mlx.search.trace import TraceWriter
from pie_mlx.search.trace_events import Event, NodeDone

Level = tuple[list[float | None], list[bool]]
"""The values of one level's nodes, and whether each can still be solved."""


@dataclass(frozen=True, slots=True)
class SetRow:
    """One task of a set."""

    question: str
    result: SearchResult
    metrics: RunMetrics
    levels: tuple[Level, ...]
    """Scores against the truth, by level; empty where the truth is not known."""
    root_tokens: int = 0
    """Tokens of the prompt that all branches share."""
    trace: Path | None = None

    @property
    def mean_solved(self) -> float:
        """Share of the finished candidates that are right; 0 without any."""
        return self.result.num_solved / self.result.num_finished if self.result.num_finished else 0.0

    @property
    def tokens_used(self) -> int:
        """Tokens computed and generated."""
        tokens = self.result.tokens
        return tokens.prompt - tokens.cached + tokens.completion

    def to_json(self) -> dict[str, Fact]:
        """Return the task as JSON."""
        result = self.result
        return {
            "question": self.question,
            "answer": result.answer,
            "solved": result.solved,
            "any": result.num_solved > 0,
            "finish_reason": str(result.finish_reason),
            "nodes": len(result.nodes),
            "tokens": self.tokens_used,
            "calls": result.calls,
            "wall_s": result.wall_s,
            "error": None if result.error is None else result.error.to_json(),
            "trace": None if self.trace is None else str(self.trace),
        }


def run_row(
    engine: Engine,
    task: Task[Any],
    params: SearchParams,
    *,
    trace: Path | None = None,
    listen: Callable[[Event], None] | None = None,
) -> SetRow:
    """Search one task, with its trace written to the new file ``trace``; a run that fails gives a row with its error.

    Raises:
        InvalidParameter: the parameters do not fit the task.
        KeyboardInterrupt: as it came, after the run has given its pages back.
    """
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if listen is not None:
            listen(event)

    run = Run(engine, task, params, listen=take)
    with ExitStack() as stack:
        if trace is not None:
            run.record(stack.enter_context(TraceWriter.create(trace, run.header())))
        result = run.outcome()
    root = sum(event.tokens.prompt for event in events if isinstance(event, NodeDone) and event.node == ROOT)
    return SetRow(task.question, result, measure(events), tuple(_levels(run, task)), root, trace)


def _levels(run: Run, task: Task[Any]) -> list[Level]:
    """Pair the scorer's values with the truth, level by level; a checker's verdicts are not the scorer's work."""
    levels: dict[int, Level] = {}
    for node in run.tree.walk():
        score = node.score
        if node.id == ROOT or score is None or score.kind in EXACT_KINDS or node.id not in run.rules:
            continue
        truth = task.oracle(run.rules[node.id].state)
        if truth is None:
            continue
        values, labels = levels.setdefault(node.depth, ([], []))
        values.append(score.value)
        labels.append(truth)
    return [levels[depth] for depth in sorted(levels)]


def mean(values: Sequence[float]) -> float:
    """Average at least one value."""
    return sum(values) / len(values)


def weighted(rows: Sequence[SetRow], name: str) -> float | None:
    """Average a share of the thoughts over rows by their numbers of thoughts; None without any thought."""
    thoughts = sum(row.metrics.num_thoughts for row in rows)
    if not thoughts:
        return None
    return float(sum((getattr(row.metrics, name) or 0.0) * row.metrics.num_thoughts for row in rows) / thoughts)
