"""``pie-mlx tot run --n``: a search over a test set, its table, and what chance reaches there."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pie_mlx.cli.options import model_name, open_engine
from pie_mlx.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pie_mlx.cli.diagnostics import Stderr
    from pie_mlx.config import Settings
    from pie_mlx.search.params import SearchParams
    from pie_mlx.search.rows import SetRow
    from pie_mlx.search.sets import SetResult, SetRun
    from pie_mlx.search.tasks import Task

_EXIT_UNSOLVED = 5
_EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class SetPlan:
    """What is to be searched."""

    tasks: list[Task[Any]]
    params: SearchParams
    traces: Path
    compare: bool


def make_traces(wanted: Path | None, task: str) -> Path:
    """Return the folder of a set's traces, which exists and is empty.

    Raises:
        UsageError: it is a file, has something in it, or cannot be made.
    """
    from pie_mlx.cli.traces import new_trace_path

    path = wanted or new_trace_path(f"{task}-set").with_suffix("")
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path} is not empty", "--trace takes a new folder: each puzzle leaves a trace")
    except OSError as error:
        raise UsageError(f"{path} cannot be a folder: {error.strerror}", "name another with --trace") from error
    return path


def run_plan(settings: Settings, stderr: Stderr, plan: SetPlan) -> tuple[SetResult | None, bool]:
    """Search the set; return what is done, and whether it was interrupted. None: not a single task was."""
    from pie_mlx.search.sets import SetRun

    with stderr.waiting(f"loading {model_name(settings)}"):
        engine = open_engine(settings)
    with engine:
        run = SetRun(engine, plan.tasks, plan.params, compare=plan.compare, traces=plan.traces)
        interrupted = False
        with _showing(stderr, run) as show:
            try:
                run.run(show)
            except KeyboardInterrupt:
                interrupted = True
    return (run.result() if run.rows else None), interrupted


@contextmanager
def _showing(stderr: Stderr, run: SetRun) -> Iterator[Callable[[SetRow], None]]:
    """Yield what is told of every finished task: a bar for a person, a line a task for a file."""
    from pie_mlx.cli.settable import row_line, solved_so_far

    total = len(run.tasks)
    if not stderr.console.is_terminal:
        yield lambda row: stderr.line(row_line(len(run.rows), total, row))
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr.console, transient=True) as bars:
        bar = bars.add_task(run.tasks[0].name, total=total)

        def show(row: SetRow) -> None:
            del row
            words = f"{run.tasks[0].name} · {solved_so_far(run.rows)} solved"
            bars.update(bar, completed=len(run.rows), description=words)

        yield show


def tell(settings: Settings, stderr: Stderr, result: SetResult, *, as_json: bool) -> None:
    """Give the result out: a table, or one object."""
    from pie_mlx.cli.render import Stdout
    from pie_mlx.cli.settable import HEADER, NUMBERS, set_notes, set_rows

    stdout = Stdout(settings.color)
    if as_json:
        stdout.json(result.to_json())
        return
    stdout.table(HEADER, set_rows(result), right=NUMBERS)
    stdout.line()
    for label, text in set_notes(result):
        stdout.line(f"{label:<9} {text}")
    for row in result.rows:
        if row.result.error is not None:
            stderr.note(f"{row.question}: {row.result.error.message}")


def search_set(settings: Settings, stderr: Stderr, plan: SetPlan, *, as_json: bool, check: bool) -> None:
    """Search a set, tell its result, and exit with its code.

    Exit codes: 130 where it was interrupted, the error's own where every task failed, 5 with ``check`` where a task
    is unsolved.
    """
    result, interrupted = run_plan(settings, stderr, plan)
    if result is not None:
        tell(settings, stderr, result, as_json=as_json)
        stderr.labelled("traces", f"{plan.traces}  (pie-mlx tot show {plan.traces / '001.jsonl'})")
    if interrupted or result is None:
        raise typer.Exit(_EXIT_INTERRUPTED)
    errors = [row.result.error for row in result.rows if row.result.error is not None]
    if errors and (len(errors) == len(result.rows) or not result.is_complete):
        raise typer.Exit(errors[-1].exit_code)
    if check and not all(row.result.solved is True for row in result.rows):
        raise typer.Exit(_EXIT_UNSOLVED)
