"""A search over a set of tasks: what it reached, what it cost, and what chance and simpler strategies reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pie_mlx.engine import Engine
from pie_mlx.errors import Fact, InvalidParameter
from pie_mlx.search.baselines import Baselines, null_baselines
from pie_mlx.search.failures import CrashedError
from pie_mlx.search.metrics import auc, mean_regret
from pie_mlx.search.node import TokenCounts
from pie_mlx.search.params import SearchParams
from pie_mlx.search.rivals import RIVALS, Prices, Rival, RivalRun, sum_up
from pie_mlx.search.rows import SetRow, mean, run_row, weighted
from pie_mlx.search.tasks.base import Task
from pie_mlx.search.trace_events import Event

SET_SCHEMA = "pie-mlx.tot-set/1"
_NUMBERS = ("first", "any", "mean", "invalid", "unparsed", "duplicates", "failed", "calls", "wall_s", "auc", "regret")


@dataclass(frozen=True, slots=True)
class SetResult:
    """A whole set; shares are 0 to 1, and None where nothing can be told."""

    task: str
    rows: tuple[SetRow, ...]
    params: SearchParams
    wanted: int
    """Tasks that were to be searched; an interrupted set has fewer rows."""
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
    duplicates: float | None
    """Share of the thoughts that said what a sibling had said."""
    failed: int
    """Rows that ended in an error."""
    tokens: TokenCounts
    calls: int
    wall_s: float
    auc: float | None
    """Chance that the scorer puts a solvable state above an unsolvable one."""
    regret: float | None
    """Share of the levels with a solvable state where the beam kept none."""
    baselines: Baselines | None
    rivals: tuple[Rival, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every task was searched."""
        return len(self.rows) == self.wanted

    def to_json(self) -> dict[str, Fact]:
        """Return the result as one JSON object with its schema."""
        out: dict[str, Fact] = {"schema": SET_SCHEMA, "task": self.task, "n": len(self.rows), "wanted": self.wanted}
        out["complete"] = self.is_complete
        out |= {name: getattr(self, name) for name in _NUMBERS}
        out["tokens"] = {
            "prompt": self.tokens.prompt,
            "cached": self.tokens.cached,
            "completion": self.tokens.completion,
        }
        out["oracle"] = self.params.oracle
        out["params"] = dict(self.params.to_json().items())
        out["baselines"] = None if self.baselines is None else self.baselines.to_json()
        out["rivals"] = [rival.to_json() for rival in self.rivals]
        out["rows"] = [row.to_json() for row in self.rows]
        return out


@dataclass
class SetRun:
    """A set while it is searched: rows come one by one, and what is done stays when the rest does not come."""

    engine: Engine
    tasks: Sequence[Task[Any]]
    params: SearchParams
    compare: bool = False
    """Run greedy and best of n on each task too, for about the tokens that the search took there."""
    traces: Path | None = None
    """A folder that exists: every search leaves its trace there, ``001.jsonl`` and so on."""
    listen: Callable[[Event], None] | None = None
    rows: list[SetRow] = field(default_factory=list)
    _rivals: dict[str, list[RivalRun]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse an empty set.

        Raises:
            InvalidParameter: there are no tasks.
        """
        if not self.tasks:
            raise InvalidParameter("tasks", 0, "at least one task")
        if self.compare:
            self._rivals = {name: [] for name in RIVALS if name != self.params.strategy}

    def run(self, on_row: Callable[[SetRow], None] | None = None) -> None:
        """Search every task, one after another, each from a fresh start; ends early where the engine has died.

        A task whose run fails counts as unsolved, and its row keeps the error.

        Raises:
            InvalidParameter: the parameters do not fit the tasks.
        """
        prices = Prices()
        for at, task in enumerate(self.tasks[len(self.rows) :], start=len(self.rows)):
            trace = None if self.traces is None else self.traces / f"{at + 1:03d}.jsonl"
            row = run_row(self.engine, task, self.params, trace=trace, listen=self.listen)
            self.rows.append(row)
            for name, runs in self._rivals.items():
                if self.engine.is_alive:
                    runs.append(prices.run(self.engine, name, task, row, self.params))
            if on_row is not None:
                on_row(row)
            if not self.engine.is_alive:
                return

    def result(self) -> SetResult:
        """Sum up the rows that are done; at least one must be."""
        rows, params = tuple(self.rows), self.params
        assert rows, "a set without a row has no result"
        tasks = self.tasks[: len(rows)]
        # Nothing can be played on a task whose own code fails.
        sound = [t for t, row in zip(tasks, rows, strict=True) if not isinstance(row.result.error, CrashedError)]
        checked = all(task.has_check for task in tasks)
        levels = [level for row in rows for level in row.levels]
        values = [value for level_values, _ in levels for value in level_values]
        truths = [truth for _, level_truths in levels for truth in level_truths]
        return SetResult(
            task=tasks[0].name,
            rows=rows,
            params=params,
            wanted=len(self.tasks),
            first=mean([float(row.result.solved is True) for row in rows]) if checked else None,
            any=mean([float(row.result.num_solved > 0) for row in rows]) if checked else None,
            mean=mean([row.mean_solved for row in rows]) if checked else None,
            invalid=weighted(rows, "invalid_share"),
            unparsed=weighted(rows, "unparsed_share"),
            duplicates=weighted(rows, "duplicate_share"),
            failed=sum(row.result.error is not None for row in rows),
            tokens=sum((row.result.tokens for row in rows), TokenCounts()),
            calls=sum(row.result.calls for row in rows),
            wall_s=sum(row.result.wall_s for row in rows),
            auc=auc(values, truths) if values else None,
            regret=mean_regret(levels, params.beam) if levels else None,
            baselines=null_baselines(sound, params.seed, beam=params.beam, merge=params.dedup),
            rivals=tuple(sum_up(name, runs) for name, runs in self._rivals.items() if runs),
        )


def run_set(
    engine: Engine,
    tasks: Sequence[Task[Any]],
    params: SearchParams,
    *,
    on_row: Callable[[SetRow], None] | None = None,
    compare: bool = False,
    traces: Path | None = None,
) -> SetResult:
    """Search a whole set; arguments and errors as for :class:`SetRun`."""
    run = SetRun(engine, tasks, params, compare=compare, traces=traces)
    run.run(on_row)
    return run.result()
