"""A search over a set of tasks: what it reached, what it cost, and what chance would have reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pie_mlx.engine import Engine
from pie_mlx.errors import Fact, InvalidParameter
from pie_mlx.search.baselines import Baselines, null_baselines
from pie_mlx.search.metrics import EXACT_KINDS, RunMetrics, auc, mean_regret, measure
from pie_mlx.search.node import ROOT, TokenCounts
from pie_mlx.search.params import SearchParams
from pie_mlx.search.result import SearchResult
from pie_mlx.search.run import Run
from pie_mlx.search.tasks.base import Task
from pie_mlx.search.trace_events import Event

SET_SCHEMA = "pie-mlx.tot-set/1"

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

    @property
    def mean_solved(self) -> float:
        """Share of the finished candidates that are right; 0 without any."""
        return self.result.num_solved / self.result.num_finished if self.result.num_finished else 0.0


@dataclass(frozen=True, slots=True)
class SetResult:
    """A whole set; shares are 0 to 1, and None where nothing can be told."""

    task: str
    rows: tuple[SetRow, ...]
    params: SearchParams
    first: float | None
    """Share of the tasks whose answer is right."""
    any: float | None
    """Share of the tasks with a right candidate anywhere in the tree."""
    mean: float | None
    """Share of right candidates, averaged over the tasks."""
    invalid: float | None
    """Share of the thoughts that were no legal step."""
    unparsed: float | None
    """Share of the thoughts without the form asked for."""
    tokens: TokenCounts
    calls: int
    wall_s: float
    auc: float | None
    """Chance that the scorer puts a solvable state above an unsolvable one."""
    regret: float | None
    """Share of the levels with a solvable state where the beam kept none."""
    baselines: Baselines | None

    def to_json(self) -> dict[str, Fact]:
        """Return the result as one JSON object with its schema."""
        numbers = ("first", "any", "mean", "invalid", "unparsed", "calls", "wall_s", "auc", "regret")
        out: dict[str, Fact] = {"schema": SET_SCHEMA, "task": self.task, "n": len(self.rows)}
        out |= {name: getattr(self, name) for name in numbers}
        out["tokens"] = {
            "prompt": self.tokens.prompt,
            "cached": self.tokens.cached,
            "completion": self.tokens.completion,
        }
        out["oracle"] = self.params.oracle
        out["params"] = dict(self.params.to_json().items())
        out["baselines"] = None if self.baselines is None else self.baselines.to_json()
        out["rows"] = [_row_to_json(row) for row in self.rows]
        return out


def _row_to_json(row: SetRow) -> dict[str, Fact]:
    """Return one task as JSON."""
    result = row.result
    return {
        "question": row.question,
        "answer": result.answer,
        "solved": result.solved,
        "any": result.num_solved > 0,
        "finish_reason": str(result.finish_reason),
        "nodes": len(result.nodes),
        "calls": result.calls,
        "wall_s": result.wall_s,
        "error": None if result.error is None else result.error.code,
    }


def run_set(
    engine: Engine,
    tasks: Sequence[Task[Any]],
    params: SearchParams,
    *,
    on_row: Callable[[SetRow], None] | None = None,
    listen: Callable[[Event], None] | None = None,
) -> SetResult:
    """Search every task, one after another; each run starts afresh.

    A task whose run fails counts as unsolved, and its row keeps the error.

    Raises:
        InvalidParameter: there are no tasks, or the parameters do not fit them.
    """
    if not tasks:
        raise InvalidParameter("tasks", 0, "at least one task")
    rows: list[SetRow] = []
    for task in tasks:
        rows.append(_run_one(engine, task, params, listen))
        if on_row is not None:
            on_row(rows[-1])
    return _aggregate(tasks, tuple(rows), params)


def _run_one(engine: Engine, task: Task[Any], params: SearchParams, listen: Callable[[Event], None] | None) -> SetRow:
    """Search one task."""
    events: list[Event] = []

    def take(event: Event) -> None:
        events.append(event)
        if listen is not None:
            listen(event)

    run = Run(engine, task, params, listen=take)
    result = run.result()
    return SetRow(task.question, result, measure(events), tuple(_levels(run, task)))


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


def _aggregate(tasks: Sequence[Task[Any]], rows: tuple[SetRow, ...], params: SearchParams) -> SetResult:
    """Sum the rows."""
    checked = all(task.has_check for task in tasks)
    thoughts = sum(row.metrics.num_thoughts for row in rows)
    levels = [level for row in rows for level in row.levels]
    values = [value for level_values, _ in levels for value in level_values]
    truths = [truth for _, level_truths in levels for truth in level_truths]
    tokens = TokenCounts()
    for row in rows:
        tokens += row.result.tokens
    return SetResult(
        task=tasks[0].name,
        rows=rows,
        params=params,
        first=_mean([float(row.result.solved is True) for row in rows]) if checked else None,
        any=_mean([float(row.result.num_solved > 0) for row in rows]) if checked else None,
        mean=_mean([row.mean_solved for row in rows]) if checked else None,
        invalid=_weighted(rows, "invalid_share", thoughts),
        unparsed=_weighted(rows, "unparsed_share", thoughts),
        tokens=tokens,
        calls=sum(row.result.calls for row in rows),
        wall_s=sum(row.result.wall_s for row in rows),
        auc=auc(values, truths) if values else None,
        regret=mean_regret(levels, params.beam) if levels else None,
        baselines=null_baselines(tasks, params.seed),
    )


def _mean(values: Sequence[float]) -> float:
    """Average at least one value."""
    return sum(values) / len(values)


def _weighted(rows: Sequence[SetRow], name: str, thoughts: int) -> float | None:
    """Average a share of the thoughts over all rows by their numbers of thoughts."""
    if not thoughts:
        return None
    return float(sum((getattr(row.metrics, name) or 0.0) * row.metrics.num_thoughts for row in rows) / thoughts)
