"""Simpler strategies on the same tasks, for about the tokens that the search took: is the tree worth its price?

Greedy keeps the search's settings and may spend what the search spent. Best of n lets the model write as many whole
chains as that price buys; what a chain costs is learned from the chains before it. What both really used stands
beside what they reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pie_mlx.engine import Engine
from pie_mlx.errors import Fact
from pie_mlx.search.params import SearchParams, StrategyName
from pie_mlx.search.rows import SetRow, run_row
from pie_mlx.search.tasks.base import Task

RIVALS: tuple[StrategyName, ...] = ("greedy", "best_of_n")
MAX_SAMPLES = 64
"""Samples of best of n at most: more are not run side by side on the machines this is for."""
_LEAD_TOKENS = 16
"""What a thought costs besides its own words, before any chain has told."""


@dataclass(frozen=True, slots=True)
class RivalRun:
    """A simpler strategy on one task."""

    row: SetRow
    budget: int
    """Tokens that the search took there."""


@dataclass(frozen=True, slots=True)
class Rival:
    """What a simpler strategy reached on the set; shares are 0 to 1."""

    strategy: str
    n: int
    """Tasks that it was run on."""
    first: float
    any: float
    mean: float
    tokens: int
    """Tokens computed and generated."""
    budget: int
    """Tokens that the search took on the same tasks."""
    calls: int
    wall_s: float

    def to_json(self) -> dict[str, Fact]:
        """Return the figures as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass
class Prices:
    """Runs the rivals, and learns what a chain of best of n costs."""

    _chains: int = 0
    _spent: int = 0
    _roots: list[int] = field(default_factory=list)

    def run(self, engine: Engine, strategy: str, task: Task[Any], row: SetRow, params: SearchParams) -> RivalRun:
        """Run ``strategy`` on the task of ``row`` for about the price of ``row``."""
        budget = row.tokens_used
        if strategy == "greedy":
            own = replace(params, strategy="greedy", budget_tokens=max(budget, 1))
            return RivalRun(run_row(engine, task, own), budget)
        root = row.root_tokens
        num = self._samples(task, params, budget - root)
        own = replace(params, strategy="best_of_n", breadth=num, propose="model", scorer=_scorer(params))
        done = run_row(engine, task, replace(own, budget_tokens=None))
        self._chains += num
        self._spent += max(done.tokens_used - root, 1)
        return RivalRun(done, budget)

    def _samples(self, task: Task[Any], params: SearchParams, budget: int) -> int:
        """Return how many chains ``budget`` tokens buy, at least one."""
        depth = task.depth if params.depth is None else params.depth
        price = self._spent / self._chains if self._chains else depth * (params.max_tokens / 2 + _LEAD_TOKENS)
        return max(1, min(round(budget / price), MAX_SAMPLES))


def _scorer(params: SearchParams) -> Any:
    """Return the search's scorer; chains that the model writes have no list of moves to be ranked in."""
    return "auto" if params.scorer == "move" else params.scorer


def sum_up(strategy: str, runs: Sequence[RivalRun]) -> Rival:
    """Sum up the runs of one strategy."""
    num = len(runs)
    return Rival(
        strategy,
        num,
        first=sum(run.row.result.solved is True for run in runs) / num,
        any=sum(run.row.result.num_solved > 0 for run in runs) / num,
        mean=sum(run.row.mean_solved for run in runs) / num,
        tokens=sum(run.row.tokens_used for run in runs),
        budget=sum(run.budget for run in runs),
        calls=sum(run.row.result.calls for run in runs),
        wall_s=sum(run.row.result.wall_s for run in runs),
    )
