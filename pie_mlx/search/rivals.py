"""Simpler strategies on the same set, for about the tokens that a search used: is the tree worth its price?

Greedy keeps the search's breadth and ends where it has spent what the search spent on this task. Best of n gets as many
samples as that price buys, at the search's own price of a thought; where thoughts cost nothing (legal moves), as many
as the search had nodes. What they really used stands beside what they reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pie_mlx.engine import Engine
from pie_mlx.errors import Fact
from pie_mlx.search.params import SearchParams
from pie_mlx.search.sets import SetResult, SetRow, run_row
from pie_mlx.search.tasks.base import Task

RIVALS = ("greedy", "best_of_n")
MAX_SAMPLES = 64
"""Samples of best of n at most: more are not run side by side on the machines this is for."""


@dataclass(frozen=True, slots=True)
class Rival:
    """What a simpler strategy reached on the set; shares are 0 to 1."""

    strategy: str
    first: float
    any: float
    tokens: int
    """Tokens computed and generated."""
    calls: int
    wall_s: float

    def to_json(self) -> dict[str, Fact]:
        """Return the figures as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def rivals_of(
    engine: Engine,
    tasks: Sequence[Task[Any]],
    result: SetResult,
    *,
    on_row: Callable[[SetRow], None] | None = None,
) -> Iterator[Rival]:
    """Run each simpler strategy over the tasks of ``result``; a set that was one of them meets only the other."""
    for strategy in RIVALS:
        if strategy == result.params.strategy:
            continue
        rows: list[SetRow] = []
        for task, row in zip(tasks, result.rows, strict=True):
            rows.append(run_row(engine, task, params_for(strategy, task, row, result.params)))
            if on_row is not None:
                on_row(rows[-1])
        yield Rival(
            strategy,
            first=sum(row.result.solved is True for row in rows) / len(rows),
            any=sum(row.result.num_solved > 0 for row in rows) / len(rows),
            tokens=sum(tokens_used(row) for row in rows),
            calls=sum(row.result.calls for row in rows),
            wall_s=sum(row.result.wall_s for row in rows),
        )


def params_for(strategy: str, task: Task[Any], row: SetRow, params: SearchParams) -> SearchParams:
    """Return a simpler strategy's parameters for the price that ``row`` had."""
    budget = tokens_used(row)
    if strategy == "greedy":
        return replace(params, strategy="greedy", budget_tokens=budget)
    return replace(params, strategy="best_of_n", breadth=_samples(task, row, params), budget_tokens=None)


def _samples(task: Task[Any], row: SetRow, params: SearchParams) -> int:
    """Return the chains that a search's price buys, at least one."""
    depth = task.depth if params.depth is None else params.depth
    written = row.metrics.num_thoughts
    if params.propose == "legal" or not written:
        bought = written // depth
    else:
        chain = depth * _thought_tokens(row) / written
        bought = round((tokens_used(row) - _root_tokens(row)) / max(chain, 1.0))
    return max(1, min(bought, MAX_SAMPLES))


def _thought_tokens(row: SetRow) -> int:
    """Return what all thoughts of a run cost, without the judging: their leads and what the model wrote."""
    return row.thought_tokens


def _root_tokens(row: SetRow) -> int:
    """Return the length of the prompt that all branches share."""
    return row.root_tokens


def tokens_used(row: SetRow) -> int:
    """Return the tokens that a row computed and generated."""
    tokens = row.result.tokens
    return tokens.prompt - tokens.cached + tokens.completion
